"""Words in front of a command's program."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.specs.wrappers import peel, program_of


@pytest.mark.parametrize(
    "before",
    [
        "", "A=1 B='x y'", "env -u X A=1", "env -i", "exec -a name", "nohup", "time -p", "/usr/bin/time -f '%e' -o log",
        "nice", "nice -n 10", "nice -10", "nice --adjustment=10 --", "ionice -c2 -n 7", "taskset -c 0-3",
        "taskset 0xff", "numactl -N 0 --membind=0", "numactl --cpunodebind 0", "stdbuf -oL -e 0", "timeout -k 5 3h",
        "timeout -s INT 60", "setsid -w", "uv run --with x --python=3.12", "uv run", "poetry run",
        "conda run --live-stream -n 'my env'", "micromamba run -p /opt/env", "command", "sudo -E -u me",
        "nohup env A=1 nice -n 5 conda run -n x time",
    ],
)  # fmt: skip
def test_they_are_taken_off(before: str) -> None:
    assert program_of([*shlex.split(before), "torchrun", "-n", "train.py"]) == ["torchrun", "-n", "train.py"]


@pytest.mark.parametrize("option", ["-m", "--module"])
def test_uv_starts_a_module(option: str) -> None:
    assert program_of(["uv", "run", option, "train", "-x"]) == ["python", "-m", "train", "-x"]


@pytest.mark.parametrize("line", ["torchrun nice x", "uv pip install x", "conda activate x", "timer 3 x", "./nicer"])
def test_other_programs_are_not(line: str) -> None:
    assert peel(line.split()) is None
    assert program_of(line.split()) == line.split()


@pytest.mark.parametrize("line", ["", "A=1", "nice -n", "timeout 3h", "conda run -n", "env --"])
def test_nothing_may_follow(line: str) -> None:
    assert program_of(line.split()) == []
