"""Logs and disks under pressure: no byte lost, little memory, and a full disk that ends nothing but itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.looking.run import wait
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import marked
from orchestrator.runs.sweeps import points_in
from orchestrator.supervisor.reconcile import reconcile
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

from .conftest import Orch
from .test_runs import wait_for_line

MIB = 1 << 20


def test_a_flood_a_long_line_bars_and_bad_bytes_are_all_kept(orch: Orch, project) -> None:
    program = """
import os, sys
out = sys.stdout.buffer
out.write(b"x" * (10 << 20) + b"\\n")
for number in range(1000):
    out.write(b"\\r%d %%" % number)
out.write(b"\\n\\xff\\xfe not utf-8\\n")
line = b"y" * 999 + b"\\n"
for _ in range(200):
    out.write(line * 1000)
out.write(b"the end\\n")
out.flush()
launcher = os.getppid()
peak = [text for text in open(f"/proc/{launcher}/status") if text.startswith("VmHWM")][0]
print(peak.split()[1])
"""
    folder = project(flood_py=program, flood_yaml="script: flood.py\nlauncher: exec\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    run = orch.submit(str(folder / "flood.yaml"), "-p", str(folder / "one.yaml"))
    assert wait(run, timeout=PATIENCE).state == "succeeded"
    log = run.node(0) / "attempt_0" / "rank_0.log"
    bars = sum(len(f"\r{number} %") for number in range(1000))
    peak = log.read_bytes().rsplit(b"\n", 2)[1]
    expected = (10 << 20) + 1 + bars + len(b"\n\xff\xfe not utf-8\n") + 200_000_000 + len(b"the end\n") + len(peak) + 1
    assert log.stat().st_size == expected
    assert int(peak) < 128 * 1024  # KiB
    tail = orch("logs", run.run_id, "--tail", "3")
    assert tail.out.splitlines()[1] == "the end"


def test_a_log_is_rotated_once_at_its_limit_and_says_so(orch: Orch, project) -> None:
    program = "for number in range(40_000):\n    print(f'{number:09d}')\n"
    folder = project(count_py=program, count_yaml="script: count.py\nlimits: {log: 300KB}\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    done = orch("submit", str(folder / "count.yaml"), "-p", str(folder / "one.yaml"), "-f")
    assert done.code == 0, done.err
    log = orch.run().node(0) / "attempt_0" / "rank_0.log"
    assert log.read_text().startswith("[orch: rank_0.log reached its limit of 307200 bytes; the ")
    said = [line for line in orch("logs", "last").out.splitlines() if not line.startswith("[orch")]
    assert said == [f"{number:09d}" for number in range(40_000)]
    followed = [line for line in done.out.splitlines() if not line.startswith("[orch")]
    assert followed == said


def test_output_without_line_ends_keeps_to_the_limit_too(orch: Orch, project) -> None:
    program = "import sys\nfor number in range(2000):\n    sys.stdout.write('z' * 4096)\nsys.stdout.write('the end')\n"
    folder = project(endless_py=program, endless_yaml="script: endless.py\nlimits: {log: 1MB}\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    done = orch("submit", str(folder / "endless.yaml"), "-p", str(folder / "one.yaml"), "-f")
    assert done.code == 0, done.err
    logs = sorted((orch.run().node(0) / "attempt_0").glob("rank_0.log*"))
    assert all(log.stat().st_size < MIB + (1 << 16) for log in logs)
    assert orch("logs", "last").out.endswith("the end\n")


def test_a_programs_terminal_sequences_reach_no_terminal_unless_asked_for(orch: Orch, project) -> None:
    program = "import sys\nprint('\\x1b[2J\\x1b[32mgreen\\x1b[0m')\nsys.exit('\\x1b]0;title\\x07the last words')\n"
    folder = project(paint_py=program, paint_yaml="script: paint.py\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    orch("submit", str(folder / "paint.yaml"), "-p", str(folder / "one.yaml"), "-f")
    assert orch("logs", "last").out == "green\nthe last words\n"
    assert orch("logs", "last", "--raw").out == "\x1b[2J\x1b[32mgreen\x1b[0m\n\x1b]0;title\x07the last words\n"
    for page in (orch("why", "last").out, orch("status", "last").out, orch("status").out):
        assert "\x1b" not in page
    assert "\\x1b]0;title\\x07the last words" in orch("why", "last").out


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of four MiB, or of the size that a test names."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', '4m')}", "tmpfs", str(folder)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_costs_the_log_and_not_the_run(orch: Orch, project, small_disk: Path) -> None:
    program = "for number in range(100_000):\n    print('z' * 99)\n"
    folder = project(fill_py=program, fill_yaml="script: fill.py\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    runner = replace(orch, home=small_disk / "home")
    run = runner.submit(str(folder / "fill.yaml"), "-p", str(folder / "one.yaml"))
    state = wait(run, timeout=PATIENCE)
    assert state.state == "succeeded", state.verdict
    told = runner.events(run, "launcher_log_error")
    assert told[0]["path"].endswith("rank_0.log")
    assert "No space left" in told[0]["error"]
    exits = runner.events(run, "rank_exit")
    size = (run.node(0) / "attempt_0" / "rank_0.log").stat().st_size
    assert exits[0]["log_bytes_lost"] == 10_000_000 - size
    (run.node(0) / "attempt_0" / "rank_0.log").unlink()
    reconcile(runner.home, run)


@pytest.mark.parametrize("now", [True, False])
def test_a_full_disk_does_not_keep_a_run_from_being_cancelled(orch: Orch, project, small_disk: Path, now: bool) -> None:
    folder = project(
        hold_py="import time\nprint('is up', flush=True)\ntime.sleep(600)\n", hold_yaml="script: hold.py\n"
    )
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    runner = replace(orch, home=small_disk / "home")
    run = runner.submit(str(folder / "hold.yaml"), "-p", str(folder / "one.yaml"))
    wait_for_line(run, "is up")
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as filler:
        while filler.write(b"x" * 512):
            pass
    done = runner("cancel", run.run_id, *(["--now"] if now else []))
    assert marked(run.run_id) == []
    if done.code != 0:  # the agent's last words took the room that its end gave
        assert "the end could not be recorded" in done.err
    assert [event["cancelled"] for event in runner.events(run, "signal")] == [True]
    (small_disk / "filler").unlink()
    assert runner("cancel", run.run_id).code == 0
    assert state_of(run).state == "cancelled"


MEMORY = Path("/sys/fs/cgroup/memory")


def is_removed(group: Path) -> bool:
    """Remove a group of the kernel's, unless it still counts a process that has ended."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


