"""orch top on a person's terminal, a tmux window of 80x24, over a run that goes on meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local.conftest import Orch
from tests.patience import PATIENCE
from tests.terminal import terminal
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux: apt-get install tmux")

COLOURED = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:[349][0-7]|[34]8)[;m]")  # and not back to the terminal's own

# Each rank goes a step further for each line that is written into the file GO, and tells of it as a training does.
STEPS = """
import json, os, sys, time
rank, done, begun = os.environ["RANK"], 0, time.monotonic()
while True:
    told = len(open(os.environ["GO"]).readlines()) if os.path.exists(os.environ["GO"]) else 0
    while done < told:
        done += 1
        print(f"step {done} of rank {rank} \\x1b]0;owned\\x07[bold]", flush=True)
        beat = {"step": done, "total": 50, "phase": "train", "time": begun + done, "loss": 1 / done, "rate": 100.0}
        with open(os.environ["ORCH_BEAT_FILE"], "r+" if done > 1 else "w") as file:
            file.write(json.dumps(beat).ljust(511) + "\\n")
        if rank == "0":
            with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
                file.write(json.dumps({"kind": "train", **beat, "time": 100.0 + done}) + "\\n")
    time.sleep(0.02)
"""


@dataclass
class Window:
    """A tmux window with one command in it, whose exit code is written to a file.

    tmux's own word for it (pane_dead_status) may never come: while libutempter's helper ends the pane's login record,
    SIGCHLD is at its default, so a command that ends in that moment stays a zombie of tmux.
    """

    socket: Path
    ended: Path

    def tmux(self, *words: str, **env: str) -> str:
        argv = ["tmux", "-f", "/dev/null", "-S", str(self.socket), *words]
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("LC_", "LANG", "TMUX", "NO_", "SSH_"))
        }
        return subprocess.run(
            argv, env={**clean, **env}, capture_output=True, check=True, timeout=PATIENCE
        ).stdout.decode()

    def text(self, *options: str) -> str:
        return self.tmux("capture-pane", "-p", *options)

    def until(self, words: str) -> str:
        wait_until(lambda: re.search(words, self.text(), re.MULTILINE) is not None, f"{words!r} on the screen")
        return self.text()

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", *names)

    def code(self) -> int:
        """The exit code, once the command has ended and nothing holds the terminal any more."""
        wait_until(lambda: self.tmux("display", "-p", "#{pane_dead}") == "1\n", "a terminal that nobody holds")
        wait_until(lambda: self.ended.exists() and self.ended.read_text().endswith("\n"), "the command's exit code")
        return int(self.ended.read_text())


@contextmanager
def window(folder: Path, argv: list[str], **env: str) -> Iterator[Window]:
    """The command in a window of its own; what is left of it ends with the block."""
    shown = Window(folder / "tmux", folder / "ended")
    told = ("sh", "-c", '"$@"; echo $? > "$0"', str(shown.ended), *argv)
    shown.tmux("new-session", "-d", "-x", "80", "-y", "24", *told, TERM="xterm", SHELL="/bin/sh", **env)
    shown.tmux("set-option", "-g", "remain-on-exit", "on")
    try:
        yield shown
    finally:
        shown.tmux("kill-server")


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def start(orch: Orch, project: Callable[..., Path], go: Path) -> str:
    """Submit the ranks that go on until they are cancelled."""
    folder = project(main_py=STEPS)
    text = {"script": "main.py", "env": {"GO": str(go)}, "warm_imports": [], "name": "watched"}
    (folder / "watched.yaml").write_text(json.dumps(text))
    return orch.submit(str(folder / "watched.yaml"), "-p", "local", "--nproc-per-node", "2").run_id


def test_a_run_is_watched_followed_and_cancelled_by_keys(
    orch: Orch, project: Callable[..., Path], tmp_path: Path, go: Path
) -> None:
    run_id = start(orch, project, go)
    with window(tmp_path, orch.argv("top"), ORCH_HOME=str(orch.home), LANG="C.UTF-8") as seen:
        seen.until(rf"^> {run_id} +running")
        seen.keys("Enter")
        seen.until("0-1 rr")
        go.write_text("1\n")
        assert "step 1/50" in seen.until(r"(running +1 +train.*\n.*){2}")
        go.write_text("1\n" * 5)
        seen.until("0-1 ▂▂")
        seen.until("running  5     train  1")
        seen.keys("2")
        assert "⠉" in seen.until("last 0.2 ")
        go.write_text("1\n" * 10)
        seen.until("last 0.1 ")  # it grows while it is looked at
        seen.keys("f")
        seen.until(r"following\n(.*\n)*step 10 of rank 0 \[bold\]$")
        go.write_text("1\n" * 12)
        seen.until(r"^step 12 of rank 0 \[bold\]$")
        assert COLOURED.search(seen.text("-e"))
        seen.keys("c")
        seen.until(rf"cancel {run_id}\?")
        seen.keys("y")
        seen.until("0 processes left")
        seen.until("watched-.* cancelled ")
        seen.keys("q")
        assert seen.code() == 0
    assert orch("status", run_id, "--json").json["state"] == "cancelled"


def test_in_the_locale_c_and_without_colours_it_says_the_same(
    orch: Orch, project: Callable[..., Path], tmp_path: Path, go: Path
) -> None:
    run_id = start(orch, project, go)
    go.write_text("1\n" * 3)
    with window(tmp_path, orch.argv("top", run_id), ORCH_HOME=str(orch.home), LANG="C", NO_COLOR="1") as seen:
        seen.until("^step 3/50")
        seen.keys("2")
        assert re.search(r"\|\*+", seen.until("last 0.33"))
        pages = {
            "3": "3:heat",
            "4": "step 3 of rank 0",
            "5": "agent_started",
            "6": "has not ended",
            "7": "ranks by time",
        }
        for key, words in pages.items():
            seen.keys(key)
            shown = seen.until(words)
            assert shown.isascii()
            assert len(shown.splitlines()) == 24
            assert max(map(len, shown.splitlines())) <= 80
        assert not COLOURED.search(seen.text("-e"))
        seen.keys("C-c")
        assert seen.code() == 0


def test_a_key_opens_the_page_of_the_run(orch: Orch, project: Callable[..., Path], tmp_path: Path, go: Path) -> None:
    run_id, told, browser = start(orch, project, go), tmp_path / "told", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho loud >&2; printf "%s" "$*" > {told}.new; mv {told}.new {told}\n')
    browser.chmod(0o755)
    opening = orch.home / "ui" / "open.html"
    env = {"ORCH_HOME": str(orch.home), "LANG": "C.UTF-8", "BROWSER": str(browser)}
    with window(tmp_path, orch.argv("top", run_id), **env) as seen:
        seen.until("1:overview")
        seen.keys("o")
        wait_until(told.exists, "the browser")
        assert told.read_text() == opening.as_uri()
        assert re.search(rf"/enter#[\w-]+/run/{run_id}", opening.read_text())
        assert "loud" not in seen.until("the server keeps running; to stop it: orch ui --stop")
        seen.keys("q")
        assert seen.code() == 0  # neither the server nor the browser holds the terminal
    assert orch("ui", "--stop").code == 0


def test_a_terminal_that_can_not_be_drawn_on_is_refused(orch: Orch) -> None:
    with terminal(orch.argv("top"), orch.environment(TERM="dumb")) as shown:
        assert shown.code() == 2
    assert "orch status" in shown.text
    assert "\x1b" not in shown.text
