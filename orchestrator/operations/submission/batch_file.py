"""Makes a job of a batch file that runs as it is: the file is one program on the first node of a scheduler's job."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import UsageError
from orchestrator.protocol.reading import read_regular
from orchestrator.protocol.schedulers import BATCH_PID
from orchestrator.specs.batch_header import MARKS, Header, header_of, refused, words_for_qsub
from orchestrator.specs.documents.loader import document_of
from orchestrator.specs.documents.yaml_source import Document
from orchestrator.specs.sbatch_options import seconds_in

MOST_BYTES: Final = 1 << 20
# Options for which orch has its own values: names, logs and the working folder.
_REPLACED: Final = ("job-name", "output", "error", "open-mode", "parsable", "quiet", "verbose")
_QSUB_REPLACED: Final = {
    "sge": ("N", "o", "e", "j", "S", "V", "cwd", "terse", "notify", "r"),
    "pbs": ("N", "o", "e", "j", "S", "V", "k", "r"),
}  # fmt: skip
_QSUB_REFUSED: Final = {
    "sge": {"t": "orch submit --sweep starts a run for each value", "wd": "the file starts in a copy of its folder",
            "sync": "orch wait does the same", "b": "the file itself is the program", "now": "orch wait does the same"},
    "pbs": {"J": "orch submit --sweep starts a run for each value", "d": "the file starts in a copy of its folder",
            "I": "orch shell opens a shell on a node", "W block=true": "orch wait does the same"},
}  # fmt: skip


def document_of_file(name: str) -> Document:
    """Return the job that runs a batch file as it is.

    Raises UsageError, with the line, if the file is for no scheduler or asks for something that orch can't give it.
    """
    path = Path(name).absolute()
    try:
        text = read_regular(os.path.realpath(path), MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{name} can't be read: {reason}", "give the path of a batch file") from error
    try:
        return document_of(_fields(text, path), path.parent, name)
    except UsageError as error:
        raise UsageError(f"{name}, {error.message}", error.hint) from None


def _fields(text: str, path: Path) -> dict[str, Any]:
    if "\r" in text:
        number = text.count("\n", 0, text.index("\r")) + 1
        raise refused(number, "it ends with a Windows line end, which neither bash nor sbatch accepts", "run dos2unix")
    found = [kind for kind, mark in MARKS.items() if re.search(rf"^{re.escape(mark)}\s+-", text, re.MULTILINE)]
    if len(found) != 1:
        said = f"it has options of {' and '.join(MARKS[kind] for kind in found) or 'no scheduler'}"
        hint = f"write a job from it: orch init {path.stem} {path.name}"
        raise refused(1, said, hint if not found else "keep the lines of one scheduler")
    kind, command = found[0], [*_shell_of(text, found[0]), path.name]
    if kind == "slurm":
        header = header_of(text)
        header.check()
        options = [_spelled(header, option) for option in header.options if option not in _REPLACED]
        if header.options.get("signal", "").partition(":")[0] in ("B", "RB", "BR"):
            keep = f'echo $$ >"$ORCH_RUN_DIR/{BATCH_PID}"; exec "$@"'  # the batch shell sends this process the signal
            command = ["sh", "-c", keep, "sh", *command]
        again, never = "requeue" in header.options, "no-requeue" in header.options
        limit = seconds_in(header.options.get("time", ""))
        called = header.options.get("job-name", "")
    else:
        options = _qsub_options(text, kind)
        given = [pair for _, words in words_for_qsub(text, kind) for pair in pairwise(words)]
        again, never = bool({("-r", "y"), ("-r", "yes")} & {*given}), bool({("-r", "n"), ("-r", "no")} & {*given})
        called = dict(given).get("-N", "")
        limit = _limit_of(options)
    # The file starts its ranks itself, so orch starts it again only if the scheduler does, or if the file asks for it.
    retry = {"user_error": 0, "infra": 0, "preempted": 0 if never else None, "timeout": None if again else 0}
    title = re.sub(r"[^A-Za-z0-9_.-]+", "-", called or path.stem).lstrip("_.-")[:40] or "job"
    return {
        "name": title, "command": command, "batch": {"scheduler": kind, "options": options}, "retry": retry,
        **({"resources": {"time": f"{limit}s"}} if limit else {}),
    }  # fmt: skip


def _shell_of(text: str, kind: str) -> list[str]:
    """Return the words of the command that runs the file: the shell in an option of qsub, or the file's first line."""
    first, options = text.partition("\n")[0], dict[str, str]()
    if kind != "slurm":
        options = dict(pair for _, words in words_for_qsub(text, kind) for pair in pairwise(words))
    if re.fullmatch(r"/[^@,\s]+", options.get("-S", "")):
        return [options["-S"]]
    return (first.removeprefix("#!").split() if first.startswith("#!") else []) or ["/bin/sh"]


def _spelled(header: Header, name: str) -> str:
    return f"--{name}={header.options[name]}" if header.options[name] else f"--{name}"


def _limit_of(options: list[str]) -> int | None:
    """Return the time limit among the options of qsub in seconds; None if there is none."""
    found = re.search(r"\b(?:h_rt|walltime)=([\d:]+)", " ".join(options))
    return (
        None
        if found is None
        else sum(int(number or 0) * 60**power for power, number in enumerate(reversed(found[1].split(":"))))
    )


def _qsub_options(text: str, kind: str) -> list[str]:
    """Return the options of PBS or Grid Engine in a file, without those that orch replaces."""
    kept = list[str]()
    for line, words in words_for_qsub(text, kind):
        rest = list(words)
        while rest:
            word = rest.pop(0)
            name = word.removeprefix("-")
            if reason := _QSUB_REFUSED[kind].get(name) or _QSUB_REFUSED[kind].get(" ".join([name, *rest[:1]])):
                raise refused(line, f"{word} is refused: {reason}", "remove the option from the file")
            values = list[str]()
            while rest and (not rest[0].startswith("-") or rest[0][1:].isdigit()):  # such as -p -100
                values.append(rest.pop(0))
            if name not in _QSUB_REPLACED[kind]:
                kept += [word, *values]
    return kept
