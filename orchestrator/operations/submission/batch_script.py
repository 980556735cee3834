"""A batch or shell script as people have it: #SBATCH lines, what sets up the environment, and one launch line. Pure."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.operations.submission.launch_line import Pasted, read_allocation, read_command, words
from orchestrator.specs.environment import set_by_orch

SUFFIXES: Final = (".sh", ".sbatch", ".slurm", ".job")
"""How the names of such scripts end."""

_LAUNCH = re.compile(
    r"(srun|torchrun|accelerate|accelerate-launch|deepspeed|(\S*/)?python(\d+(\.\d+)*)?|(uv|poetry|pipenv|pdm) run)\b"
)
_SETUP = re.compile(r"(module|ml|source|\.|conda|mamba|micromamba|eval|ulimit|spack) ")
_EXPORT = re.compile(r"(export )?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_OF_ARRAY = re.compile(r"\s(--[\w-]+)[= ]\"?\$\{?SLURM_ARRAY_TASK_ID\}?\"?(?=\s|$)")
_REDIRECTIONS = re.compile(r"\s*(\|\s*tee\b[^|;]*|[12&]?>>?\s*&?[^\s|;&]+|2>&1|&|;)\s*$")
_IGNORED = words("set echo date hostname mkdir nvidia-smi pwd sleep wait exit scontrol true env printenv trap cat ls")


def read_script(text: str) -> Pasted:
    """Take a script apart; UsageError where no line of it starts a training."""
    options: list[str] = []
    setup: list[str] = []
    variables: dict[str, str] = {}
    exported: dict[str, str] = {}
    notes: list[str] = []
    launch: str | None = None
    for line in _lines(text):
        if directive := re.match(r"#SBATCH\s+(.*)", line):
            options += shlex.split(directive[1], comments=True)
        elif line.startswith("#"):
            continue
        elif assignment := _EXPORT.fullmatch(line):
            _assign(assignment, variables, exported, setup)
        elif line.startswith("cd "):
            notes.append(f"'{line}' was left out: ranks start in a copy of the job file's folder (code.dir)")
        elif _SETUP.match(line):
            setup.append(line)
        elif _LAUNCH.match(line) and launch is None:
            launch = line
        elif line.split()[0] not in _IGNORED:
            notes.append(f"'{line[:60]}' was left out: a job starts one program, by one line")
    if launch is None:
        hint = "it needs a line that begins with srun, torchrun, accelerate, deepspeed or python"
        raise UsageError("the script starts no training that can be read", hint)
    pasted = read_command(_without_shell(_without_array(launch, options, notes), variables, notes))
    pasted.env = {**exported, **pasted.env}
    pasted.setup, pasted.notes = setup, [*notes, *pasted.notes]
    if options:
        read_allocation(options, pasted)
    return pasted


def _lines(text: str) -> list[str]:
    """Return the script's lines, continued ones joined, without those that are empty."""
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for each in joined.splitlines() if (line := " ".join(each.split()))]


def _assign(found: re.Match[str], variables: dict[str, str], exported: dict[str, str], setup: list[str]) -> None:
    """Note an assignment: a plain one for later lines, an exported one for the job, what needs a shell as set-up."""
    name, value = found[2], found[3]
    if set_by_orch(name):
        return  # MASTER_ADDR and its like: orch sets them
    if re.search(r"[$`]", value):
        if found[1]:
            setup.append(found[0])
        return
    try:
        variables[name] = " ".join(shlex.split(value))
    except ValueError:
        return
    if found[1]:
        exported[name] = variables[name]


def _without_array(line: str, options: list[str], notes: list[str]) -> str:
    """Return a launch line without the options whose value is the number of a point of a job array."""
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
    """Return the word of the #SBATCH lines that holds the numbers of the array's points."""
    return [
        following if word in ("--array", "-a") else word
        for word, following in pairwise([*options, ""])
        if word.startswith(("--array", "-a"))
    ]


def _without_shell(line: str, variables: dict[str, str], notes: list[str]) -> str:
    """Return a launch line as its program is given it: redirections taken off, the script's variables filled in."""
    while (shorter := _REDIRECTIONS.sub("", line)) != line:
        line = shorter
    line = re.sub(r'\s"?\$[@*]"?', "", line)
    line = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: variables.get(found[1] or found[2], found[0]), line)
    # `srun bash -c "torchrun ..."`: the inner line is the launch line.
    if inner := re.fullmatch(r"(srun .*?)\s*(?:bash|sh) -l?c (['\"])(.*)\2", line):
        notes.append("the shell between srun and the program was left out")
        line = f"{inner[1]} {inner[3]}"
    return line
