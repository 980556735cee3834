"""Converts a batch or shell script of a small, closed grammar into a launch line, and refuses every other script.

docs/from-sbatch.md describes the grammar. The values of variables are those that the file itself or its #SBATCH lines
decide. A value that only a shell in the job could tell may stand where orch sets the value itself, such as the
rendezvous, and is refused in all other places.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.operations.submission.launch_line import Pasted, is_launcher, read_words, srun_options, words
from orchestrator.operations.submission.launcher_files import LauncherFiles
from orchestrator.operations.submission.shell_words import Command, Part, commands_of
from orchestrator.specs.batch_header import NotConvertibleError, header_of, refused
from orchestrator.specs.environment import set_by_orch
from orchestrator.specs.launchers import SHELLS
from orchestrator.specs.wrappers import program_of

_PRINTS: Final = words("echo printf date hostname pwd nvidia-smi printenv which true : sleep cat ls")
_SETUP: Final = words("module ml source . conda mamba micromamba eval ulimit umask spack unset mkdir")
_SETS: Final = re.compile(r"set|[-+][euxo]+|pipefail|errexit|nounset|xtrace")
_HOOK: Final = re.compile(r'"?\$\((?:conda|mamba|micromamba) [^()`]*\)"?')
_CONDA_HOOK: Final = 'eval "$(conda shell.bash hook)"'
_MARKED: Final = re.compile("⟦([^⟧]*)⟧")  # encloses a part that only a shell in the job could tell
_PATTERN: Final = re.compile(r"[*?]|\{[^{}]*(?:,|\.\.)[^{}]*\}|^~")
# Each node's shell has the same value of these variables, unless the file assigns another one.
_OF_THE_JOB: Final = re.compile(r"\$\{?((?!SLURM_)[A-Za-z_]\w*|SLURM_JOB_?ID)\}?")


class NoTrainingError(UsageError):
    """Raised for a script in which no line starts a training."""


@dataclass
class _Script:
    """The parts of a script, collected while its commands are read in order."""

    files: LauncherFiles
    variables: dict[str, str]
    setup: list[str] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    prints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    launch: list[str] = field(default_factory=list)
    line: int = 0  # of the launch line


def read_script(text: str, files: LauncherFiles) -> Pasted:
    """Return the launch line of a script.

    Raises NoTrainingError if no line of the script starts a training program, and NotConvertibleError, with the line,
    if the script is not in the grammar.
    """
    header = header_of(text)
    options = header.for_conversion() if header.options else None
    script = _Script(files, header.variables())
    for command in commands_of(text):
        try:
            _read(command, script)
        except UsageError as error:
            raise error if isinstance(error, NotConvertibleError) else refused(command.line, error.message) from None
    if not script.launch:
        hint = "it needs a line that begins with srun, torchrun, accelerate, deepspeed or python"
        raise NoTrainingError("the script starts no training that can be read", hint)
    try:
        pasted = read_words(script.launch, files, options)
    except UsageError as error:
        raise refused(script.line, _MARKED.sub(r"\1", error.message), error.hint) from None
    kept = [*pasted.args, *pasted.env.values(), pasted.target, pasted.python or "", *(pasted.slurm or {}).values()]
    if found := _MARKED.search("\0".join(kept)):
        said = f"only a shell in the job could tell {found[1]}, and orch starts programs without a shell"
        raise refused(script.line, said)
    pasted.env, pasted.setup = {**script.exported, **pasted.env}, [*script.setup, *pasted.setup]
    if script.prints:
        script.notes.append(f"lines that only print were left out: {', '.join(dict.fromkeys(script.prints))}")
    pasted.notes = [*script.notes, *pasted.notes]
    return pasted


def _read(command: Command, script: _Script, *, inner: bool = False) -> None:
    """Read one command, of the file itself or of the text of `srun bash -c TEXT` (`inner`)."""
    parts, line = list(command.words), command.line
    if parts and [part.text for part in parts[-1] if part.text] == ["$@"]:
        parts.pop()  # sbatch and bash get these arguments on the command line, and so does orch submit
        script.notes.append('"$@": give the arguments of the file to orch submit, after --')
    split = [word for part in parts for word in _expanded(part, script)]
    program = program_of(split)
    head = _name(program)
    step = program_of(srun_options(program[1:])[1]) if head == "srun" else program
    name = _name(step)
    if head == "cd" and command.source.endswith(("$SLURM_SUBMIT_DIR", '$SLURM_SUBMIT_DIR"')):
        return  # the ranks start in the copy of this folder
    if split[:1] == ["export"] or (split and not program and name != "env"):
        _assign(command, script, exports=split[0] == "export")
    elif head == "set" and all(map(_SETS.fullmatch, split)):
        return
    elif (name in _PRINTS or step[:2] == ["scontrol", "show"] or step[1:] == ["--version"]) and not command.writes:
        script.prints.append(str(line))
    elif head in ("exit", "wait") and script.launch:
        return
    elif head == "srun" and (name in SHELLS or name.endswith(".sh")) and not inner:
        _through_shell(step, split[: len(split) - len(step)], command, script)
    elif is_launcher(step[0] if step else "") or (head == "srun" and name not in _SETUP):
        if script.launch:
            raise refused(line, f"it starts a second program, after line {script.line}: a job starts one")
        script.launch, script.line = split, line
    elif script.launch:
        raise refused(line, f"'{command.source[:60]}' would run after the program, and a job starts one program")
    elif name in _SETUP and not command.writes:
        _set_up(step, command, script, by_srun=head == "srun")
    else:
        raise refused(line, f"'{command.source[:60]}' is neither a plain set-up command nor a launch line")


def _name(program: Sequence[str]) -> str:
    return (PurePosixPath(program[0]).name or program[0]) if program else ""


def _set_up(step: list[str], command: Command, script: _Script, *, by_srun: bool) -> None:
    included = step[1] if step[0] in ("source", ".") and len(step) > 1 else "/"
    if not re.match(r"[/~⟦]", included) and not os.path.exists(script.files.cwd / included):
        raise refused(
            command.line, f"{included}: there is no such file in this folder", "start orch init in its folder"
        )
    if step[:2] in (["conda", "activate"], ["mamba", "activate"]) and not any("conda" in s for s in script.setup):
        script.setup.append(_CONDA_HOOK)
    source = shlex.join(step) if by_srun else command.source
    script.setup.append(_for_each_node(source, command.words, step, command.line, script))


def _through_shell(step: list[str], before: Sequence[str], command: Command, script: _Script) -> None:
    """Read the commands of `srun bash -c TEXT` or of a script beside the file, which knows the exported variables."""
    named = step[-1] if step[-1].endswith(".sh") and len(step) == 1 + (_name(step) in SHELLS) else ""
    if not named and (len(step) != 3 or not re.fullmatch(r"-[elux]*c", step[1])):
        raise refused(command.line, f"'{shlex.join(step)[:60]}' is not converted")
    text = script.files.script(named) if named else step[2]
    if text is None:
        raise refused(command.line, f"{named}: there is no such file in this folder", "start orch init in its folder")
    known, had, setup = script.variables, script.launch, len(script.setup)
    script.variables = {name: value for name, value in known.items() if name in script.exported or "SLURM_" in name}
    script.launch = []
    try:
        for each in commands_of(text, 1 if named else command.line):
            _read(each, script, inner=True)
    except UsageError as error:
        raise refused(command.line, f"{named}, {error.message}" if named else error.message, error.hint) from None
    script.variables = known
    if had and (script.launch or len(script.setup) > setup):
        raise refused(command.line, f"it starts a second program, after line {script.line}: a job starts one")
    script.launch = had or ([*before, *script.launch] if script.launch else [])


def _assign(command: Command, script: _Script, *, exports: bool) -> None:
    """Record the assignments in a command. Exported variables become variables of the job. If only a shell can compute
    the value, and each node's shell computes the same value, the command becomes a set-up line.
    """
    for word in command.words[exports:]:
        found = re.match(r"([A-Za-z_]\w*)=", word[0].text if word[0].kind == "text" else "")
        name = found[1] if found else word[0].text
        if found:
            rest = (Part("text", word[0].text[found.end() :], word[0].quoted), *word[1:])
            script.variables[name] = "".join(_expanded(rest, script, splits=False))
            if rest[-1].kind == "array":
                items = [each for c in commands_of(rest[-1].text) for w in c.words for each in _expanded(w, script)]
                if not re.search(r"\s|⟦", "".join(items)):
                    script.variables[f"{name}[@]"] = script.variables[f"{name}[*]"] = " ".join(items)
        value = script.variables.get(name)
        if value is None:
            raise refused(command.line, f"'{command.source[:60]}' is not converted")
        if set_by_orch(name) or name == "SRUN_CPUS_PER_TASK" or not (exports or name in script.exported):
            continue
        if name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
            raise refused(command.line, f"the export of {name} is not converted")
        script.exported[name] = value
        if _MARKED.search(value):
            del script.exported[name]
            text = _for_each_node(command.source, [*command.words], ["⟦"], command.line, script)
            script.setup += [] if text in script.setup else [text]


def _for_each_node(source: str, parts: Sequence[tuple[Part, ...]], split: list[str], line: int, script: _Script) -> str:
    """Return the line of a shell that does the same on each node. Raises NotConvertibleError if the nodes would get
    different values, or values that no longer have a meaning.
    """
    replaced = [part.text for word in parts for part in word if part.kind != "text"]
    if not any("⟦" in word for word in split):
        return shlex.join(split) if replaced else source
    for text in replaced:
        name = _OF_THE_JOB.fullmatch(text)
        own = name and name[1] in script.variables and not re.search(rf"\b{name[1]}=", source)
        if not _HOOK.fullmatch(text) and (name is None or own):
            raise refused(line, f"only a shell on the first node could tell {text}, and each node would get its own")
    return source


def _expanded(word: tuple[Part, ...], script: _Script, *, splits: bool = True) -> list[str]:
    """Return the words that a shell makes of a word. Parts that only a shell in the job could tell are marked."""
    found = [""]
    for part in word:
        value = f"⟦{part.text.strip('⟦⟧')}⟧"
        if part.kind == "text" and (part.quoted or not splits or not _PATTERN.search(part.text)):
            found[-1] += part.text
            continue
        if part.kind == "variable":
            named, _, default = part.text.removeprefix("$").strip("{}").partition(":-")
            value = script.variables.get(named) or (default and script.files.environ.get(named, default)) or value
        elif product := re.fullmatch(r"\$\(\(\s*\$?\{?(\w+)\}?\s*\*\s*\$?\{?(\w+)\}?\s*\)\)", part.text):
            known = [script.variables.get(each, each) for each in product.groups()]
            value = str(int(known[0]) * int(known[1])) if all(re.fullmatch(r"\d{1,9}", k) for k in known) else value
        is_one = part.quoted and not part.text.endswith("[@]}")
        pieces = [value] if is_one or not splits or "⟦" in value else re.split(r"[ \t\n]+", value)
        found = [*found[:-1], found[-1] + pieces[0], *pieces[1:]]
    return [each for each in found if each or any(part.quoted for part in word)]