ITSELF = "    hoard = bytearray(400 << 20)\n"
IN_A_WORKER = """\
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1) as pool:
        pool.submit(bytearray, 400 << 20).result()
"""


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (ITSELF, ["SIGKILL, from the kernel: its cgroup ran out of memory"]),
        (IN_A_WORKER, ["terminated abruptly", "; the kernel killed a process of this rank's cgroup"]),
    ],
)
def test_a_rank_that_the_kernel_kills_for_memory_is_named_so(orch: Orch, project, what: str, reason: list[str]) -> None:
    program = f"import os, time\nif os.environ['RANK'] == '1':\n{what}time.sleep(20)\n"
    if os.geteuid() != 0 or not (MEMORY / "cgroup.procs").exists():
        pytest.skip("needs root and a memory cgroup (version 1) to set a limit")
    folder = project(eat_py=program, eat_yaml=f"command: ['{sys.executable}', eat.py]\nretry: {{infra: 0}}\n")
    group = MEMORY / f"orch-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(200 * MIB))
        argv = orch.argv("submit", str(folder / "eat.yaml"), "-p", "local", "-f")
        inside = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *argv]
        done = subprocess.run(
            inside, env=orch.environment(), cwd=orch.cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 100
        verdict = orch("why", "last", "--json").json
        assert (verdict["rank"], verdict["cause"]) == (1, "infra")
        for words in reason:
            assert words in verdict["reason"]
        assert "memory" in verdict["hint"]
    finally:
        while pids := (group / "cgroup.procs").read_text().split():  # the supervisor, which has nothing left to do
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    (MEMORY / "cgroup.procs").write_text(pid)
        wait_until(lambda: is_removed(group), "the end of the group")


FILLS = """
with open("filling", "wb", 0) as file:
    while True:
        file.write(bytes(range(1, 256)) * 16)
"""


def test_a_rank_that_fails_because_the_disk_is_full_is_named_and_its_run_can_be_ended_and_removed(
    orch: Orch, project, small_disk: Path
) -> None:
    folder = project(fill_py=FILLS, fill_yaml="script: fill.py\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    runner = replace(orch, home=small_disk / "home")
    run = runner.submit(str(folder / "fill.yaml"), "-p", str(folder / "one.yaml"))
    state = wait(run, timeout=PATIENCE)
    assert state.verdict is not None
    assert state.verdict.reason.startswith("rank 0 on node 0"), state.verdict
    with contextlib.suppress(OSError), open(small_disk / "more", "wb", 0) as file:
        while True:
            file.write(bytes(4096))
    for words in (("status",), ("why", run.run_id), ("wait", run.run_id), ("cancel", run.run_id), ("gc",)):
        done = runner(*words)
        assert done.code in (0, 100), (words, done.err)
    removed = runner("rm", run.run_id)
    assert (removed.code, run.path.exists()) == (0, False), removed.err


POINT = """
import os, sys
with open("model.txt", "w") as file:
    file.write(os.environ["X"])
if os.environ["X"] == "2":  # the rest of the disk, except what a run's records need
    space = os.statvfs(sys.argv[1])
    with open(f"{sys.argv[1]}/others", "wb") as file:
        file.write(bytes(space.f_bavail * space.f_bsize - 700_000))
"""


@pytest.mark.parametrize("small_disk", ["16m"], indirect=True)  # each run has a copy of orch
def test_a_sweep_whose_disk_is_full_at_its_third_run_keeps_the_first_two(orch: Orch, project, small_disk: Path) -> None:
    folder = project(point_py=POINT, point_yaml=f"script: point.py\nargs: [{small_disk}]\n")
    (folder / "data.bin").write_bytes(os.urandom(800_000))
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    runner = replace(orch, home=small_disk / "home")
    line = ("submit", str(folder / "point.yaml"), "-p", str(folder / "one.yaml"), "--sweep", "job.env.X=1..3")
    runs = points_in(runner.home, runner(*line, "--parallel", "1", "--json").json["sweep"])
    states = [wait(run, timeout=PATIENCE) for run in runs]
    assert [state.state for state in states] == ["succeeded", "succeeded", "failed"]
    why = runner("why", runs[2].run_id).out
    assert f"{runs[2].path}/" in why
    assert "No space left on device" in why
    assert [(run.path / "code/model.txt").read_text() for run in runs[:2]] == ["1", "2"]
    (small_disk / "others").unlink()
    for run in runs:
        reconcile(runner.home, run)
