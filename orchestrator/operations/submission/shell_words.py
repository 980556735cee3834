"""Splits a shell script of the grammar of `orch init` into commands and words. This module has no side effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from orchestrator.specs.batch_header import refused

MOST_LINES: Final = 2_000
MOST_CHARACTERS: Final = 1 << 16
_COMMAND: Final = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`"
_REPLACED: Final = (
    rf"(?P<unknown>⟦[^⟧]*⟧)|(?P<number>\$\(\([^()]*\)\))|(?P<command>{_COMMAND})"
    r"|(?P<variable>\$\{[^{}]*\}|\$[A-Za-z_]\w*|\$[\d@*#?!$-])"
)
# No text matches in two ways, so that a search ends soon.
_IN_QUOTES: Final = re.compile(rf'{_REPLACED}|\\(?P<escaped>["$`\\])|\\\n|(?P<text>[^\\$`⟦]+|.)', re.DOTALL)
_TOKEN: Final = re.compile(
    rf"""(?P<space>[ \t]+|(?:\\\n)+)|(?P<comment>(?<![^\s;&|])\#[^\n]*)|(?P<same>\d*>&[\d-])|(?P<output>(?:&|\d*)>>?)
    |(?P<end>\n|;(?!;)|&&)|(?<==)\((?P<array>(?:{_COMMAND}|[^()`])*)\)|{_REPLACED}|'(?P<single>[^']*)'|"(?P<double>(?:\\.|{_COMMAND}|\$(?!\()|[^"\\$`])*)"
    |\\(?P<escaped>.)|(?P<text>(?:(?!\d*[<>])[^\s\\'"`$|&;<>()\#⟦]|(?<=[^\s;&|])\#)+)|(?P<odd>.)""",
    re.DOTALL | re.VERBOSE,
)


class Part(NamedTuple):
    """A part of a word. `kind` is text, array, number, command, variable or unknown; `text` is what the script has."""

    kind: str
    text: str
    quoted: bool


class Command(NamedTuple):
    """A simple command: its first line, its source, its words, and whether its output goes to a file."""

    line: int
    source: str
    words: tuple[tuple[Part, ...], ...]
    writes: bool


def commands_of(text: str, line: int = 1) -> Iterator[Command]:
    """Yield a script's commands, whose first line has the number `line`.

    Raises NotConvertibleError at the first part of the script that is not a plain command.
    """
    if "\r" in text:
        number = line + text.count("\n", 0, text.index("\r"))
        raise refused(number, "it ends with a Windows line end, which neither bash nor sbatch accepts", "run dos2unix")
    if text.count("\n") > MOST_LINES or len(text) > MOST_CHARACTERS:
        raise refused(MOST_LINES, f"files of more than {MOST_LINES:,} lines or 64 KiB are not converted")
    words, word, begun, first, is_target, writes = list[tuple[Part, ...]](), list[Part](), -1, line, False, False
    for found in _TOKEN.finditer(f"{text}\n\n"):
        kind = found.lastgroup or ""
        if kind in ("odd", "escaped") and found[0] != "\\\n" and (kind == "odd" or not found["escaped"].strip()):
            closes = f"the quote {found[0]} is not closed" if found[0] in "'\"`" else f"'{found[0]}' is not converted"
            raise refused(line, f"{closes}: only plain commands and one launch line are")
        if begun < 0 and kind not in ("space", "comment", "end"):
            begun, first = found.start(), line
        if kind in ("space", "comment", "same", "output", "end"):
            if word and not is_target:
                words.append(tuple(word))
            is_target = kind == "output" or (is_target and not word)
            writes, word = writes or kind == "output", []
            if kind == "end":
                if words:
                    yield Command(first, text[begun : found.start()].strip(), tuple(words), writes)
                words, begun, writes = [], -1, False
        elif kind == "double":
            word += [Part("text", "", True), *_quoted(found["double"])]
        else:
            text_kind = kind in ("single", "escaped", "text")
            word.append(Part("text" if text_kind else kind, found[kind], kind in ("single", "escaped")))
        line += found[0].count("\n")


def _quoted(text: str) -> Iterator[Part]:
    for found in _IN_QUOTES.finditer(text):
        if kind := found.lastgroup:
            yield Part("text" if kind in ("escaped", "text") else kind, found[kind], True)
