"""Reads the options in the comments at the head of a batch file (#SBATCH, #PBS, #$).

This module has no side effects.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.specs.sbatch_options import CONVERTED, NEWEST, ONLY_AS_IT_IS, OPTIONS, REFUSED, gpus_in, seconds_in

MARKS: Final = {"slurm": "#SBATCH", "pbs": "#PBS", "sge": "#$"}
_FLAGS: Final = """
    contiguous disable_status exact exclusive get_user_env hold ignore_pbs kill_on_invalid_dep no_kill no_requeue
    overcommit oversubscribe parsable quiet reboot requeue spread_job stepmgr test_only use_min_nodes verbose wait x11
"""
SHORT: Final = {
    "A": "account", "B": "extra_node_info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "H": "hold",
    "J": "job_name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet",
    "S": "core_spec", "W": "wait", "a": "array", "b": "begin", "c": "cpus_per_task", "d": "dependency", "e": "error",
    "i": "input", "k": "no_kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip
AS_IT_IS: Final = "change the line, or let orch run the file as it is: orch submit FILE -p PROFILE"


class NotConvertibleError(UsageError):
    """Raised for a line of a batch file that orch neither converts nor passes on."""


def refused(line: int, why: str, hint: str = "") -> NotConvertibleError:
    """Return the error for a line of a file."""
    return NotConvertibleError(f"line {line}: {why}", hint or AS_IT_IS)


def options_in(
    words: Sequence[str], flags: frozenset[str], program: str, short: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return (the options at the start of `words`, the words after them). In the names of options, dashes become
    underscores. `flags` are the options without a value. Raises UsageError if a value is missing.
    """
    short, rest = short or {}, list(words)
    found: dict[str, str] = {}
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word, rest = rest[0], rest[1:]
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and short and name[:1] in short and name[1:]:  # such as -N4, -pgpu
            name, equals, value = name[0], "=", word[2:].removeprefix("=")
        name = short.get(name, name).replace("-", "_")
        if equals:
            found[name] = value
        elif name in flags:
            found[name] = ""
        elif rest:
            found[name], rest = rest[0], rest[1:]
        else:
            raise UsageError(f"{program} {word}: its value is missing")
    return found, rest[1:] if rest[:1] == ["--"] else rest


