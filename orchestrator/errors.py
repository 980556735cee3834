"""The error tree. Every error has a message, a hint, and an exit code for the command line.

OrchError                     1    orch itself failed (a bug, a full disk, a lost machine)
├── UsageError                2    the request can't be carried out as written; nothing was started
│   └── SpecError             2    a job or profile file has a mistake, with file:line:column
├── RunNotFoundError        102    no run has this id, or several runs match it
├── BackendError              1    a machine or a scheduler refused; `transient` tells whether a retry can help
│   ├── PythonMissingError    1    the machine's python3 can't run orch's server
│   └── PlacesTakenError      1    other runs hold the GPUs or slots; the run is in their queue
└── StoreError                1    the run directory can't be read or written

Only the package cli prints an error and exits with its code.
"""

from __future__ import annotations

EXIT_SUCCEEDED = 0
EXIT_ORCH_FAILED = 1
EXIT_USAGE = 2
EXIT_RUN_FAILED = 100
EXIT_NOT_FINISHED = 101
EXIT_NO_SUCH_RUN = 102
EXIT_CANCELLED = 103
EXIT_FILES_LEFT = 104
EXIT_INTERRUPTED = 130


# Characters that are invisible, although Python counts them as printable: Unicode's Default_Ignorable_Code_Point of
# other categories than Cf and Cn, and the empty braille pattern.
_INVISIBLE = (
    (0x034F,), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800,), (0x3164,), (0xFE00, 0xFE0F), (0xFFA0,),
    (0xE0100, 0xE01EF),
)  # fmt: skip
INVISIBLE = "".join(chr(code) for each in _INVISIBLE for code in range(each[0], each[-1] + 1))


def is_printable(text: str, keep: str = "") -> bool:
    """Return whether a person can see all characters of a text, besides those in `keep`."""
    return printable(text, keep) == text


def printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with control, invisible and unprintable characters escaped, except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    is_shown = {char: (char.isprintable() and char not in INVISIBLE) or char in keep for char in set(text)}
    return "".join(char if is_shown[char] else ascii(char)[1:-1] for char in text)


class OrchError(Exception):
    """An error with a message (what happened and where) and a `hint` (what to do about it)."""

    exit_code = EXIT_ORCH_FAILED
    transient = False

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = printable(message, keep="\n")
        self.hint = printable(hint, keep="\n")
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(OrchError):
    """The request can't be carried out as written, and nothing was started."""

    exit_code = EXIT_USAGE


class SpecError(UsageError):
    """A job or profile file has a mistake. `where` is file:line:column, as precisely as known."""

    def __init__(self, where: str, message: str, hint: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message, hint)
        self.where = where


class RunNotFoundError(OrchError):
    """No run has this id, or several runs have an id with this prefix."""

    exit_code = EXIT_NO_SUCH_RUN


class BackendError(OrchError):
    """A machine or a scheduler refused a request. `transient` tells whether the same request may succeed later."""

    def __init__(self, message: str, hint: str = "", *, transient: bool = False) -> None:
        super().__init__(message, hint)
        self.transient = transient


class PythonMissingError(BackendError):
    """A machine accepted the connection, but its python3 is missing, too old or broken, so orch's server can't run."""


class JobOverError(BackendError):
    """The scheduler's job to which a machine belonged has ended, so the user may no longer use the machine."""


class PlacesTakenError(BackendError):
    """Other runs hold the GPUs or slots that the run needs. The run is now in their queue."""


class StoreError(OrchError):
    """A run directory can't be read or written. The message names the path."""
