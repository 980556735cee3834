"""A person's terminal: a tmux session with a shell on a host of the testbed, typed into and looked at."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cluster.control import Control
from tests.testbed.layout import REPO
from tests.testbed.machine import wait_until

HEIGHT = 50
# The number of the command that is asked for, and how the last one ended.
PROMPT = r"^\[{number}:(\d+)\]\$ ?$"


@dataclass
class Screen:
    """One window; `number` is that of the command which is typed next."""

    control: Control
    host: str
    user: str
    width: int
    number: int = 1

    @property
    def socket(self) -> str:
        return f"/tmp/tmux-{self.user}"

    def tmux(self, *words: str, **env: str) -> str:
        argv = ("tmux", "-u", "-f", "/dev/null", "-S", self.socket, *words)
        return self.control.output(self.host, *argv, user=self.user, **env)

    def type(self, line: str, code: int = 0) -> str:
        """Type a command; return what it has shown, once it has ended with this exit code."""
        self.begin(line)
        return self.end(code)

    def begin(self, line: str) -> None:
        """Type a command, which goes on."""
        self.tmux("send-keys", "-l", line)
        self.tmux("send-keys", "Enter")

    def end(self, code: int = 0) -> str:
        """Return what the command that was begun has shown, once it has ended with this exit code."""
        prompt = re.compile(PROMPT.format(number=self.number + 1), re.MULTILINE)
        wait_until(lambda: prompt.search(self.text()), f"the end of command {self.number}")
        text = self.text()
        ended = prompt.search(text)
        assert ended is not None
        shown = text[: ended.start()].rpartition(f"[{self.number}:")[2].partition("\n")[2]
        self.number += 1
        assert int(ended[1]) == code, shown
        assert "Traceback" not in shown, shown
        return shown

    def until(self, words: str) -> None:
        """Return when the words are on the screen, or above it."""
        wait_until(lambda: words in self.text(), f"'{words}' on the screen")

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", *names)

    def resize(self, width: int) -> None:
        self.width = width
        self.tmux("resize-window", "-x", str(width), "-y", str(HEIGHT))

    def text(self) -> str:
        """All that was shown, each line as it was written, however the window has wrapped it."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-")


@contextmanager
def screen(control: Control, host: str, user: str = "alice", width: int = 80, folder: str = "~") -> Iterator[Screen]:
    """Open a window in which `orch` can be typed."""
    shown = Screen(control, host, user, width)
    size = ("-x", str(width), "-y", str(HEIGHT))
    shown.tmux("new-session", "-d", *size, "bash", "--norc", "--noprofile", PS1=r"[\#:$?]$ ", LANG="C.UTF-8")
    try:
        shown.tmux("set-option", "-g", "history-limit", "20000")
        orch = f'orch() {{ PYTHONPATH={REPO} {sys.executable} -m orchestrator.cli "$@"; }}'
        shown.type(f"PS1='[\\#:$?]$ '; cd {folder}; {orch}; clear")
        yield shown
    finally:
        shown.tmux("kill-server")
