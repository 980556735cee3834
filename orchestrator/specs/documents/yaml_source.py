"""Parses a YAML document into a tree in which every value has its place: file:line:column, or a command-line option."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from orchestrator.errors import SpecError

MAX_BYTES: Final = 1_000_000
MAX_NODES: Final = 50_000
MAX_DEPTH: Final = 40
CHARACTERS_OF_A_NODE: Final = 100  # a longer text counts as several nodes, so that aliases can't multiply its size
MAX_TAG: Final = 20_000  # ruamel reads a tag in quadratic time: a tag of 900,000 characters takes half a minute
_LONG_TAG: Final = re.compile(rf"!\S{{{MAX_TAG}}}")
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# The core schema of YAML 1.2 and no more: no dates, no sexagesimals, no yes and no.
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,4000}|0o[0-7]{1,4000}|0x[0-9a-fA-F]{1,3000}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_ODD_FLOAT = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value, its place (file:line:column), the place of its key, and the original text of a scalar that is not a
    string.
    """

    value: dict[str, Node] | list[Node] | Scalar
    where: str
    key_where: str = ""
    text: str | None = None

    def get(self, name: str) -> Node | None:
        """Return the value of a key; None if there is no such key or this node is not a mapping."""
        return self.value.get(name) if isinstance(self.value, dict) else None


@dataclass(frozen=True)
class Document:
    """A YAML file and its top-level mapping."""

    path: Path
    root: Node


def read_yaml(path: Path, what: str) -> Document:
    """Read one YAML or JSON file whose top level is a mapping. Raises SpecError with file:line:column for mistakes."""
    text = _read_text(path, what)
    root = parse(text, str(path), what)
    if root is None or (root.value is None and not root.text):
        raise SpecError(f"{path}:1:1", f"the {what} file is empty", "write at least one 'key: value' line")
    if not isinstance(root.value, dict):
        raise SpecError(
            root.where,
            f"a {what} file is a mapping of 'key: value' lines, but this one is {kind_of(root)}",
        )
    return Document(path, root)


