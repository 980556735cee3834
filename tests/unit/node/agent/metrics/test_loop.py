"""Which files of a run are read, whose metric has a name, and what stands in the way of the others."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.metrics.loop import WrittenMetrics
from orchestrator.node.agent.sampling.loop import Started
from orchestrator.node.server.outputs import baseline
from orchestrator.protocol.code_baseline import write_baseline
from orchestrator.protocol.task import NodeTask, Program

from .written import EVENTS, history, scalar, wandb_file


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

    def begin_start(self, number: int) -> None:
        """Begin another start of the run, with a new agent."""
        self.metrics.look(60.0, is_last=True)
        self.started = Started(number, {}, since=math.inf)
        self.metrics = self.new_agent()
        self.look()
        self.begin_attempt(number)

    def begin_attempt(self, number: int) -> None:
        """Begin another attempt. All files that are there were last written an hour before it."""
        self.started = Started(number, {}, since=time.time() - 60)
        for path in self.outputs.rglob("*"):
            os.utime(path, (time.time() - 3600,) * 2)

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
            for name in row.keys() - {"step", "attempt", "time", "kind", "series"}:
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


def summary(month: str, hour: int, host: str, rest: str = "") -> str:
    """Return the path of an event file of SummaryWriter in its default folder."""
    return f"runs/{month}_{hour:02}-00-01_{host}{rest}/events.out.tfevents.17000{hour:02}000.{host}.{hour}.0"


def two_starts(looks: Looks, files: Sequence[tuple[str, str]], write: Callable[[Path, str, int], None]) -> None:
    """Let two starts on two hosts write a point to each pair of files, and look as each start's agent does."""
    for first, _ in files:
        write(looks.outputs / first, first, 1)
    looks.look()
    looks.begin_start(1)
    for _, second in reversed(files):
        write(looks.outputs / second, second, 2)
        looks.look()


def test_the_second_start_continues_the_curves_of_event_files(looks: Looks) -> None:
    pairs = [
        (summary("Nov28", 5, "n1"), summary("Nov28", 6, "n2")),
        (summary("Nov28", 5, "n1", "/eval"), summary("Dec01", 6, "n2", "/eval")),
        (summary("Nov28", 5, "n1", "LR_0.1"), summary("Dec01", 6, "n2", "LR_0.1")),
        ("tb/20261128-050000/a/" + EVENTS, "tb/20261128-060000/a/" + EVENTS),
        (f"out/version_0/{EVENTS}", f"out/version_1/{EVENTS}"),
    ]
    value = {path: number for number, pair in enumerate(pairs) for path in pair}

    def write(path: Path, name: str, step: int) -> None:
        looks.write(path, scalar("loss", value[name], step))

    two_starts(looks, pairs, write)
    assert looks.found() == {
        # "out" is the first by path, and each other folder's metric begins with the name of the folder
        "loss": [(1, 4), (2, 4)], "runs/loss": [(1, 0), (2, 0)], "eval/loss": [(1, 1), (2, 1)],
        "LR_0.1/loss": [(1, 2), (2, 2)], "a/loss": [(1, 3), (2, 3)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "data"),
    [
        ("logs/version_0/metrics.csv", "logs/version_1/metrics.csv", lambda step: csv((step, 0.5))),
        ("logs/version_7001/metrics.csv", "logs/version_7002/metrics.csv", lambda step: csv((step, 0.5))),
        ("2026-11-28/05-00-00/metrics.csv", "2026-11-29/06-00-00/metrics.csv", lambda step: csv((step, 0.5))),
        ("log_n1/metrics.jsonl", "log_n2/metrics.jsonl", lambda step: b'{"step": %d, "loss": 0.5}\n' % step),
        ("runs/brave-fox/metrics.csv", "runs/shy-owl/metrics.csv", lambda step: csv((step, 0.5))),
        (
            "out-1700000000/checkpoint-1/trainer_state.json", "out-1700003600/checkpoint-2/trainer_state.json",
            lambda step: b'{"log_history": [{"step": %d, "loss": 0.5}]}' % step,
        ),
        (
            "wandb/offline-run-20261128_050000-ab12/run-ab12.wandb",
            "wandb/offline-run-20261128_060000-cd34/run-cd34.wandb",
            lambda step: wandb_file([history(step, loss="0.5")]),
        ),
    ],
)  # fmt: skip
def test_the_second_start_continues_the_curve_of_each_format(
    looks: Looks, first: str, second: str, data: Callable[[int], bytes]
) -> None:
    two_starts(looks, [(first, second)], lambda path, _, step: looks.write(path, data(step)))
    assert looks.found() == {"loss": [(1, 0.5), (2, 0.5)]}


