"""Splits a shell script into its commands and their words, without running it.

A word keeps its parts apart, because a shell treats text, variables and quoted parts differently. This module has no
side effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.specs.batch_header import refused

MOST_LINES: Final = 2_000
MOST_CHARACTERS: Final = 1 << 16
UNKNOWN: Final = "⟦"
END: Final = "⟧"
"""These characters enclose a part of an expanded text whose value only a shell on the cluster could tell."""
_OPERATOR: Final = re.compile(r"\n|&&|\|\|?&?|;;?|&(?!>)|[()]")
_REDIRECTION: Final = re.compile(r"(?:&|\d*)>[>&|]?|\d*<{1,3}[&-]?")
_NAME: Final = re.compile(r"\w+|[@*#?$!-]")
_PLAIN: Final = re.compile(r"[^\s\\'\"`$|&;<>()⟦]+")
_JOIN: Final = re.compile(r"\\\n")
_QUOTED: Final = re.compile(r'[^"\\$`⟦]+')
_ASSIGNS: Final = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True)
class Part:
    """A part of a word: text, or something that a shell replaces (a variable, `$(...)`, `$((...))`, an array)."""

    kind: Literal["text", "variable", "command", "number", "array", "unknown"]
    text: str  # for a variable what stands between `${` and `}`
    raw: str
    quoted: bool = False
    items: tuple[Word, ...] = ()  # of an array


Word = tuple[Part, ...]


@dataclass(frozen=True)
class Command:
    """A simple command: its first line, its source, its words, its redirections and the operator after it."""

    line: int
    source: str
    words: tuple[Word, ...]
    redirections: tuple[str, ...]
    end: str


def is_literal(word: Word) -> str:
    """Return a word's text if it is one part without quotes; "" otherwise."""
    return word[0].text if len(word) == 1 and word[0].kind == "text" and not word[0].quoted else ""


