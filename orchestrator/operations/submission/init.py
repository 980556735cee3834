"""The files that `orch init` writes: a first job and profile, from a launch line, host names or sinfo's output."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from orchestrator.errors import UsageError
from orchestrator.operations.submission.batch_script import read_script
from orchestrator.operations.submission.launch_line import Pasted, job_of, read_command
from orchestrator.operations.submission.launcher_files import LauncherFiles
from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.quantities import duration
from orchestrator.specs.border import valid
from orchestrator.specs.documents.lookup import SHELL_SUFFIXES
from orchestrator.specs.here import submitter_of
from orchestrator.specs.launchers import launcher_in
from orchestrator.specs.profile import SshProfile
from orchestrator.specs.sbatch_options import OPTIONS, gpus_in, seconds_in
from orchestrator.specs.units import size

_SAFE = re.compile(r"-{0,2}[A-Za-z0-9_./][A-Za-z0-9_./+=@%^~-]*")
# Without quotes, orch or another YAML reader would not read these as text.
_NOT_TEXT = re.compile(
    r"(?i)null|true|false|yes|no|on|off|y|n|[-+]?[0-9][0-9_]*(\.[0-9_]*)?(e[-+]?[0-9]+)?|[-+]?\.[0-9_]+(e[-+]?[0-9]+)?"
    r"|0[xo][0-9a-f_]+|[-+]?\.(inf|nan)|[0-9]{4}-[0-9-]+.*|-+|\.+|0b[01_]+"
)
_ACTIVATES = re.compile(r"\bactivate\b|^(module|ml|spack) ")


@dataclass(frozen=True)
class Draft:
    """A job file, the profile that its launch line implies (if any), and notes on what could not be converted."""

    job: str
    profile: str | None
    notes: tuple[str, ...]
    script: str = ""  # the script that the line starts; empty for a module or another program


def text_value(text: str, *, number_is_text: bool = False) -> str:
    """Return a text as a YAML scalar. It is quoted if YAML needs quotes.

    With `number_is_text`, a number is not quoted, because the field's reader takes it as text.
    """
    is_number = number_is_text and re.fullmatch(r"[0-9]{1,15}|[0-9]{1,15}\.[0-9]{1,15}|[0-9]{1,5}e-?[0-9]{1,3}", text)
    if is_number or (_SAFE.fullmatch(text) and not _NOT_TEXT.fullmatch(text)):
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char == " " or (char.isprintable() and not char.isspace()):
        return char
    number = ord(char)
    if char == "\0" or 0xD800 <= number <= 0xDFFF:
        raise UsageError(f"the character {char!r} can't be written to a YAML file", "leave it out of the command")
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def profile_from_hosts(hosts: Sequence[str]) -> str:
    """Return an ssh profile for hosts such as `n[1-3]` or `user@n1:2222`. Raises UsageError for an invalid host."""
    try:
        profile = valid(SshProfile, {"kind": "ssh", "name": "ssh", "hosts": hosts})
    except ValidationError as error:
        message = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
        raise UsageError(f"the hosts can't be read: {message}", "write them like n[1-3] or user@n1:22") from None
    return _lines(
        "# Machines reached over SSH; each needs python3 (3.9 or newer) and torch.",
        "kind: ssh",
        f"hosts: {_flow(hosts)} # {in_words(host.host for host in profile.hosts)}",
        "nproc_per_node: auto # ranks per node; auto: its GPUs, else its cores",
        "# python: ~/venv/bin/python   # the interpreter that has torch; python3 by default",
        "# shared: true                # when all hosts see the same home folder",
    )


def profile_from_sinfo(text: str) -> str:
    """Return a slurm profile from the output of `sinfo -h -o SINFO_FORMAT`. Raises UsageError if it lists no
    partition.
    """
    from orchestrator.backends.slurm.partitions import SINFO_FORMAT, parse_sinfo

    rows = [row for row in parse_sinfo(text) if re.fullmatch(r"[A-Za-z0-9_.+-]+", row.name)]
    if not rows:
        raise UsageError("sinfo's output names no partition", f"expected the output of: sinfo -h -o '{SINFO_FORMAT}'")
    row = next((row for row in rows if row.is_default), rows[0])
    gpus, cores = gpus_in(row.gres), _leading_number(row.cores)
    first = "1h" if row.limit is None or row.limit >= 3600 else f"{max(1, row.limit)}s"
    others = sorted({each.name for each in rows} - {row.name})
    return _lines(
        f"# Partition {row.name}: {row.nodes} nodes of {_comment(row.cores)} cores, {gpus or 'no'} GPUs.",
        "kind: slurm",
        f"partition: {text_value(row.name)}",
        *([f"# other partitions: {', '.join(others)}"] if others else []),
        f"nodes: {min(2, max(1, row.nodes))}",
        f"nproc_per_node: {min(gpus or min(4, cores or 1), 1024)}",
        *([f"gpus_per_node: {gpus}", f"cpus_per_gpu: {max(1, cores // gpus)}"] if gpus else []),
        f"time: {first} # the partition {f'has a limit of {duration(row.limit)}' if row.limit else 'names no limit'}",
        "shared: true # login and compute nodes see the same workdir",
    )


def _leading_number(text: str) -> int:
    found = re.match(r"[0-9]{1,6}", text)
    return int(found[0]) if found else 0


def job_from_command(command: str, name: str | None = None) -> Draft:
    """Return a draft of the job and the profile for a launch line.

    The job's name is `name`, or the program's name if `name` is None. Raises UsageError if the line can't be parsed, or
    if it starts a shell script in this folder that starts a launcher itself.
    """
    folder = Path.cwd()
    pasted = read_command(command, LauncherFiles(folder, os.environ))
    if pasted.kind == "command" and (inside := launcher_in([pasted.target, *pasted.args], folder)):
        hint = "give the line that starts the training; orch starts its ranks itself"
        raise UsageError(
            f"the command starts {inside}, so each rank of orch would start the whole training again",
            f"{hint}: orch init {name or 'NAME'} {inside.text}" if inside.text else hint,
        )
    if pasted.kind == "script" and (submitter := submitter_of(pasted.target, folder)):
        raise UsageError(*submitter)
    return _draft(pasted, name)


def job_from_script(text: str, name: str | None = None, folder: Path | None = None) -> Draft:
    """Return the draft for the text of a batch or shell script in `folder`. Its #SBATCH lines become settings of the
    profile. Raises UsageError if the script can't be converted exactly.
    """
    return _draft(read_script(text, LauncherFiles(folder or Path.cwd(), os.environ)), name)


def script_in(command: Sequence[str]) -> str | None:
    """Return the file in `job.sbatch`, `sbatch job.sbatch` or `bash run.sh`, or None for any other command."""
    words = list(command[1:] if len(command) > 1 and command[0] in ("sbatch", "bash", "sh") else command)
    if len(words) == 1 and (words[0].endswith(SHELL_SUFFIXES) or command[0] == "sbatch"):
        return words[0]
    return None


def _draft(pasted: Pasted, name: str | None) -> Draft:
    notes = list(pasted.notes)
    if any("$" in word for word in (*pasted.args, *pasted.env.values(), pasted.target)):
        shown = ", ".join(word for word in (*pasted.args, *pasted.env.values(), pasted.target) if "$" in word)
        notes.append(f"{shown[:80]}: a '$' is passed on as it is, because orch starts programs without a shell")
    profile = _implied_profile(_activated(pasted), notes)
    script = pasted.target if pasted.kind == "script" else ""
    return Draft(_job(pasted, name), profile, tuple(dict.fromkeys(notes)), script)


def _activated(pasted: Pasted) -> Pasted:
    """Return the launch line with set-up lines that activate its conda environment. Its interpreter is the interpreter
    of the environment that the set-up lines activate.
    """
    if pasted.conda:
        hook = {"conda": "conda shell.bash hook", "micromamba": "micromamba shell hook --shell bash"}[pasted.conda_by]
        lines = [f'eval "$({hook})"', f"{pasted.conda_by} activate {shlex.quote(pasted.conda)}"]
        return replace(pasted, setup=[*pasted.setup, *lines], python=pasted.python or "python")
    if pasted.python is None and pasted.slurm is None and any(map(_ACTIVATES.search, pasted.setup)):
        return replace(pasted, python="python3")  # otherwise a local run would use the submitting shell's interpreter
    return pasted


def _job(pasted: Pasted, name: str | None) -> str:
    lines: list[str] = []
    if pasted.launcher:
        lines.append(f"# Was started by {pasted.launcher}; the numbers of nodes and ranks are the profile's.")
    for key, value in job_of(pasted, name).items():
        lines += _entry(key, value, number_is_text=key in ("env", "retry"))
    return _lines(*lines)


def _entry(key: str, value: Any, *, number_is_text: bool) -> list[str]:
    """Return the lines of one field: a text, a list, or a mapping of these."""
    if isinstance(value, dict):
        inner = [line for name, each in value.items() for line in _entry(name, each, number_is_text=number_is_text)]
        return [f"{key}:", *(f"  {line}" for line in inner)]
    return [f"{key}: {_flow(value) if isinstance(value, list) else text_value(value, number_is_text=number_is_text)}"]


_SLURM_TEXT: Final = ("partition", "account", "qos", "gres", "constraint", "exclude")


def _implied_profile(pasted: Pasted, notes: list[str]) -> str | None:
    if pasted == replace(pasted, slurm=None, nodes=None, nproc=None, python=None, setup=[]):
        return None
    nodes = max(1, min(pasted.nodes or 1, 100_000))
    nproc = min(pasted.nproc, 1024) if isinstance(pasted.nproc, int) else pasted.nproc or "auto"
    values: dict[str, Any] = {"kind": "local", "nodes": nodes, "nproc_per_node": nproc}
    if pasted.python:
        values["python"] = pasted.python
    if pasted.setup:
        values["setup"] = pasted.setup
    if pasted.slurm is not None:
        values |= {"kind": "slurm", "shared": True} | _slurm_values(pasted.slurm)
    elif pasted.hosts:
        values |= {"kind": "ssh", "hosts": pasted.hosts}
    elif nodes > 1:
        notes.append(f"the command does not name its {nodes} nodes; `orch init --host` writes a profile with them")
    return _lines(*(f"{key}: {_value(value)}".replace(": \n", ":\n") for key, value in values.items()))


def _slurm_values(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a profile for options of sbatch. Raises UsageError for a value that no field can have."""
    values: dict[str, Any] = {name: options[name] for name in _SLURM_TEXT if options.get(name)}
    for name in ("gpus_per_node", "cpus_per_task"):
        if text := options.get(name):
            if re.fullmatch(r"[1-9][0-9]{0,4}", text):
                values[name] = int(text)
            elif name == "gpus_per_node" and re.fullmatch(r"[\w.-]+:[1-9][0-9]{0,4}", text):
                values["gres"] = ",".join(filter(None, [options.get("gres"), f"gpu:{text}"]))
            else:
                raise _not_read(name, text)
    if text := options.get("time"):
        if (limit := seconds_in(text)) is None:
            raise _not_read("time", text)
        values["time"] = f"{limit}s"
    if text := options.get("mem"):
        values |= _memory(text)
    if "container_image" in options:
        values["runtime"] = "pyxis"
    names = {name.replace("_", "-"): value or True for name, value in options.items()}
    rest = {name: names[name] for name in sorted(names) if name in OPTIONS and name != "mem"}
    return values | ({"sbatch": {**values.pop("sbatch", {}), **rest}} if rest else {})


def _not_read(name: str, text: str) -> UsageError:
    return UsageError(f"--{name.replace('_', '-')} {text} can't be read", "write the value as a plain number")


def _memory(text: str) -> dict[str, Any]:
    """Return the fields of a profile for a memory size of Slurm, in which a bare number is in megabytes. The size 0,
    which means all memory, becomes an option of sbatch.
    """
    try:
        return {"mem": f"{text}M" if text.isdecimal() else text} if size(text) else {"sbatch": {"mem": "0"}}
    except ValueError:
        raise _not_read("mem", text) from None


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"\n  - {text_value(each)}" for each in value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{text_value(k)}: {_value(v)}' for k, v in value.items())}}}"
    return text_value(value) if isinstance(value, str) else str(value).lower()


def _flow(items: Iterable[str]) -> str:
    """Return a YAML list. It is on one line if the line is short enough."""
    shown = [text_value(item, number_is_text=True) for item in items]
    line = f"[{', '.join(shown)}]"
    return line if len(line) <= 90 else "\n" + "\n".join(f"  - {item}" for item in shown)


def _comment(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9:+-]", "", text) or "unknown"


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"