def test_an_attempt_of_the_same_agent_and_one_of_another_host_continue_the_curve_too(looks: Looks) -> None:
    for number in (1, 2, 3):
        looks.begin_attempt(number - 1)
        looks.write(looks.outputs / summary("Nov28", number, f"n{number}"), scalar("loss", 0.5, number))
        looks.look()
    looks.begin_start(3)
    shutil.rmtree(looks.outputs)  # node 0 is on another host now, and sees no earlier file
    looks.write(looks.outputs / summary("Nov28", 4, "n4"), scalar("loss", 0.5, 4))
    assert looks.found() == {"loss": [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5)]}


def test_two_writers_of_one_start_are_kept_apart_in_each_start(looks: Looks) -> None:
    one, two = summary("Nov28", 5, "n1"), summary("Nov28", 6, "n1")
    looks.write(looks.outputs / one, scalar("loss", 1.0, 1))
    looks.write(looks.outputs / two, scalar("loss", 2.0, 1))
    looks.look()
    looks.begin_start(1)
    looks.write(looks.outputs / summary("Nov28", 7, "n2"), scalar("loss", 1.0, 2))
    looks.write(looks.outputs / summary("Nov28", 8, "n2"), scalar("loss", 2.0, 2))
    assert looks.found() == {"loss": [(1, 1.0), (2, 1.0)], "runs-2/loss": [(1, 2.0), (2, 2.0)]}


def test_a_writer_that_begins_first_after_a_restart_does_not_take_another_writers_name(looks: Looks) -> None:
    looks.write(looks.outputs / "logs/validation/metrics.csv", csv((1, 2.0)))
    looks.look()  # the program has evaluated before its first step
    looks.write(looks.outputs / "logs/train/metrics.csv", csv((1, 1.0)))
    looks.look()
    looks.begin_start(1)
    looks.write(looks.outputs / "logs/train/metrics.csv", b"2,1\n")
    looks.write(looks.outputs / "logs/validation/metrics.csv", b"2,2\n")
    assert looks.found() == {"loss": [(1, 2.0), (2, 2.0)], "train/loss": [(1, 1.0), (2, 1.0)]}


def test_points_that_an_earlier_agent_has_not_read_belong_to_its_attempt(looks: Looks) -> None:
    looks.write(looks.outputs / "metrics.csv", csv((1, 1.0)))
    looks.look()
    looks.write(looks.outputs / "metrics.csv", b"2,2\n")
    looks.metrics, looks.started = looks.new_agent(), Started(1, {}, since=math.inf)
    looks.look()
    rows = [json.loads(line) for line in (looks.run / "nodes/0/metrics.jsonl").read_bytes().splitlines()]
    assert [(row["step"], row["attempt"]) for row in rows if "step" in row] == [(1, 0), (2, 0)]


def test_a_damaged_record_of_a_series_loses_no_values(looks: Looks) -> None:
    looks.write(looks.run / "nodes/0/metrics.jsonl", b'{"kind":"series","series":{"format":1}}\n{"kind":"series"}\n')
    looks.write(looks.outputs / "metrics.csv", csv((1, 1.0)))
    looks.look()
    rows = [json.loads(line) for line in (looks.run / "nodes/0/metrics.jsonl").read_bytes().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows if "step" in row] == [(1, 1.0)]


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
