"""The longest text that Linux passes to a program in one argument or one environment variable. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a submit of files that were read before must not wait for pydantic
    from orchestrator.specs.job import Job

MOST_BYTES: Final = 131_072  # the kernel's MAX_ARG_STRLEN, the NUL byte at the end included
HINT: Final = "put the text into a file of the code folder, and pass the file's name"


def excess(text: str) -> str:
    """Return why no program can be given the text as one argument or as one NAME=VALUE; "" if it is short enough."""
    length = len(text.encode(errors="surrogateescape")) + 1
    if length <= MOST_BYTES:
        return ""
    return f"has {length - 1:,} bytes, and Linux passes at most {MOST_BYTES - 1:,} in one argument or variable; {HINT}"


def long_variables(variables: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield (name, why) of each variable that is too long, its name included."""
    for name, value in variables.items():
        if value is not None and (why := excess(f"{name}={value}")):
            yield name, why


def long_words(words: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield (position, why) of each word that is too long."""
    for index, word in enumerate(words):
        if why := excess(word):
            yield index, why


def long_fields(job: Job) -> list[tuple[tuple[str | int, ...], str]]:
    """Return (field, why) of the job's variables and words that are too long, so that no rank could be started."""
    found: list[tuple[tuple[str | int, ...], str]] = [(("env", name), why) for name, why in long_variables(job.env)]
    for field, words in (("command", job.command or ()), ("args", job.args)):
        found += [((field, index), why) for index, why in long_words(words)]
    if job.training is not None:
        options = ((name, excess(f"{name}={value}")) for name, value in job.training.options.items())
        found += [(("training", "options", name), why) for name, why in options if why]
    return found
