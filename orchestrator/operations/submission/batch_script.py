"""Parses a batch or shell script. Returns its #SBATCH lines, the commands that set up the environment, and one
launch line.

This module has no side effects.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.operations.submission.launch_line import Pasted, read_allocation, read_command, words
from orchestrator.operations.submission.launcher_files import LauncherFiles
from orchestrator.operations.submission.shell_lines import Command, commands_of
from orchestrator.specs.environment import set_by_orch
from orchestrator.specs.wrappers import ASSIGNMENT, program_of

_PROGRAMS: Final = words("srun torchrun accelerate accelerate-launch deepspeed")
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*)?")
_SETUP: Final = words("module ml source . conda mamba micromamba eval ulimit spack")
_IGNORED: Final = words(
    "set echo date hostname mkdir nvidia-smi pwd sleep wait exit scontrol true env printenv trap cat ls disown done fi "
    "esac which }"
)
_KEYWORDS: Final = re.compile(r"^(?:(?:then|do|else|\{|!|if|while|until)(?:\s+|$)|\(\s*)+")
# Quoted text is matched first and a single quote last. No text matches in two ways, so the search ends soon.
_PIECE: Final = r"""\"[^\"]*\"|'[^']*'|[^\s|;&<>"']|\"(?![^\"]*\")|'(?![^']*')"""
_WORD: Final = rf"(?:{_PIECE})+"
_REDIRECTIONS: Final = re.compile(rf"\s*(\|&?\s*tee\b[^|;]*|[12&]?>>?\s*&?{_WORD}|<\s*{_WORD}|[2&]>&1|&|;|\))\s*$")
MOST_REDIRECTIONS: Final = 8
_ALL_ARGUMENTS: Final = re.compile(r"""(?<=\s)"?\$(?:[@*]|\{[@*](?::\d+)?\})"?(?=\s|$)""")
_OWN_FOLDER: Final = re.compile(r"""\$\(\s*dirname\s+(["']?)(?:\$0|\$\{0\}|\$\{?BASH_SOURCE(?:\[0\])?\}?)\1\s*\)""")
_DEFAULT: Final = re.compile(r"\$\{\w+:?-([^${}]*)\}")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_RUN_BY_SHELL: Final = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`"
_SUBSTITUTION: Final = re.compile(_RUN_BY_SHELL)
_ASSIGNMENT: Final = re.compile(rf"([A-Za-z_]\w*)=((?:{_RUN_BY_SHELL}|{_PIECE})*)\s+")
_CONDA_HOOK: Final = 'eval "$(conda shell.bash hook)"'
_OF_ARRAY: Final = re.compile(r"\s(--[\w-]+)[= ]\"?\$\{?SLURM_ARRAY_TASK_ID\}?\"?(?=\s|$)")


class NoTrainingError(UsageError):
    """Raised for a script in which no line starts a training."""


@dataclass
class _Script:
    """The parts of a script, collected while its commands are read in order."""

    folder: str  # the script's folder, as the user named it
    options: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    launch: str = ""


def read_script(text: str, name: str = "", files: LauncherFiles | None = None) -> Pasted:
    """Parse the script called `name`.

    Raises NoTrainingError if no line of the script starts a training program, and UsageError if a quote is not closed.
    """
    script = _Script(posixpath.dirname(name) or ".")
    for command in commands_of(text):
        _read(command, script)
    if not script.launch:
        hint = "it needs a line that begins with srun, torchrun, accelerate, deepspeed or python"
        raise NoTrainingError("the script starts no training that can be read", hint)
    line = _without_array(script.launch, script.options, script.notes)
    pasted = read_command(line, files)
    pasted.env = {**script.exported, **pasted.env}
    pasted.setup, pasted.notes = [*script.setup, *pasted.setup], [*script.notes, *pasted.notes]
    if script.options:
        read_allocation(script.options, pasted)
    return pasted


def _read(command: Command, script: _Script) -> None:
    if command.text.startswith("#SBATCH"):
        script.options += _split(Command(command.line, command.text.removeprefix("#SBATCH")), comments=True)
        return
    text = _OWN_FOLDER.sub(script.folder, _KEYWORDS.sub("", command.text))
    split = _split(Command(command.line, text))
    program = program_of(split)
    head = posixpath.basename(program[0]) if program else ""
    if split[:1] in (["export"], ["declare"], ["typeset"]) or not program:
        _assign(split, text, script)
    elif head in ("cd", "pushd", "popd"):
        note = f"'{text[:60]}' was left out: ranks start in a copy of the job file's folder (code.dir)"
        script.notes.append(note)
    elif head in _SETUP:
        script.setup += [*_conda_hook(program, script.setup), text]
    elif (head in _PROGRAMS or _PYTHON.fullmatch(head)) and not script.launch:
        script.launch = _launch_line(text, script)
    elif head not in _IGNORED:
        script.notes.append(f"'{text[:60]}' was left out: a job starts one program, by one line")


def _split(command: Command, *, comments: bool = False) -> list[str]:
    """Return a command's words. A `$(...)` is not split."""
    if "\x01" in command.text:
        raise UsageError(f"line {command.line} contains the control character \\x01", "remove the character")
    inner = list[str]()

    def hide(found: re.Match[str]) -> str:
        inner.append(found[0])
        return f"\x01{len(inner) - 1}\x02"

    try:
        split = shlex.split(_SUBSTITUTION.sub(hide, command.text), comments=comments)
    except ValueError as error:
        raise UsageError(f"line {command.line}: {str(error).lower()}", "check the quotes of the line") from None
    return [re.sub(r"\x01(\d{1,6})\x02", lambda found: inner[int(found[1])], word) for word in split]


def _assign(split: list[str], text: str, script: _Script) -> None:
    """Record the assignments in a command.

    Exported variables become variables of the job. If only a shell can compute the value, the command becomes a set-up
    line.
    """
    is_exported = split[:1] == ["export"] or "-x" in split[:2]
    for word in split:
        found = ASSIGNMENT.fullmatch(word)
        if found is None or set_by_orch(found[1]):  # orch sets MASTER_ADDR and similar variables
            continue
        value = _filled_in(found[2], script.variables)
        if not re.search(r"[$`]", value):
            script.variables[found[1]] = value
            if is_exported:
                script.exported[found[1]] = value
        elif is_exported and text not in script.setup:
            script.setup.append(text)


def _filled_in(text: str, variables: dict[str, str]) -> str:
    """Return a text in which the script's own variables and the defaults of `${NAME:-default}` are substituted."""
    text = _DEFAULT.sub(lambda found: found[1], text)
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), text)


