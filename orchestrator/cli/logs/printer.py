"""Prints logs to a terminal or a file: complete lines and, on a terminal, the line that a rank is still writing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import click

from orchestrator.cli.group import style, width_of
from orchestrator.cli.render import escapes
from orchestrator.cli.render.tables import columns, cut
from orchestrator.runs.files.logs import NO_RANK

if TYPE_CHECKING:
    from orchestrator.runs.files.logs import LogFile, Tail

CLEAR_LINE: Final = "\r\x1b[K"


class LogPrinter:
    """Prints log lines. Lines of several ranks get labels, and each new attempt gets a heading.

    On a terminal, the last line is live: it shows an unfinished line, such as a progress bar, of the first rank with
    such a line. Unfinished lines of other ranks are printed when they are complete. With `raw`, the programs' bytes are
    printed unchanged, and only labels and headings are added.
    """

    def __init__(self, out: Any, *, labelled: bool, raw: bool) -> None:
        self.out, self.labelled, self.raw, self.attempt = out, labelled, raw, 0
        self._live = "" if not raw and os.environ.get("TERM") != "dumb" and width_of(out) else None
        self._unended: dict[LogFile, bytes] = {}  # raw lines whose end has not been read yet

    def print_new(self, reader: Tail, *, ended: bool) -> None:
        """Print the new lines. If the run has `ended`, also print a last line that has no line end."""
        if self.raw:
            self._print_bytes(reader, ended=ended)
            return
        for log, line in reader.read(ended=ended):
            self._begin(log)
            click.echo(f"{self._label(log)}{escapes.log_line(line)}", file=self.out)
        if self._live is not None:
            self._show(None if ended else reader.open_line())

    def pause(self) -> None:
        """Remove the live line, so that a message can be printed. The next call of print_new shows the line again."""
        if self._live:
            self.out.write(CLEAR_LINE)
            self.out.flush()
            self._live = ""

    def leave(self) -> None:
        """Keep the live line on the screen, and start a new line."""
        if self._live:
            click.echo(file=self.out)
            self._live = ""

    def _show(self, found: tuple[LogFile, str] | None) -> None:
        text, label = (escapes.log_line(found[1]), self._label(found[0])) if found else ("", "")
        # one column stays free, because the terminal would wrap a full line
        room = (width_of(self.out) or 0) - 1 - columns(escapes.plain(label))
        if columns(plain := escapes.plain(text)) > room:
            text = cut(plain, room)
        if (line := label + text) != self._live:
            self.out.write(f"{CLEAR_LINE}{line}")
            self.out.flush()
            self._live = line

    def _begin(self, log: LogFile) -> None:
        self.pause()
        if log.attempt != self.attempt:
            self.attempt = log.attempt
            click.echo(style(f"--- attempt {log.attempt} ---", "magenta"), file=self.out)

    def _label(self, log: LogFile) -> str:
        rank = "launcher" if log.rank == NO_RANK else f"r{log.rank}"
        return style(f"n{log.node}/{rank} ", "blue") if self.labelled else ""

    def _print_bytes(self, reader: Tail, *, ended: bool) -> None:
        for log, data in reader.read_bytes():
            self._begin(log)
            if not self.labelled:
                self._write(data)
                continue
            *lines, self._unended[log] = (self._unended.get(log, b"") + data).split(b"\n")
            for line in lines:
                self._write(self._label(log).encode() + line + b"\n")
        for log, rest in self._unended.items() if ended else ():
            self._write(self._label(log).encode() + rest + b"\n" if rest else b"")

    def _write(self, data: bytes) -> None:
        self.out.flush()
        self.out.buffer.write(data)
        self.out.buffer.flush()
