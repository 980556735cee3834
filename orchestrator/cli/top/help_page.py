"""The page of `orch top` that explains all keys."""

from __future__ import annotations

from rich.text import Text

from orchestrator.cli.top.page import Look, Page, Press, Scroll

KEYS = """\
everywhere  q quit   esc back   ? this page   Ctrl-C quit, also from a question
lists       up down (k j), PgUp PgDn, Home End (g G)   Enter look
runs        / only runs with these words: id, name, profile, state, note
            f follow the log   w why   o the page in a browser   c cancel (asks)
a run       1 overview  2 curves  3 heat  4 log  5 events  6 why  7 use
            Tab the next   f follow   w why   o the page in a browser   c cancel
overview    Enter the log of the rank under the cursor
curves      m upper metric   n lower metric   x by step or time   s smoothing
use         m of what   up down the numbers
log         / search, n the next, N the one before (abc finds ABC too)
            [ ] the rank before, after   left right along long lines
            f or G follow the end   g the beginning

a strip's cells, each a rank or several; the worst of them is shown:
  w waiting  d done  s stopped  F failed  L lost  r running, pace not known yet
  {levels}  how long a step takes beside the median of all ranks:
  {usual} as usual, {twice} twice as long, {most} almost three times and more
"""


class HelpPage(Page[str]):
    """The page that shows what each key does."""

    def __init__(self) -> None:
        super().__init__()
        self.scroll = Scroll()

    def title(self, look: Look) -> Text:
        return Text("keys", "bold")

    def read(self) -> str:
        return KEYS

    def draw(self, look: Look) -> list[Text]:
        levels = look.marks.levels
        lines = KEYS.format(levels=levels, usual=levels[1], twice=levels[5], most=levels[7]).split("\n")
        return [Text(lines[number]) for number in self.scroll.window(len(lines), look.height)]

    def presses(self) -> dict[str, Press]:
        return self.scroll.presses()
