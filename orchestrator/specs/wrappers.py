"""Parses assignments and wrappers before a command's program, such as `A=1`, `nice -n 10` or `conda run`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class Wrapper(NamedTuple):
    """A program, such as `nice`, that starts the program named after it on the command line."""

    takes_value: frozenset[str] = frozenset()  # the options that take a value
    words: int = 0  # the number of words between the options and the program, such as the duration of `timeout`
    verb: str = ""  # the word that must follow its name, such as `run` of `uv run`
    advice: str = ""  # what to do instead; empty if orch can ignore the wrapper


class Peeled(NamedTuple):
    """One wrapper in front of a command, such as `nice -n 10`: its name, its words and its options. `rest` is the
    command without the wrapper.
    """

    name: str
    said: tuple[str, ...]
    options: dict[str, str]
    rest: list[str]
    advice: str


def _wrapper(takes_value: str = "", words: int = 0, verb: str = "", advice: str = "") -> Wrapper:
    return Wrapper(frozenset(takes_value.split()), words, verb, advice)


_ENVIRONMENT: Final = "set 'python' in the profile to that environment's interpreter"
_PLACEMENT: Final = "a line of setup in the profile has the same effect (renice, ionice, taskset, all with -p $$)"
_CONDA: Final = _wrapper("n name p prefix cwd", verb="run", advice=_ENVIRONMENT)
_WRAPPERS: Final[dict[str, Wrapper]] = {
    "exec": _wrapper("a"),
    "command": _wrapper(),
    "nohup": _wrapper(),
    "setsid": _wrapper(),
    "time": _wrapper("f format o output"),
    "unbuffer": _wrapper(),
    "stdbuf": _wrapper("i input o output e error"),
    "env": _wrapper("u unset C chdir S split-string"),
    "sudo": _wrapper("u user g group", advice="the ranks run as the user of the agents"),
    "nice": _wrapper("n adjustment", advice=_PLACEMENT),
    "ionice": _wrapper("c class n classdata", advice=_PLACEMENT),
    "chrt": _wrapper("T D P", words=1, advice=_PLACEMENT),
    "taskset": _wrapper(words=1, advice=_PLACEMENT),
    "numactl": _wrapper(
        "i interleave N cpunodebind C physcpubind m membind p preferred P preferred-many w weighted-interleave",
        advice=_PLACEMENT,
    ),
    "timeout": _wrapper("k kill-after s signal", words=1, advice="set resources.time in the job"),
    "uv": _wrapper(
        "p python with with-editable with-requirements extra no-extra group no-group only-group package env-file "
        "project directory index-url i index default-index extra-index-url f find-links config-file cache-dir color",
        verb="run",
        advice=_ENVIRONMENT,
    ),
    "poetry": _wrapper("C directory P project", verb="run", advice=_ENVIRONMENT),
    "pdm": _wrapper("p project", verb="run", advice=_ENVIRONMENT),
    "pixi": _wrapper("e environment manifest-path", verb="run", advice=_ENVIRONMENT),
    "pipenv": _wrapper(verb="run", advice=_ENVIRONMENT),
    "hatch": _wrapper("e env", verb="run", advice=_ENVIRONMENT),
    "rye": _wrapper(verb="run", advice=_ENVIRONMENT),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
}


def peel(words: Sequence[str]) -> Peeled | None:
    """Split the first wrapper off a command. Return None if the command does not begin with a wrapper."""
    name = PurePosixPath(words[0]).name if words else ""
    wrapper = _WRAPPERS.get(name)
    if wrapper is None or (wrapper.verb and list(words[1:2]) != [wrapper.verb]):
        return None
    options: dict[str, str] = {}
    at = 2 if wrapper.verb else 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        option, equals, value = _option(words[at])
        at += 1
        if not equals and option in wrapper.takes_value:
            value = words[at] if at < len(words) else ""
            at += 1
        options[option] = value
    if words[at : at + 1] == ["--"]:
        at += 1
    at += wrapper.words
    said, rest = tuple(words[:at]), list(words[at:])
    if name == "uv" and {"m", "module"} & options.keys():  # `uv run -m MODULE` is `uv run python -m MODULE`
        rest = ["python", "-m", *rest]
    return Peeled(name, said, options, rest, wrapper.advice)


def _option(word: str) -> tuple[str, bool, str]:
    """Return an option's name, whether its value is in the same word, and the value."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, bool(equals), value
    return word[1:2], len(word) > 2, word[2:]


def program_of(words: Sequence[str]) -> list[str]:
    """Return a command without the assignments and wrappers in front of its program."""
    rest = list(words)
    while rest:
        if ASSIGNMENT.fullmatch(rest[0]):
            rest = rest[1:]
        elif taken := peel(rest):
            rest = taken.rest
        else:
            break
    return rest
