"""Parses and formats lists of hosts in Slurm's notation: `n[1-3,5],b[07-09]`.

Slurm reports the nodes of a job in this notation, and profiles may list their hosts in it. Messages use the notation
for more than a few hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product

MAX_HOSTS = 100_000
FOLD_FROM = 4  # fewer names are listed one by one
_GROUP = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # a name or a range of names: commas count only inside brackets
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_NUMBER = re.compile(r"(\d{1,18})", re.ASCII)


def expand(text: str) -> list[str]:
    """Return the host names in a list such as `n[1-3,5],b[07-09]`. Leading zeros are kept.

    Raises ValueError if the list has more than MAX_HOSTS names or can't be parsed, so that such a list never becomes a
    single host.
    """
    names: list[str] = []
    for group in _groups(text):
        names += _expand_group(group, text)
        if len(names) > MAX_HOSTS:
            raise _too_many(text)
    return names


def _groups(text: str) -> list[str]:
    pieces = _RANGE.split(text)
    if any("[" in piece or "]" in piece for piece in pieces[::2]):
        raise ValueError(f"'{_short(text)}' has an unmatched bracket; write ranges like n[1-3,5]")
    groups = _GROUP.findall(text)
    if len(groups) != sum(piece.count(",") for piece in pieces[::2]) + 1 or any(not group.strip() for group in groups):
        raise ValueError(f"'{_short(text)}' has an empty name; write hosts like n1,n[3-5]")
    return [group.strip() for group in groups]


def _expand_group(group: str, text: str) -> list[str]:
    choices: list[list[str]] = []
    total = 1
    for index, piece in enumerate(_RANGE.split(group)):
        choices.append(_expand_range(piece, text) if index % 2 else [piece])
        total *= len(choices[-1])
        if total > MAX_HOSTS:
            raise _too_many(text)
    return ["".join(parts) for parts in product(*choices)]


def _expand_range(piece: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in piece.split(","):
        match = _PART.fullmatch(part.strip())
        if not match:
            raise ValueError(f"'{_short(text)}' has a range that can't be read: '{part}'; write it like n[1-3,5]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"'{_short(text)}' has a range that runs backwards: '{part}'")
        if int(last) - int(first) + len(numbers) >= MAX_HOSTS:
            raise _too_many(text)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _too_many(text: str) -> ValueError:
    return ValueError(f"'{_short(text)}' names more than {MAX_HOSTS} hosts")


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


# -- folding


def fold(names: Iterable[str]) -> str:
    """Return the names as one list, which `expand` turns back into the same names in the same order."""
    return ",".join(folded(names))


def folded(names: Iterable[str]) -> list[str]:
    """Return the names in order. Neighbours that differ in one number are joined to a range: [`n[1-62]`, `login`]."""
    groups: list[list[list[str]]] = []  # groups of names, each split into alternating texts and numbers
    for name in names:
        pieces = _NUMBER.split(name)
        group = groups[-1] if groups else []
        place = _place_of_change(group[0], pieces) if group else None
        if place is not None and (len(group) == 1 or place == _place_of_change(group[0], group[1])):
            group.append(pieces)
        else:
            groups.append([pieces])
    return [_as_range(group) for group in groups]


def in_words(names: Iterable[str]) -> str:
    """Return host names as text for people. A few names are listed; more names are sorted and folded, such as
    `n[1-62], login`.
    """
    listed = list(names)
    return ", ".join(listed if len(listed) < FOLD_FROM else folded(sorted(listed, key=_by_number)))


def nodes_in_words(nodes: Sequence[tuple[int, str]]) -> str:
    """Return nodes as text for people: `node 3 (n4), node 5 (n6)`, or `nodes 3-61 (n[4-62])`. Each node is given as
    (number, host).
    """
    if len(nodes) < FOLD_FROM:
        return ", ".join(f"node {rank} ({host})" for rank, host in nodes)
    return f"nodes {numbers_in_words([rank for rank, _ in nodes])} ({', '.join(folded(host for _, host in nodes))})"


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Return numbers as text for people: `3, 5`, or `3-61, 64`."""
    if len(numbers) < FOLD_FROM:
        return ", ".join(map(str, numbers))
    return ", ".join(ranges([str(number) for number in numbers]))


def by_words(told: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of the form `host: message`. If many hosts have the same message, they share one line, without the
    addresses in brackets after their names.
    """
    hosts: dict[str, list[str]] = {}
    for host, words in told:
        hosts.setdefault(words, []).append(host)
    lines = []
    for words, names in hosts.items():
        bare = in_words(dict.fromkeys(name.partition(" (")[0] for name in names))
        shown = names if len(names) < FOLD_FROM else [bare]
        lines += [f"{name}: {words}" if words else name for name in shown]
    return lines


def each_once(told: Iterable[tuple[str, str]]) -> list[str]:
    """Return the messages of these (host, message) pairs without repeats. Messages that differ only in their host count
    as equal, and the first of them is returned.

    The hosts of equal messages are not folded as in `ssh n[1-62]`, because a message may contain a command, which must
    be possible to type.
    """
    found: dict[str, str] = {}
    for host, words in told:
        found.setdefault(words.replace(host, "") if host else words, words)
    return list(found.values())


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    return [(bool(index % 2), int(piece) if index % 2 else 0, piece) for index, piece in enumerate(_NUMBER.split(name))]


def _place_of_change(one: Sequence[str], other: Sequence[str]) -> int | None:
    """Return the index of the only number in which two names differ, or None if they differ otherwise."""
    places = [place for place, (mine, theirs) in enumerate(zip(one, other)) if mine != theirs]
    is_one = len(one) == len(other) and len(places) == 1 and places[0] % 2 == 1
    return places[0] if is_one else None


def _as_range(group: Sequence[Sequence[str]]) -> str:
    if len(group) == 1:
        return "".join(group[0])
    place = _place_of_change(group[0], group[1])
    assert place is not None
    head, tail = "".join(group[0][:place]), "".join(group[0][place + 1 :])
    return f"{head}[{','.join(ranges([pieces[place] for pieces in group]))}]{tail}"


def spans(numbers: Iterable[int]) -> str:
    """Return numbers, sorted, as spans such as `0-11, 13`."""
    return ", ".join(ranges([str(number) for number in sorted(numbers)]))


def span(first: object, last: object) -> str:
    """Return the numbers from `first` to `last` as `3-7`, or as `3` if they are equal."""
    return str(first) if first == last else f"{first}-{last}"


def ranges(numbers: Sequence[str]) -> list[str]:
    """Return numbers in order. Consecutive numbers with equally many digits are joined as `first-last`."""
    parts: list[list[str]] = []
    for number in numbers:
        if parts and number == str(int(parts[-1][1]) + 1).zfill(len(parts[-1][0])):
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return [span(first, last) for first, last in parts]
