"""Splits a shell script into its commands without running it. Some scripts can't be split completely.

This module has no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import UsageError

MOST_CHARACTERS: Final = 1 << 16
_HEREDOC: Final = re.compile(r"<<(-?)\s*(['\"]?)([\w.-]+)\2")
_ENDS: Final = re.compile(r"\r?\n|;|&&|\|\||&(?![>&])")


@dataclass(frozen=True)
class Command:
    """A command of a script, without its comment, and the number of its first line."""

    line: int
    text: str


@dataclass
class _Reader:
    """The parser's state between two characters: the open quote, the depth of `$(`, and the here-documents to skip."""

    text: str
    at: int = 0
    line: int = 1
    quote: str = ""
    quoted_from: int = 0
    depth: int = 0
    found: list[str] = field(default_factory=list)
    documents: list[tuple[str, bool]] = field(default_factory=list)
    begun: int = 1

    def commands(self) -> Iterator[Command]:
        """Yield the script's commands. Raises UsageError if a quote is not closed."""
        while self.at < len(self.text):
            if self.quote or not self._skips():
                end = None if self.quote or self.depth else _ENDS.match(self.text, self.at)
                if end is None or self._is_redirection(end[0]):
                    self._take()
                    continue
                yield from self._flush()
                self._move(end.end())
                if end[0].endswith("\n"):
                    self._skip_documents()
                self.begun = self.line
        if self.quote:
            raise UsageError(f"line {self.quoted_from}: the quote {self.quote} is not closed", "close the quote")
        yield from self._flush()

    def _flush(self) -> Iterator[Command]:
        text = " ".join("".join(self.found).split("\n")).strip()
        self.found.clear()
        if text:
            yield Command(self.begun, text)

    def _is_redirection(self, end: str) -> bool:
        """Return True if this `&` is part of a redirection such as `2>&1`, so that it does not end the command."""
        return end == "&" and self.at > 0 and self.text[self.at - 1] in "<>"

    def _skips(self) -> bool:
        """Skip a line continuation or a comment at the present position. Return True if something was skipped."""
        if joined := re.compile(r"\\\r?\n").match(self.text, self.at):
            self.found.append(" ")
            self._move(joined.end())
            return True
        starts_word = not self.found or self.found[-1].isspace()
        if self.text[self.at] == "#" and starts_word and not self.depth:
            end = self.text.find("\n", self.at)
            comment = self.text[self.at : end if end >= 0 else len(self.text)]
            if comment.startswith("#SBATCH") and not "".join(self.found).strip():
                self.found.append(comment)
            self._move(self.at + len(comment))
            return True
        return False

    def _take(self) -> None:
        """Append one character or escaped pair, and track the quote or bracket that it opens or closes."""
        char = self.text[self.at]
        width = 2 if char == "\\" and self.quote != "'" else 1
        if width == 1:
            self._note(char)
        self.found.append(self.text[self.at : self.at + width])
        self._move(self.at + width)

    def _note(self, char: str) -> None:
        if self.quote:
            self.quote = "" if char == self.quote else self.quote
        elif char in "'\"`":
            self.quote, self.quoted_from = char, self.line
        elif char == "(" and (self.depth or self.text[self.at - 1 : self.at] == "$"):
            self.depth += 1
        elif char == ")" and self.depth:
            self.depth -= 1
        elif (
            char == "<"
            and not self.depth
            and self.text[self.at - 1 : self.at] != "<"
            and (document := _HEREDOC.match(self.text, self.at))
        ):
            self.documents.append((document[3], bool(document[1])))

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _skip_documents(self) -> None:
        for delimiter, is_indented in self.documents:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self._move(self.at + len(line) + 1)
                if (line.strip("\t\r") if is_indented else line.rstrip("\r")) == delimiter:
                    break
        self.documents.clear()


def commands_of(text: str) -> list[Command]:
    """Return a script's commands in order, including `#SBATCH` lines. Raises UsageError if a quote is not closed."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(
            f"the script has more than {MOST_CHARACTERS:,} characters", "give the line that starts the training"
        )
    return list(_Reader(text).commands())
