"""The Python interpreters of a machine: which of them runs orch, and what an interpreter says about itself.

`first_python` has the order in which interpreters are tried. orch's server on a host or a login node, its agents there
and the commands that look into a run all use the interpreter that this order finds.
"""

from __future__ import annotations

import glob
import os
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

from orchestrator.node.system.setup_lines import after_setup, setup_failure
from orchestrator.node.system.shortages import shortage
from orchestrator.protocol.json_text import parse_json

MIN_PYTHON = (3, 9)
ASK_SECONDS = 30.0
LOGIN_SECONDS = 10  # for the start files of a login shell
# Folders of interpreters that may not be on PATH. A login shell adds them, but SSH runs a command without login shell.
PLACES = (
    "/usr/bin", "/usr/local/bin", "~/.local/bin", "~/.pyenv/versions/*/bin", "~/.local/share/uv/python/*/bin",
    "/opt/*/bin", "/opt/python/*/bin", "~/*conda*/bin", "~/*conda*/envs/*/bin", "~/*forge*/bin", "~/*forge*/envs/*/bin",
)  # fmt: skip

# Each of these texts is one line without `!`, a backslash before a quote, or a single quote, so that every login shell
# passes it on unchanged. _JUDGE also runs on Python 2 and 3.6. It prints its first argument and the version if the
# interpreter is too old.
TOO_OLD = 66  # the exit code of an interpreter that is too old
_JUDGE = (
    f"import sys; v = sys.version_info[:2]; o = v < {MIN_PYTHON}; t = o and len(sys.argv[1]) > 4; t and "
    "sys.stdout.write(sys.argv[1] + chr(32) + chr(46).join(map(str, v)) + chr(32) + sys.argv[2] + chr(10)); "
    f"sys.exit(o and {TOO_OLD} or 0)"
)
_AFTER_SETUP = f'"$3" -E -S -c "$1" "$2" "$3" 2>/dev/null || exit {TOO_OLD}; shift 2; exec "$@"'
_LOGIN_PATH = 'exec -a "-${SHELL##*/}" "$SHELL" -c "$0"'
_PRINT_PATH = 'sh -c \'printf "\\n%s" "$PATH"\''
_PATTERNS = " ".join(place.replace("~", '"$HOME"') for place in PLACES)
_FIND = (
    'b=$1 n=$2 s=$(printf %b "$3"); shift 3; j="' + _JUDGE + '"; '
    'ok() { "$1" -E -S -c "$j" "$b old" "$1" 2>/dev/null; }; '
    'case $n in "~/"*) n=$HOME/${n#??};; esac; '
    'ok python3 && exec python3 "$@"; '
    'if [ -n "$s" ]; then bash -lc "$s" orch-setup sh -c "$0" sh "$j" "$b old" "${n:-python3}" "$@"; c=$?; '
    f"case $c in 1|2|{TOO_OLD}|126|127) ;; *) exit $c;; esac; "
    'elif [ -n "$n" ]; then ok "$n" && exec "$n" "$@"; fi; '
    f"p=$(timeout {LOGIN_SECONDS} bash -c {shlex.quote(_LOGIN_PATH)} {shlex.quote(_PRINT_PATH)} </dev/null 2>/dev/null "
    '| tail -n 1); [ -n "$p" ] && f=$(PATH=$p; command -v python3) && ok "$f" && exec "$f" "$@"; '
    f"for d in {_PATTERNS}; do for f in $d/python3 $d/python3.[0-9] $d/python3.[0-9][0-9]; do "
    '[ -x "$f" ] && ok "$f" && exec "$f" "$@"; done; done; exit 127'
)


def first_python(argv: Sequence[str], python: str | None, setup: Sequence[str], mark: str = "") -> list[str]:
    """Return a command for a shell of a machine that runs `PYTHON ARGV` with the first interpreter that is new enough:

    1. `python3` on the PATH of the command;
    2. `python`, or python3 if that is None, after the setup lines;
    3. python3 on the PATH of the user's login shell;
    4. the interpreters in PLACES.

    If there is a mark, the command first prints a line for each older interpreter: the mark, `old`, the version and the
    interpreter. If no interpreter is new enough, the exit code is 127.
    """
    lines = after_setup(setup, ())[2] if setup else ""
    return ["sh", "-c", _FIND, _AFTER_SETUP, mark, python or "", _escaped(lines), *argv]


def _escaped(text: str) -> str:
    """Return the text for `printf %b`, without characters that a login shell would change."""
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\0{byte:03o}" for byte in text.encode())


def usual_folders() -> list[str]:
    """Return the folders of this machine that often contain interpreters, whether or not they are on PATH."""
    return [folder for place in PLACES for folder in sorted(glob.glob(os.path.expanduser(place)))]


class InterpreterError(Exception):
    """An interpreter does not answer. The text is the rest of a sentence whose subject is the interpreter."""


def ask_interpreter(python: str, *argv: str, setup: Sequence[str] = (), seconds: float = ASK_SECONDS) -> dict[str, Any]:
    """Run `python ARGV` after the profile's setup lines, and return the JSON object in the last line of its output.
    Raises InterpreterError if there is no such line.

    The interpreter is started in /, because with `-c` it would import modules from its working directory.
    """
    try:
        done = subprocess.run(
            after_setup(setup, [python, *argv]), capture_output=True, timeout=seconds, check=False,
            stdin=subprocess.DEVNULL, text=True, errors="replace", cwd="/",
        )  # fmt: skip
        found = parse_json(done.stdout.strip().rpartition("\n")[2] or "null")  # other lines may come before the answer
    except OSError as error:
        raise InterpreterError(f"can't be started: {shortage(error) or error.strerror}") from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise InterpreterError(f"does not answer like a Python interpreter: {error}") from error
    if not isinstance(found, dict):
        why = setup_failure(setup, done.stderr.splitlines()) or done.stderr.strip()[-300:]
        raise InterpreterError(f"fails: {why}")
    return found