@dataclass
class Header:
    """The #SBATCH lines of a file. The options' names are those of sbatch; each has its value and its line."""

    options: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """Return the number that an option sets; None if the option is missing or has another value."""
        text = self.options.get(name, "")
        return int(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else None

    def nodes(self) -> int | None:
        """Return the number of nodes; None if Slurm decides it."""
        total, each = self.number("ntasks"), self.number("ntasks-per-node")
        if "nodes" in self.options:
            least, _, most = self.options["nodes"].partition("-")
            return self.number("nodes") or (int(least) if least == most and least.isdecimal() else None)
        if total and each and total % each == 0:
            return total // each
        return 1 if total in (None, 1) else None

    def variables(self) -> dict[str, str]:
        """Return the variables of a batch script that these lines decide."""
        nodes, each = self.nodes(), self.number("ntasks-per-node")
        total = self.number("ntasks") or (nodes * each if nodes and each else None)
        gpus = self.gpus()
        found = {
            "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": total, "SLURM_NPROCS": total,
            "SLURM_NTASKS_PER_NODE": each, "SLURM_CPUS_PER_TASK": self.options.get("cpus-per-task"),
            "SLURM_GPUS_PER_NODE": self.options.get("gpus-per-node"), "SLURM_GPUS_ON_NODE": gpus,
            "SLURM_GPUS": self.options.get("gpus"), "SLURM_JOB_NAME": self.options.get("job-name"),
            "SLURM_JOB_PARTITION": self.options.get("partition"),
        }  # fmt: skip
        return {name: str(value) for name, value in found.items() if value is not None} if self.options else {}

    def gpus(self) -> int | None:
        """Return the number of GPUs on each node; None if these lines do not decide it."""
        text = next(
            (self.options[name] for name in ("gpus-per-node", *self._of_each_node()) if name in self.options), None
        )
        if text is not None:
            count = text.rpartition(":")[2]
            return int(count) if re.fullmatch(r"[1-9][0-9]{0,3}", count) else None
        return gpus_in(self.options.get("gres", "")) or None

    def _of_each_node(self) -> tuple[str, ...]:
        """Return the options that set the GPUs of a node, because there is one node or one task on each node."""
        nodes, total = self.nodes(), self.number("ntasks")
        one_task = (self.number("ntasks-per-node") or (total / nodes if nodes and total else 1)) == 1
        return (*(("gpus",) if nodes == 1 else ()), *(("gpus-per-task",) if one_task else ()))

    def for_conversion(self) -> dict[str, str]:
        """Return the options for `orch init`, with underscores in their names.

        Raises NotConvertibleError, with the line, if an option can't be converted exactly.
        """
        self.check()
        for name, value in self.options.items():
            is_usual = name == "signal" and re.fullmatch(r"(R:)?(SIG)?USR2@[0-9]+", value)
            if name in ONLY_AS_IT_IS and not is_usual and name not in self._of_each_node():
                raise refused(self.lines[name], f"--{name} is not converted: {ONLY_AS_IT_IS[name]}")
            if not _reads(name, value):
                raise refused(self.lines[name], f"--{name}={value} can't be read as a field of a profile")
        nodes, each, total = self.nodes(), self.number("ntasks-per-node"), self.number("ntasks")
        for name in ("ntasks", "ntasks-per-node"):
            if name in self.options and self.number(name) is None:
                raise refused(self.lines[name], f"--{name} {self.options[name]} is not a number of at least 1")
        if nodes is None:
            name = "nodes" if "nodes" in self.options else "ntasks"
            why = f"--{name}={self.options[name]} leaves the number of nodes to Slurm, and a job has a fixed number"
            raise refused(self.lines[name], why, "write --nodes=N; or let orch run the file as it is")
        if total and (total % nodes or (each and each * nodes != total)):
            raise refused(self.lines["ntasks"], f"{total} tasks are not the same number on each of {nodes} nodes")
        if "gpus" in self.options and nodes > 1:
            raise refused(self.lines["gpus"], "--gpus is for all nodes together; write --gpus-per-node")
        found = {name.replace("-", "_"): value for name, value in self.options.items()}
        for name in self._of_each_node():
            if (value := found.pop(name.replace("-", "_"), "")) and self.gpus():
                found["gpus_per_node"] = value
        return {**found, "nodes": str(nodes)}

    def check(self) -> None:
        """Raise NotConvertibleError, with the line, if orch can neither convert nor pass on an option."""
        for name, line in self.lines.items():
            if name in REFUSED:
                raise refused(line, f"--{name} is refused: {REFUSED[name]}", "remove the option from the file")
            if name not in OPTIONS and name not in CONVERTED:
                raise refused(line, f"sbatch has no option --{name} up to Slurm {NEWEST}", "correct the line")


def header_of(text: str) -> Header:
    """Return the #SBATCH lines of a file. Raises NotConvertibleError if sbatch would not read one of them, or if the
    file is for another scheduler or another shell.
    """
    header, begun = Header(), False
    for number, line in enumerate(text.split("\n"), 1):
        if number == 1 and line.startswith("#!") and not re.search(r"\b(ba|da|k|z)?sh\b", line):
            raise refused(1, f"'{line[:60]}' is not a shell's file")
        if line.startswith(MARKS["slurm"]):
            if begun:
                raise refused(number, "sbatch does not read this line, because a command stands before it")
            options = _words(line.removeprefix(MARKS["slurm"]), number)
            if options[:1] == ["hetjob"]:
                raise refused(number, "jobs with several components are neither converted nor run", "use plain sbatch")
            try:
                found, rest = options_in(options, frozenset(_FLAGS.split()), "#SBATCH", SHORT)
            except UsageError as error:
                raise refused(number, error.message, "correct the line") from None
            if rest:
                raise refused(number, f"'{rest[0]}' is not an option of sbatch", "correct the line")
            for name, value in found.items():
                spelled = {"tasks_per_node": "ntasks_per_node", "cpus": "cpus_per_task"}.get(name, name)
                header.options[spelled.replace("_", "-")] = value
                header.lines[spelled.replace("_", "-")] = number
        elif re.match(r"#PBS\s|#\$\s+-", line):
            raise refused(number, "only #SBATCH lines are converted", "run it as it is: orch submit FILE -p PROFILE")
        begun = begun or bool(line.strip() and not line.lstrip().startswith("#"))
    return header


def _reads(name: str, value: str) -> bool:
    """Return whether a field of a profile can have the value of this option."""
    if name == "time":
        return seconds_in(value) is not None
    if name == "mem":
        return re.fullmatch(r"[0-9]+(\.[0-9]+)?[KMGT]?B?", value) is not None
    if name == "cpus-per-task":
        return re.fullmatch(r"[1-9][0-9]{0,4}", value) is not None
    return name != "gpus-per-node" or re.fullmatch(r"([\w.-]+:)?[1-9][0-9]{0,3}", value) is not None


def _words(text: str, number: int) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise refused(number, str(error).lower(), "check the quotes of the line") from None


def words_for_qsub(text: str, kind: str) -> list[tuple[int, list[str]]]:
    """Return (line, words) of each line with options of PBS or Grid Engine."""
    mark, found = MARKS[kind], list[tuple[int, list[str]]]()
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(rf"{re.escape(mark)}\s", line):
            found.append((number, _words(line.removeprefix(mark), number)))
        elif kind == "pbs" and line.strip() and not line.lstrip().startswith("#"):
            break  # PBS reads no line after the first command; Grid Engine reads all of them
    return found
