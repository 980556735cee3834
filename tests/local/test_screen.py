"""What a person sees of a run: progress bars as they turn, and tables as wide as the terminal."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.local.conftest import Orch
from tests.patience import PATIENCE
from tests.terminal import terminal
from tests.testbed.machine import wait_until

# A progress bar as tqdm writes it, in three states; the second one waits until somebody has looked.
BARS = """
import os, sys, time
rank = os.environ["RANK"]
print("begin", flush=True)
print(f"\\r{rank}: 10%|#   | 1/9", end="", flush=True)
print(f"\\r{rank}: 50%|##  | 5/9, a postfix that is longer than it was before, and much longer than is good for it",
      end="", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
print(f"\\r{rank}:100%|####| 9/9" + " " * 80, flush=True)
print(f"\\r      \\rend of {rank}", end="", flush=True)
"""
SHOWN = "5/9, a postfix that is longer"


def job(project: Callable[..., Path], go: Path) -> Path:
    text = json.dumps({"script": "main.py", "env": {"GO": str(go)}, "warm_imports": []})
    folder = project(main_py=BARS)
    (folder / "bars.yaml").write_text(text)
    return folder / "bars.yaml"


def raw(orch: Orch, *options: str) -> bytes:
    argv = orch.argv("logs", "last", "--raw", *options)
    return subprocess.run(argv, env=orch.environment(), stdout=subprocess.PIPE, timeout=PATIENCE, check=True).stdout


def test_a_progress_bar_is_one_line_on_a_terminal_and_its_last_state_elsewhere(
    orch: Orch, project: Callable[..., Path], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    argv = orch.argv("submit", str(job(project, go)), "-p", "local", "--nproc-per-node", "2", "-f")
    with terminal(argv, orch.environment(TERM="xterm"), columns=70) as screen:
        screen.until(SHOWN)
        shown = screen.text.rpartition("\n")[2].rpartition("\x1b[K")[2]
        assert shown.startswith("0: 50%|##  | 5/9, a postfix")
        assert shown.endswith("...")
        assert len(shown) <= 69
        asked = orch("status", "last", "--json")
        assert asked.json["last_line"].startswith("0: 50%|##  | 5/9")
        for columns in (60, 80, 100, 120):
            for command in (["status"], ["status", "last"]):
                with terminal(orch.argv(*command), orch.environment(TERM="dumb"), columns=columns) as table:
                    assert table.code() == 0
                lines = table.text.splitlines()
                assert [line for line in lines if len(line) > columns and "folder" not in line] == []
                assert "0: 50%|##  | 5/9" in table.text
        assert "good for it" in orch("status").out  # piped: uncut
        go.touch()
        assert screen.code() == 0
    assert "\n\n" not in screen.text
    assert re.search(r"\x1b\[K0:100%\|####\| 9/9\nend of 0\n", screen.text)
    assert orch("logs", "last").out == "begin\n0:100%|####| 9/9\nend of 0\n"
    both = sorted(orch("logs", "last", "--all").out.splitlines())
    assert both == sorted(f"n0/r{rank} {line}" for rank in (0, 1) for line in
                          ("begin", f"{rank}:100%|####| 9/9", f"end of {rank}"))  # fmt: skip
    assert raw(orch) == (orch.run().node(0) / "attempt_0" / "rank_0.log").read_bytes()
    assert orch("logs", "last", "--tail", "2").out == "0:100%|####| 9/9\nend of 0\n"


def test_the_bars_of_several_ranks_share_one_live_line(
    orch: Orch, project: Callable[..., Path], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    orch.submit(str(job(project, go)), "-p", "local", "--nproc-per-node", "2")
    with terminal(orch.argv("logs", "last", "--all", "-f"), orch.environment(TERM="xterm", NO_COLOR="1")) as screen:
        screen.until("n0/r0 0: 50%|##  | 5/9")
        screen.type("\x03")
        assert screen.code() == 130
    assert "detached" in screen.text
    go.touch()
    assert orch("wait", "last").code == 0
    lines = raw(orch, "--all").split(b"\n")
    assert lines.pop() == b""
    assert {line[:6] for line in lines} == {b"n0/r0 ", b"n0/r1 "}
    assert b"n0/r1 \r      \rend of 1" in lines  # though it ended no line


def test_a_refused_submit_is_no_run(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(job_yaml="command: [echo, hello]\n", away_yaml="kind: ssh\nhosts: [{host: 127.0.0.1, port: 1}]\n")
    job, away = str(folder / "job.yaml"), str(folder / "away.yaml")
    before = orch.submit(job, "-p", "local")
    assert orch("wait", "last").code == 0
    refused = orch("submit", job, "-p", away)
    assert (refused.code, refused.out) == (1, "")
    assert [run["run_id"] for run in orch("status", "--all", "--json").json] == [before.run_id]
    assert orch("status", "last", "--json").json["run_id"] == before.run_id
    assert orch("status", "job", "--json").json["run_id"] == before.run_id  # by its name
    assert sorted(path.name for path in (orch.home / "runs").iterdir()) == [before.run_id]
    wait_until(lambda: not any((orch.home / "live").iterdir()), "the end of the run before")
