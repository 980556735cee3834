"""Searches lines by a regular expression within a time limit. An agent may send an expression whose search would
take hours.

Python can't interrupt its search, not even in a thread, so another process compiles the expression and searches. It is
killed at its deadline.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.runs.files.logs import LogFile

SECONDS: Final = 1.0
MOST_LINES: Final = 200_000
MOST_SEARCHED: Final = 16 << 20  # characters
# Writes the number of every hundredth line before it is searched, and the number of each line that matches with a `+`.
_SEARCH: Final = """
import json, os, re, resource, sys, warnings
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))  # if the server is killed, nobody else ends this search
warnings.simplefilter("ignore")
pattern, most, lines = json.load(sys.stdin)
try:
    search, found = re.compile(pattern).search, 0
except (re.error, OverflowError, RecursionError) as error:
    sys.exit(str(error))
for number, line in enumerate(lines):
    if number % 100 == 0:
        os.write(1, b"%d\\n" % number)
    if search(line):
        os.write(1, b"%d+\\n" % number)
        found += 1
        if found == most:
            break
os.write(1, b"end\\n")
"""


def newest_of(lines: Iterable[tuple[LogFile, str]]) -> list[tuple[LogFile, str]]:
    """Return the newest lines that may be searched."""
    kept, size = deque[tuple[LogFile, str]](), 0
    for line in lines:
        kept.append(line)
        size += len(line[1])
        while size > MOST_SEARCHED or len(kept) > MOST_LINES:
            size -= len(kept.popleft()[1])
    return list(kept)


def newest_matches(pattern: str, lines: Sequence[str], most: int) -> tuple[list[int], int]:
    """Search the newest lines first. Return the indices of at most `most` lines in which the expression is found, in
    their order, and the number of oldest lines that were not searched because the time was over.

    The time includes the compilation of the expression. Raises UsageError if the expression is not valid.
    """
    given = json.dumps([pattern, most, lines[::-1]]).encode()
    argv = [sys.executable, "-I", "-S", "-c", _SEARCH]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            said, problem = child.communicate(given, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            said, problem = child.communicate()
    *words, last = said.decode().split() or ["0"]
    if child.returncode > 0:
        why = problem.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"the expression is not valid: {why}", "write a Python regular expression")
    newest = [int(word[:-1]) for word in (*words, last) if word.endswith("+")]
    searched = len(lines) if last == "end" else int(last.rstrip("+"))
    return [len(lines) - 1 - number for number in reversed(newest)], len(lines) - searched
