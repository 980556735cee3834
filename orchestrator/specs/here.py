"""Checks at each submission that this machine and the code folder have everything that the job needs. This module
imports no pydantic.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.node.system.host import cores, memory
from orchestrator.protocol.reading import read_part
from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.kinds import kind_named
from orchestrator.specs.never_shipped import why_never_shipped
from orchestrator.specs.program import program_of
from orchestrator.specs.resources import Has, lacking

if TYPE_CHECKING:  # a submission of cached documents must not load pydantic
    from orchestrator.specs.job import Job, Training
    from orchestrator.specs.profiles import AnyProfile

MOST_BYTES: Final = 1 << 20  # how much of a program's text is read
MOST_FILES: Final = 50  # how many files beside a program are searched for its options


def check_here(job: Job, profile: AnyProfile, code_dir: Path, job_file: Path, *, allowed: bool) -> list[Problem]:
    """Return a problem for each resource that the job needs and this machine lacks, and for each file that the job
    names and the code folder lacks.

    `allowed` permits a code folder outside of the job file's folder and repository.
    """
    place = check_code_place(code_dir, job_file, allowed=allowed)
    return [
        *check_this_machine(job, profile),
        *(
            place
            or check_code(job, code_dir)
            or check_launcher(job, profile, code_dir)
            or check_submitter(job, profile, code_dir)
        ),
    ]


def check_this_machine(job: Job, profile: AnyProfile) -> list[Problem]:
    """Return a problem for each resource that the job requests and this machine lacks.

    A profile of other machines is not checked.
    """
    if not kind_named(profile.kind).on_this_machine:
        return []
    there = 0
    if job.resources.gpus:
        from orchestrator.node.system.gpus.devices import gpus

        there = gpus()
    lacks = lacking(job.resources, Has(cores(), there, memory()))
    return [Problem(("resources", field), f"this machine {why}") for field, why in lacks.items()]


def check_code_place(code_dir: Path, job_file: Path, *, allowed: bool) -> list[Problem]:
    """Return a problem if orch must not copy the code folder to the job's nodes.

    A job may send the folder of its file, the repository of that folder and, if the folder is called jobs, its parent.
    Other folders need the user's permission (`allowed`). Folders with credentials, and the home folder itself, are
    never sent.
    """
    if why := why_never_shipped(code_dir):
        return [Problem(("code", "dir"), f"{why}, so it is never sent; put job and code into a folder of their own")]
    own = job_file.resolve().parent
    roots = [own, *([own.parent] if own.name == "jobs" else [])]
    roots += [folder for folder in (own, *own.parents) if (folder / ".git").exists()][:1]
    if allowed or any(code_dir.is_relative_to(root) for root in roots if not why_never_shipped(root)):
        return []
    said = f"{code_dir} lies outside of the job file's folder and repository"
    return [Problem(("code", "dir"), f"{said}; to send it anyway, add --allow-code-dir")]


def check_launcher(job: Job, profile: AnyProfile, code_dir: Path) -> list[Problem]:
    """Return a problem if the command starts a launcher, such as torchrun, and a node may have several ranks.

    Each of the ranks would start the launcher, so the whole model would be trained several times.
    """
    if job.command is None or _has_one_rank_a_node(profile):
        return []
    from orchestrator.specs.launchers import launcher_in

    if (launcher := launcher_in([*job.command, *job.args], code_dir)) is None:
        return []
    name = launcher.name.partition(" ")[0]
    message = (
        f"starts {launcher} on every rank, and profile '{profile.name}' may have several on a node: each would train "
        f"the whole over; have orch start the ranks (orch init NAME {name} ...), or set nproc_per_node: 1"
    )
    return [Problem(("command",), message)]


def check_submitter(job: Job, profile: AnyProfile, code_dir: Path) -> list[Problem]:
    """Return a problem if the script submits its training through submitit, because every rank would submit the
    training again.
    """
    if profile.nodes == 1 and _has_one_rank_a_node(profile):
        return []
    field, script = "script", job.script or ""
    if job.module is not None:
        field, script = "module", f"{job.module.replace('.', '/')}.py"
    elif job.command is not None:
        from orchestrator.specs.submitters import program_of_python

        field, script = "command", program_of_python(job.command)
    submitter = submitter_of(script, code_dir)
    return [Problem((field,), f"{submitter[0]}; {submitter[1]}")] if submitter else []


def submitter_of(script: str, code_dir: Path) -> tuple[str, str] | None:
    """If a script submits jobs, return the problem and a hint that names the script to launch instead; otherwise
    None.
    """
    path = code_dir / script
    try:
        if not script or b"submit" not in read_part(path.resolve(), 0, 1 << 18):
            return None  # most scripts don't submit, so ast is not loaded for them
    except OSError:
        return None
    from orchestrator.specs.submitters import submitter_in

    if (submitter := submitter_in(script, code_dir)) is None:
        return None
    hint = "launch the script that trains, which orch starts on each rank itself"
    if submitter.trains:
        hint = f"launch {submitter.trains}, which this script imports: orch run -- torchrun {submitter.trains}"
    return f"{script} submits its training through {submitter}, and each rank of orch would submit it again", hint


def _has_one_rank_a_node(profile: AnyProfile) -> bool:
    return set(kind_named(profile.kind).ranks(profile)) == {1}


def check_code(job: Job, code_dir: Path) -> list[Problem]:
    """Return a problem for each file that the job names and its code folder lacks."""
    if not os.path.isdir(code_dir):  # Path.is_dir raises OSError for a name that is too long
        what = "is not a folder" if os.path.exists(code_dir) else "does not exist"
        return [Problem(("code", "dir"), f"the code folder {code_dir} {what}")]
    if job.script is not None:
        return _check_file(("script",), job.script, code_dir)
    if job.training is not None:
        return _check_file(("training", "task"), job.training.task, code_dir) or _check_options(job.training, code_dir)
    if job.command is not None and job.command[0].startswith(("./", "../")):
        program = code_dir / job.command[0]
        if problems := _check_file(("command", 0), job.command[0], code_dir):
            return problems
        if not os.access(program, os.X_OK):
            return [Problem(("command", 0), f"{program} is not executable; run: chmod +x {program}")]
    return []


def _check_options(training: Training, code_dir: Path) -> list[Problem]:
    """Return a problem for each training option that the task (the user's Python file) never reads, because such an
    option would have no effect.
    """
    if not training.options:
        return []
    import difflib

    from orchestrator.specs.documents.diagnostics import near_field
    from orchestrator.specs.task_options import words_of_task

    words = words_of_task(code_dir / training.task)
    problems = []
    for name in training.options:
        if words is None or name in words:
            continue
        near = [field for field in [near_field(name)] if field.startswith("job.training.")]
        near += difflib.get_close_matches(name, words, n=1, cutoff=0.8)
        guess = f"; did you mean {near[0]}?" if near else ""
        message = f"the task {training.task} reads no option '{name}'{guess}"
        problems.append(Problem(("training", "options", name), message, at_key=True))
    return problems


def _check_file(path: tuple[str | int, ...], name: str, code_dir: Path) -> list[Problem]:
    if os.path.isabs(name):
        if Path(name).is_relative_to(code_dir):
            inside = Path(name).relative_to(code_dir)
            return [Problem(path, f"write it relative to the code folder: {inside}")]
        return []  # the file is on the nodes or in the image, where this machine can't look
    if os.path.normpath(name).startswith(".."):
        hint = "set `code.dir` to a folder that contains it"
        return [Problem(path, f"'{name}' lies outside the code folder {code_dir}, so it is not shipped; {hint}")]
    if os.path.isfile(code_dir / name):
        return []
    if os.path.isdir(code_dir / name):
        return [Problem(path, f"'{name}' is a folder, not a file")]
    program, *arguments = name.split()
    if arguments and os.path.isfile(code_dir / program):
        return [Problem(path, f"'{name}' is no file; put the arguments into args: [{', '.join(arguments)}]")]
    return [Problem(path, f"there is no '{name}' in the code folder {code_dir}{_nearest(name, code_dir)}")]


def _nearest(name: str, folder: Path) -> str:
    """Suggest a file with a similar name, at most two levels below the folder."""
    try:
        found = [p.relative_to(folder).as_posix() for pattern in ("*", "*/*") for p in folder.glob(pattern)][:2000]
    except OSError:
        return ""
    import difflib

    same = [p for p in found if Path(p).name == Path(name).name]
    close = same or difflib.get_close_matches(name, found, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


# -- the program in the code folder


def source_of(job: Job, folder: Path) -> tuple[str, bytes]:
    """Return the path of the program's file relative to the folder, and its text. The text is empty if the file
    can't be read.
    """
    script = _script_of(job, folder)
    return (script, text_of(folder / script)) if script else ("", b"")


def text_of(path: Path) -> bytes:
    """Return the first MOST_BYTES of a file; empty if it is not a regular file or belongs to another user."""
    try:
        return read_part(os.path.realpath(path), 0, MOST_BYTES)
    except (OSError, ValueError):
        return b""


def _options_in(text: bytes) -> set[str]:
    return {option for option in ("--local_rank", "--local-rank") if option.encode() in text}


def with_known_option(job: Job, folder: Path) -> Job:
    """Return the job with its `local_rank_option` in the program's spelling, --local-rank or --local_rank.

    torch.distributed.launch passes --local-rank since torch 2.0. Earlier versions and deepspeed pass --local_rank. Most
    programs know only one of the two options, and refuse the other.
    """
    if job.local_rank_option is None:
        return job
    script, text = source_of(job, folder)
    known: set[Any] = _options_in(text)
    if script and not known:  # the parser may be in a module beside the program
        beside = sorted((folder / script).parent.glob("*.py"))[:MOST_FILES]
        known = _options_in(b"".join(text_of(path) for path in beside))
    if len(known) != 1 or job.local_rank_option in known:
        return job
    return replace(job, local_rank_option=known.pop())


def _script_of(job: Job, folder: Path) -> str:
    """Return the file of the Python program that every rank runs; empty if there is none."""
    if job.training is not None:
        return ""
    kind, target, args = program_of(job)
    if kind == "command":
        is_python = re.fullmatch(r"python[\d.]*", os.path.basename(target)) is not None
        return args[0] if is_python and args and args[0].endswith(".py") else ""
    if kind == "script":
        return target
    path = target.replace(".", "/")
    return next((each for each in (f"{path}.py", f"{path}/__main__.py") if (folder / each).is_file()), "")
