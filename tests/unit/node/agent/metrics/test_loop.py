"""Which files of a run are read, whose metric has a name, and what stands in the way of the others."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.metrics.loop import WrittenMetrics
from orchestrator.node.agent.sampling.loop import Started
from orchestrator.node.server.outputs import baseline
from orchestrator.protocol.code_baseline import write_baseline
from orchestrator.protocol.task import NodeTask, Program

from .written import EVENTS, scalar


class Looks:
    """A run's folder, and the looks at its files."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self.run, self.code, self.outputs = folder, folder / "code", folder / "outputs"
        for path in (self.code, self.outputs, folder / "nodes/0"):
            path.mkdir(parents=True, exist_ok=True)
        self.started, self.events = Started(0, {}), list[dict[str, Any]]()
        program = Program("script", "train.py", ())
        self.task = NodeTask(
            "r-1", 0, 1, ("a",), 2, str(folder), str(self.code), program, "fork", "gloo", "python", (), (0, 0), **values
        )
        self.metrics = self.new_agent()

    def new_agent(self) -> WrittenMetrics:
        return WrittenMetrics(self.task, lambda: self.started, self.events.append)

    def write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def look(self, seconds: float = 60.0) -> None:
        self.metrics.next_search = 0.0
        self.metrics.look(seconds)

    def found(self) -> dict[str, list[tuple[float, float]]]:
        """Return step and value of each metric, after a last look."""
        asyncio.run(self.metrics.end())
        found: dict[str, list[tuple[float, float]]] = {}
        for line in (self.run / "nodes/0/metrics.jsonl").read_bytes().splitlines():
            row = json.loads(line)
            for name in row.keys() - {"step", "attempt", "time"}:
                found.setdefault(name, []).append((row["step"], row[name]))
        return found


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    return Looks(tmp_path / "run")


def csv(*rows: tuple[int, float], name: str = "loss") -> bytes:
    return f"step,{name}\n".encode() + b"".join(b"%d,%g\n" % row for row in rows)


def test_files_of_each_kind_in_each_folder_are_read_as_they_grow(looks: Looks) -> None:
    looks.write(looks.outputs / "runs/a" / EVENTS, scalar("loss", 1.0, 1))
    looks.write(looks.code / "lightning_logs/version_0/metrics.csv", csv((1, 0.5), name="val_loss"))
    looks.write(looks.run / "results/metrics.jsonl", b'{"step": 1, "acc": 0.1}\n')
    looks.write(looks.run / "container/r-1/metrics.jsonl", b'{"step": 1, "bleu": 3}\n')
    looks.look()
    looks.write(looks.outputs / "runs/a" / EVENTS, scalar("loss", 2.0, 2))
    looks.write(looks.code / "lightning_logs/version_0/metrics.csv", b"2,0.25\n")
    looks.write(looks.code / "out/checkpoint-2/trainer_state.json", b'{"log_history": [{"step": 2, "lr": 1}]}')
    assert looks.found() == {
        "loss": [(1, 1.0), (2, 2.0)], "val_loss": [(1, 0.5), (2, 0.25)], "acc": [(1, 0.1)], "bleu": [(1, 3)],
        "lr": [(2, 1.0)],
    }  # fmt: skip
    assert looks.events == []


def test_orchs_own_files_and_those_that_came_with_the_code_are_not_the_runs(looks: Looks) -> None:
    for path in (looks.code / "old/metrics.csv", looks.code / "on/metrics.csv"):
        looks.write(path, csv((1, 9.0)))
    write_baseline(str(looks.code), baseline(str(looks.code)))
    looks.write(looks.run / "metrics.jsonl", b'{"step": 1, "own": 1}\n')
    looks.write(looks.run / "trackers/tensorboard" / EVENTS, scalar("own", 1.0, 1))
    looks.write(looks.code / "venv/lib/metrics.csv", csv((1, 9.0), name="lib"))
    looks.write(looks.code / "other/pyvenv.cfg", b"")
    looks.write(looks.code / "other/metrics.csv", csv((1, 9.0), name="lib"))
    looks.write(looks.code / "on/metrics.csv", b"2,8\n")
    assert looks.found() == {"loss": [(1, 9.0), (2, 8.0)]}


def test_links_and_pipes_are_not_opened_and_nothing_else_is_lost(looks: Looks, tmp_path: Path) -> None:
    looks.write(tmp_path / "private/metrics.csv", csv((1, 9.0), name="secret"))
    (looks.code / "linked").symlink_to(tmp_path / "private")
    (looks.outputs / "metrics.csv").symlink_to(tmp_path / "private/metrics.csv")
    os.mkfifo(looks.outputs / "metrics.jsonl")
    looks.write(looks.outputs / "a/metrics.csv", csv((1, 1.0)))
    looks.write(looks.outputs / "b/metrics.csv", csv((1, 1.0), name="acc"))
    looks.write(looks.outputs / "c/metrics.csv", csv((1, 1.0), name="bleu"))
    looks.look()
    for name in ("a", "b"):
        (looks.outputs / name / "metrics.csv").unlink()
    os.mkfifo(looks.outputs / "a/metrics.csv")
    (looks.outputs / "b/metrics.csv").symlink_to(tmp_path / "private/metrics.csv")
    looks.write(looks.outputs / "c/metrics.csv", b"2,2\n")
    assert looks.found() == {"loss": [(1, 1.0)], "acc": [(1, 1.0)], "bleu": [(1, 1.0), (2, 2.0)]}
    assert sorted(event.path.rpartition("outputs/")[2] for event in looks.events) == [
        "a/metrics.csv",
        "b/metrics.csv",
    ]