def _conda_hook(program: list[str], setup: list[str]) -> list[str]:
    """Return the line that defines conda's shell function; empty if `program` is not conda or if the script has such
    a line.
    """
    activates = program[0] in ("conda", "mamba") and program[1:2] == ["activate"]
    return [_CONDA_HOOK] if activates and not any("conda" in line for line in setup) else []


def _launch_line(line: str, script: _Script) -> str:
    """Return a launch line without redirections, and with the script's variables substituted.

    Assignments in front of the program that need a shell become set-up lines.
    """
    for _ in range(MOST_REDIRECTIONS):
        line = _REDIRECTIONS.sub("", line)
    line = _filled_in(_ALL_ARGUMENTS.sub("", f"{line} "), script.variables).strip()
    while found := _ASSIGNMENT.match(line):
        value = found[2]
        if not re.search(r"[$`]", value):
            break
        script.setup.append(f"export {found[1]}={value}")
        line = line[found.end() :]
    # In `srun bash -c "torchrun ..."` the inner line is the launch line.
    if inner := re.fullmatch(r"(srun .*?)\s*(?:bash|sh) -l?c (['\"])(.*)\2", line):
        script.notes.append("the shell between srun and the program was left out")
        line = f"{inner[1]} {inner[3]}"
    return line


def _without_array(line: str, options: list[str], notes: list[str]) -> str:
    """Remove options with the value $SLURM_ARRAY_TASK_ID from a launch line, and add a note about each."""
    array = next(
        (
            re.fullmatch(r"(?:--array=|-a)?([0-9]+-[0-9]+|[0-9]+(?:,[0-9]+)*)(?:%\d+)?", word)
            for word in _array_words(options)
        ),
        None,
    )
    values = array[1].replace("-", "..") if array else "VALUES"
    for option in dict.fromkeys(_OF_ARRAY.findall(line)):
        notes.append(
            f"'{option} $SLURM_ARRAY_TASK_ID' was left out: orch submit JOB --sweep {option}={values} starts a run for "
            "each value"
        )
    return _OF_ARRAY.sub("", line)


def _array_words(options: list[str]) -> list[str]:
    """Return the values of the option `--array` in the #SBATCH lines, such as `0-9`."""
    return [
        following if word in ("--array", "-a") else word
        for word, following in pairwise([*options, ""])
        if word.startswith(("--array", "-a"))
    ]
