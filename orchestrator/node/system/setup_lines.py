"""The profile's setup lines: runs them before a program, and finds the line that failed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

SETUP_FAILED = "orch: setup line"
_SHELL = re.compile(r"orch-setup: (-c: )?line \d+: ")  # the beginning of bash's messages
_SYNTAX = re.compile(_SHELL.pattern + "`")


def after_setup(setup: Sequence[str], argv: Sequence[str], environment: str = "") -> list[str]:
    """Return a command that first runs the profile's setup lines in a shell, and then executes `argv`. Without setup
    lines, return `argv`.

    environment: the folder of a Python environment whose programs come first on PATH.
    """
    if not setup:
        return list(argv)
    folder = shlex.quote(f"{environment}/bin")
    # This line comes after the shell's start files, because they may set PATH.
    within = [f'export PATH={folder}:"$PATH"'] if environment else []
    lines = []
    for number, line in enumerate(setup, start=1):
        words = shlex.quote(f"{SETUP_FAILED} {number} failed: {line}")
        # The trap also reports a line that ends the shell, such as `source` of a file that calls `exit 1`.
        lines += [f"trap {shlex.quote(f'echo {words} >&2')} EXIT", f"{{ {line}\n}} || exit 1"]
    # Standard output carries the launcher's reports, so the setup lines print to standard error, which is its log.
    begin, end = "exec {orch_out}>&1 >&2", 'trap - EXIT\nexec "$@" >&"$orch_out" {orch_out}>&-'
    # bash runs as a login shell, because `module` is a function that /etc/profile.d defines.
    return ["bash", "-lc", "\n".join([begin, *lines, *within, end]), "orch-setup", *argv]


def setup_failure(setup: Sequence[str], tail: Sequence[str]) -> str:
    """Return which setup line failed, with the shell's message from the end of the launcher's log; "" if no line
    failed.
    """
    marks = [index for index, line in enumerate(tail) if line.startswith(f"{SETUP_FAILED} ")]
    if not marks:
        return ""
    number = tail[marks[-1]][len(SETUP_FAILED) :].split()[0]
    said = tail[marks[-1] - 1] if marks[-1] else ""
    if _SYNTAX.match(said):  # this line quotes the script, and the line before it has the message
        said = tail[max(0, marks[-1] - 2)]
    said = _SHELL.sub("", said)
    shell = f": {said}" if said and not said.startswith("orch: ") else ""
    line = setup[int(number) - 1].strip() if number.isdigit() and 0 < int(number) <= len(setup) else ""
    return f"setup line {number} failed: {line.partition(chr(10))[0]}{shell}"