def _read_text(path: Path, what: str) -> str:
    try:
        if path.is_dir():
            raise SpecError(str(path), f"a folder, not a {what} file")
        if path.exists() and not path.is_file():
            raise SpecError(str(path), f"not a regular file, so it can't be read as a {what}")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(str(path), f"there is no such {what} file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(str(path), f"the {what} file can't be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise SpecError(str(path), f"larger than {MAX_BYTES // 1000} kB, the limit for a {what} file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = _place(str(path), data[: error.start].decode("utf-8", "replace"), error.start)
        message = f"byte {error.start + 1} (0x{data[error.start]:02x}) is not UTF-8"
        raise SpecError(place, message, "save the file as UTF-8") from None
    return text.removeprefix("\ufeff")


@lru_cache(maxsize=8)  # a sweep parses its two files at each point, and trees are never changed
def parse(text: str, name: str, what: str = "YAML", *, fixed_place: bool = False) -> Node | None:
    """Return the tree of a YAML text, or None if the text is empty.

    With `fixed_place`, all values get `name` as their place.
    """
    if found := _UNPRINTABLE.search(text):
        place = name if fixed_place else _place(name, text, found.start())
        raise SpecError(place, f"the control character {found[0]!r} is not allowed in YAML")
    if found := _LONG_TAG.search(text):
        place = name if fixed_place else _place(name, text, found.start())
        raise SpecError(
            place, f"more than {MAX_TAG} characters without a space follow this '!'", "put quotes around the text"
        )
    composer = _Composer(name, what, fixed_place, last=name)
    try:
        return composer.compose(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse_syntax(composer.place(mark), error, text, mark)
    except (YAMLError, ValueError, OverflowError, IndexError, RecursionError, AttributeError, TypeError) as error:
        # ruamel raises plain exceptions for some broken escapes and directives.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecError(composer.last, f"not valid YAML after this place: {reason}") from None


def _refuse_syntax(place: str, error: MarkedYAMLError, text: str, mark: Any) -> NoReturn:
    problem = " ".join(str(error.problem or error.context or error).split())
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    hint = ""
    if "\t" in line[: len(line) - len(line.lstrip()) + 1]:
        hint = "indent with spaces; YAML does not take tabs for that"
    elif "mapping values are not allowed" in problem:
        hint = "put quotes around a text that contains ': ', and indent the keys of one mapping alike"
    elif re.search(r"[\[,]\s*[\w.@-]+\[\d", line):
        hint = "put quotes around a host range inside a list: ['n[1-3]']"
    raise SpecError(place, f"not valid YAML: {problem}", hint) from None


def _place(name: str, text: str, offset: int) -> str:
    before = text[:offset]
    return f"{name}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


@dataclass(slots=True)
class _Open:
    """A mapping or list that the composer has begun to read."""

    value: dict[str, Node] | list[Node]
    where: str
    anchor: str | None
    first: int
    key: tuple[str, str] | None = None
    height: int = 1  # number of nested levels, including this level


@dataclass(slots=True)
class _Composer:
    """Builds the tree from the parser's events. It has its own stack, so deep input can't overflow Python's stack."""

    name: str
    what: str
    fixed_place: bool
    count: int = 0
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, tuple[Node | None, int, int]] = field(default_factory=dict)  # name: (node, weight, height)
    root: Node | None = None
    last: str = ""

    def place(self, mark: Any) -> str:
        if self.fixed_place or mark is None:
            return self.name
        return f"{self.name}:{mark.line + 1}:{mark.column + 1}"

    def compose(self, events: Iterable[Any]) -> Node | None:
        documents = 0
        for event in events:
            where = self.last = self.place(event.start_mark)
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise SpecError(where, f"a second document starts here; a {self.what} file holds one")
            elif isinstance(event, ScalarEvent):
                self.check(event, where)
                weight = 1 + len(event.value) // CHARACTERS_OF_A_NODE
                self.grow(weight - 1, where)
                self.add(scalar(event, where), event.anchor, weight)
            elif isinstance(event, AliasEvent):
                self.alias(event, where)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                self.start(event, where)
            elif isinstance(event, MappingEndEvent | SequenceEndEvent):
                done = self.stack.pop()
                self.add(Node(done.value, done.where), done.anchor, self.count - done.first, done.height)
        return self.root

    def check(self, event: Any, where: str) -> None:
        self.grow(1, where)
        if event.tag is not None:
            hint = "leave the tag out, or put quotes around the value if it is text"
            raise SpecError(where, f"the tag '{_short(event.tag)}' is not allowed", hint)

    def grow(self, nodes: int, where: str) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            most = f"{MAX_NODES} values or {MAX_NODES * CHARACTERS_OF_A_NODE // 1_000_000} MB of text"
            raise SpecError(where, f"holds more than {most} (with its aliases expanded)")

    def start(self, event: Any, where: str) -> None:
        self.check(event, where)
        self.check_depth(1, where)
        if event.anchor:
            self.anchors[event.anchor] = (None, 0, 0)
        value: dict[str, Node] | list[Node] = {} if isinstance(event, MappingStartEvent) else []
        self.stack.append(_Open(value, where, event.anchor, self.count - 1))

    def check_depth(self, levels: int, where: str) -> None:
        if len(self.stack) + levels > MAX_DEPTH:
            raise SpecError(where, f"nested more than {MAX_DEPTH} levels deep")

    def alias(self, event: Any, where: str) -> None:
        if event.anchor not in self.anchors:
            name = _short(event.anchor)
            hint = f"put quotes around it if it is text: '*{name}'"
            raise SpecError(where, f"there is no anchor &{name} before this alias", hint)
        node, weight, height = self.anchors[event.anchor]
        if node is None:
            raise SpecError(where, f"the alias *{_short(event.anchor)} refers to a value that contains this alias")
        self.grow(weight, where)
        self.check_depth(height, where)
        self.add(replace(node, where=where, key_where=""), None, weight, height)

    def add(self, node: Node, anchor: str | None, weight: int, height: int = 0) -> None:
        if anchor:
            self.anchors[anchor] = (node, weight, height)
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        top.height = max(top.height, height + 1)
        if isinstance(top.value, list):
            top.value.append(node)
        elif top.key is None:
            top.key = self.key(node, top.value)
        else:
            name, where = top.key
            top.value[name] = replace(node, key_where=where)
            top.key = None

    def key(self, node: Node, mapping: dict[str, Node]) -> tuple[str, str]:
        if not isinstance(node.value, str):
            shown = f"the key {_short(node.text)}" if node.text else f"{kind_of(node)} as a key"
            raise SpecError(node.where, f"{shown} is not allowed", "keys must be text; put quotes around them")
        if earlier := mapping.get(node.value):
            where = "" if self.fixed_place else f" (first in line {earlier.key_where.rsplit(':', 2)[1]})"
            raise SpecError(node.where, f"the key {_short(node.value)!r} is given twice{where}", "keep one of them")
        return node.value, node.where


def scalar(event: Any, where: str) -> Node:
    """Return the leaf for a scalar event, with its type by YAML 1.2's core schema."""
    text = event.value
    if event.style or not event.implicit[0]:
        return Node(_whole_text(text, where), where)
    if text in _NULL:
        return Node(None, where, text=text)
    if text in _BOOL:
        return Node(_BOOL[text], where, text=text)
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return Node(int(text, base), where, text=text)
    if _FLOAT.fullmatch(text) or _ODD_FLOAT.fullmatch(text):
        return Node(float(text.replace(".", "", 1) if text[-1].isalpha() else text), where, text=text)
    return Node(_whole_text(text, where), where)


def _whole_text(text: str, where: str) -> str:
    """Join the surrogate pairs of JSON's escapes into characters. Raises SpecError for half of a pair."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise SpecError(where, "contains half of a surrogate pair, which is not a character") from None


def kind_of(node: Node) -> str:
    """Describe a value's type in words: `a list`, `the text 'four'`, `the number 4`."""
    match node.value:
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case None:
            return "nothing (null)"
        case bool():
            return f"the boolean {node.text or str(node.value).lower()}"
        case str():
            return f"the text {_short(node.value)!r}"
        case _:
            return f"the number {(node.text or str(node.value))[:40]}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def merge(base: Node, over: Node) -> Node:
    """Merge mappings key by key. Any other value in `over`, including a list, replaces the value in `base`."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    joined = dict(base.value)
    for key, node in over.value.items():
        joined[key] = merge(joined[key], node) if key in joined else node
    return replace(over, value=joined, where=over.where or base.where)


def nested(path: Iterable[str], leaf: Node) -> Node:
    """Return a tree with one value under a path of keys."""
    for key in reversed(list(path)):
        leaf = Node({key: replace(leaf, key_where=leaf.where)}, leaf.where)
    return leaf


def plain(node: Node, verbatim: frozenset[str] = frozenset(), top: str = "") -> Any:
    """Return the tree as JSON types. Numbers under a top-level key in `verbatim` become texts in their original
    spelling.
    """
    value = node.value
    if isinstance(value, dict):
        return {key: plain(child, verbatim, top or key) for key, child in value.items()}
    if isinstance(value, list):
        return [plain(child, verbatim, top) for child in value]
    if isinstance(value, bool) or not isinstance(value, int | float) or node.text is None:
        return value
    odd = isinstance(value, float) and not math.isfinite(value)
    return node.text if top in verbatim or odd else value


def from_value(value: Any, where: str) -> Node:
    """Return the tree of a Python value, such as a command-line option. Every node has the same place."""
    if isinstance(value, dict):
        return Node({str(k): replace(from_value(v, where), key_where=where) for k, v in value.items()}, where)
    if isinstance(value, list | tuple):
        return Node([from_value(item, where) for item in value], where)
    return Node(value, where)