@dataclass
class _Reader:
    text: str
    line: int = 1
    at: int = 0
    words: list[Word] = field(default_factory=list)
    redirections: list[str] = field(default_factory=list)
    begun: tuple[int, int] = (0, 1)  # position and line of the command

    def commands(self) -> Iterator[Command]:
        while self.at < len(self.text):
            rest = self.text[self.at]
            if joined := _JOIN.match(self.text, self.at):
                self._move(joined.end())
            elif rest in " \t":
                self._move(self.at + 1)
            elif rest == "#":
                end = self.text.find("\n", self.at)
                self._move(len(self.text) if end < 0 else end)
            elif found := _REDIRECTION.match(self.text, self.at):
                self._redirect(found[0], found.end())
            elif found := _OPERATOR.match(self.text, self.at):
                yield from self._flush(found[0], found.end())
            else:
                if not self.words:
                    self.begun = self.at, self.line
                self.words.append(self._word())
        yield from self._flush("\n", self.at)

    def _flush(self, operator: str, end: int) -> Iterator[Command]:
        begun, line = self.begun if self.words else (self.at, self.line)
        if operator in ("(", ")", ";;", "|&"):
            raise refused(self.line, f"'{operator}' is not converted: only plain commands and one launch line are")
        if self.words or self.redirections:
            source = self.text[begun : self.at].strip()
            yield Command(line, source, tuple(self.words), tuple(self.redirections), operator)
        elif operator not in ("\n", ";"):
            raise refused(self.line, f"nothing stands before '{operator}'")
        self.words, self.redirections = [], []
        self._move(end)

    def _redirect(self, operator: str, end: int) -> None:
        if "<<" in operator:
            raise refused(self.line, f"'{operator}' (text for a program's input) is not converted")
        self._move(end)
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self._move(self.at + 1)
        start = self.at
        if not operator.endswith("&") or not (closes := re.compile(r"\d|-").match(self.text, self.at)):
            self._word()
        else:
            self._move(closes.end())
        self.redirections.append(operator + self.text[start : self.at])

    def _word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if joined := _JOIN.match(self.text, self.at):
                self._move(joined.end())
            elif plain := _PLAIN.match(self.text, self.at):
                parts.append(self._part("text", plain[0], plain.end()))
            elif char == "\\":
                parts.append(self._part("text", self.text[self.at + 1 : self.at + 2], self.at + 2, quoted=True))
            elif char == "'":
                end = self._find("'", self.at + 1)
                parts.append(self._part("text", self.text[self.at + 1 : end], end + 1, quoted=True))
            elif char == '"':
                parts += self._quoted()
            elif char in "$`" or char == UNKNOWN:
                parts.append(self._replaced(quoted=False))
            elif char == "(" and parts and parts[-1].kind == "text" and _ASSIGNS.fullmatch(parts[-1].text):
                parts.append(self._array())
            else:
                break
        return tuple(parts)

    def _quoted(self) -> list[Part]:
        opened = self.line
        self._move(self.at + 1)
        parts = [Part("text", "", "", quoted=True)]
        while (char := self.text[self.at : self.at + 1]) != '"':
            if not char:
                raise refused(opened, 'the quote " is not closed', "close the quote")
            if joined := _JOIN.match(self.text, self.at):
                self._move(joined.end())
            elif plain := _QUOTED.match(self.text, self.at):
                parts.append(self._part("text", plain[0], plain.end(), quoted=True))
            elif char == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\"):
                parts.append(self._part("text", self.text[self.at + 1], self.at + 2, quoted=True))
            elif (char == "$" and re.match(r"[\w{(@*#?$!-]", self.text[self.at + 1 : self.at + 2])) or char in (
                "`",
                UNKNOWN,
            ):
                parts.append(self._replaced(quoted=True))
            else:
                parts.append(self._part("text", char, self.at + 1, quoted=True))
        self._move(self.at + 1)
        return parts

    def _replaced(self, *, quoted: bool) -> Part:
        text, at = self.text, self.at
        if text[at] == "`":
            end = self._find("`", at + 1)
            return self._part("command", text[at + 1 : end], end + 1, quoted=quoted)
        if text[at] == UNKNOWN:
            end = self._find(END, at + 1)
            return self._part("unknown", text[at + 1 : end], end + 1, quoted=quoted)
        if text.startswith("$((", at) and text.startswith("))", end := self._balanced(at + 3, "(", ")")):
            return self._part("number", text[at + 3 : end], end + 2, quoted=quoted)
        if text.startswith("$(", at):
            end = self._balanced(at + 2, "(", ")")
            return self._part("command", text[at + 2 : end], end + 1, quoted=quoted)
        if text.startswith("${", at):
            end = self._balanced(at + 2, "{", "}")
            return self._part("variable", text[at + 2 : end], end + 1, quoted=quoted)
        if name := _NAME.match(text, at + 1):
            only = name[0][:1] if name[0][0].isdecimal() else name[0]
            return self._part("variable", only, at + 1 + len(only), quoted=quoted)
        if text[at + 1 : at + 2] in ("'", '"'):
            raise refused(self.line, f"$'...' and $\"...\" are not converted: {text[at : at + 20]}")
        return self._part("text", "$", at + 1, quoted=True)

    def _array(self) -> Part:
        start, items = self.at, list[Word]()
        self._move(self.at + 1)
        while (char := self.text[self.at : self.at + 1]) != ")":
            if not char or char in "|&;<>(":
                raise refused(self.line, "the array is not a list of words in ( )")
            if char == "#":
                end = self.text.find("\n", self.at)
                self._move(len(self.text) if end < 0 else end)
            elif char.isspace() or _JOIN.match(self.text, self.at):
                self._move(self.at + (2 if char == "\\" else 1))
            else:
                items.append(self._word())
        self._move(self.at + 1)
        return Part("array", "", self.text[start : self.at], items=tuple(items))

    def _part(self, kind: Literal["text", "variable", "command", "number", "unknown"], text: str, end: int, *,
              quoted: bool = False) -> Part:  # fmt: skip
        raw = self.text[self.at : end]
        self._move(end)
        return Part(kind, text, raw, quoted=quoted)

    def _find(self, mark: str, start: int) -> int:
        end = self.text.find(mark, start)
        if end < 0:
            raise refused(self.line, f"the quote {self.text[start - 1]} is not closed", "close the quote")
        return end

    def _balanced(self, at: int, opens: str, closes: str) -> int:
        """Return the position of the bracket that closes the bracket before `at`."""
        depth, quote = 1, ""
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opens:
                depth += 1
            elif char == closes and not (depth := depth - 1):
                return at
            at += 1
        raise refused(self.line, f"the bracket '{opens}' is not closed", "close the bracket")

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to


def words_of(text: str, line: int) -> tuple[Word, ...]:
    """Return the words of a text that stands on the given line and is no complete command."""
    return tuple(word for command in commands_of(text, line) for word in command.words)


def commands_of(text: str, line: int = 1) -> Iterator[Command]:
    """Yield a script's commands, whose first line has the number `line`. Raises NotConvertibleError at the first part
    of the script that is not a plain command.
    """
    if "\r" in text:
        number = line + text.count("\n", 0, text.index("\r"))
        raise refused(number, "it ends with a Windows line end, which neither bash nor sbatch accepts", "run dos2unix")
    if text.count("\n") >= MOST_LINES or len(text) > MOST_CHARACTERS:
        kept = text[:MOST_CHARACTERS].count("\n") + 1
        raise refused(min(MOST_LINES, kept), f"{MOST_LINES:,} lines or {MOST_CHARACTERS:,} characters are the most")
    return _Reader(text, line).commands()