def test_a_damaged_file_is_named_once_and_loses_no_other(looks: Looks) -> None:
    looks.write(looks.outputs / "a" / EVENTS, scalar("loss", 1.0, 1) + bytes(range(40)))
    looks.write(looks.outputs / "b/metrics.jsonl", b"[" * 200_000 + b'\n{"step": 1, "acc": 1}\n')
    for _ in range(3):
        looks.look()
        looks.write(looks.outputs / "a" / EVENTS, b"more")
    assert looks.found() == {"loss": [(1, 1.0)], "acc": [(1, 1.0)]}
    assert [event.reason for event in looks.events] == [
        f"the record at byte {len(scalar('loss', 1.0, 1))} has a wrong checksum"
    ]


def test_a_second_attempt_writes_another_file_with_steps_of_the_first(looks: Looks) -> None:
    looks.write(looks.outputs / "runs/first" / EVENTS, b"".join(scalar("loss", step, step) for step in (1, 2, 3)))
    looks.look()
    looks.started = Started(1, {})
    looks.write(looks.outputs / "runs/second" / EVENTS, b"".join(scalar("loss", 10 * step, step) for step in (2, 3, 4)))
    assert looks.found() == {"loss": [(1, 1), (2, 2), (3, 3), (2, 20), (3, 30), (4, 40)]}


def test_a_checkpoint_of_trainer_repeats_the_log_and_doubles_nothing(looks: Looks) -> None:
    log: list[dict[str, float]] = []
    for step in (1, 2, 3):
        log.append({"step": step, "loss": step / 4})
        path = looks.code / f"out/checkpoint-{step}/trainer_state.json"
        looks.write(path, json.dumps({"log_history": log}).encode())
        looks.look()
    shutil.rmtree(looks.code / "out/checkpoint-1")
    assert looks.found() == {"loss": [(1, 0.25), (2, 0.5), (3, 0.75)]}


def test_of_two_folders_with_a_metric_of_one_name_the_other_is_called_by_its_folder_too(looks: Looks) -> None:
    looks.write(looks.outputs / "logs/train" / EVENTS, scalar("loss", 1.0, 1))
    looks.write(looks.outputs / "logs/validation" / EVENTS, scalar("loss", 2.0, 1))
    looks.write(looks.outputs / "version_0/metrics.csv", csv((1, 3.0)))
    assert looks.found() == {"loss": [(1, 1.0)], "validation/loss": [(1, 2.0)]}


def test_another_ranks_event_file_is_left_out(looks: Looks) -> None:
    looks.started = Started(0, {0: 41, 1: 42})
    looks.metrics.note(looks.started)
    host = socket.gethostname()
    looks.write(looks.outputs / f"events.out.tfevents.1700000000.{host}.42.0", scalar("loss", 2.0, 1))
    looks.write(looks.outputs / f"events.out.tfevents.1700000001.{host}.41.0", scalar("loss", 1.0, 1))
    assert looks.found() == {"loss": [(1, 1.0)]}


def test_a_large_file_does_not_use_up_the_time_of_the_others(looks: Looks) -> None:
    looks.write(looks.outputs / "a" / EVENTS, scalar("loss", 1.0, 1) * 100_000)
    looks.write(looks.outputs / "b/metrics.csv", csv((1, 1.0), name="acc"))
    looks.look(0.01)
    looks.look(0.01)
    assert b"acc" in (looks.run / "nodes/0/metrics.jsonl").read_bytes()
    asyncio.run(looks.metrics.end())
    assert [event.reason for event in looks.events] in ([], ["the run ended before the whole file was read"])


def test_another_agent_of_the_run_goes_on_and_doubles_nothing(looks: Looks) -> None:
    looks.write(looks.outputs / "metrics.csv", csv((1, 1.0)))
    looks.look()
    looks.metrics = looks.new_agent()
    looks.write(looks.outputs / "metrics.csv", b"2,2\n")
    assert looks.found() == {"loss": [(1, 1.0), (2, 2.0)]}


def test_a_folder_that_is_gone_ends_nothing(looks: Looks) -> None:
    looks.write(looks.outputs / "metrics.csv", csv((1, 1.0)))
    shutil.rmtree(looks.run / "nodes")
    looks.look()
    looks.look()
    assert [event.reason for event in looks.events] == ["No such file or directory"]


def test_events_are_recorded_in_the_thread_of_the_agent(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    looks.write(looks.outputs / "events.out.tfevents.1.a.1.0", b"x" * 100)
    threads = list[threading.Thread]()

    def record(*_: object, **__: object) -> None:
        threads.append(threading.current_thread())

    metrics = WrittenMetrics(looks.task, lambda: looks.started, record)

    async def agent() -> None:
        running = asyncio.create_task(metrics.run())
        await asyncio.sleep(0)
        await metrics.end()
        running.cancel()

    asyncio.run(agent())
    assert threads == [threading.main_thread()]
