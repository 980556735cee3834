"""GPUs of this machine, by a library that tells of cards which a file describes: what runs hold of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.runs.store import RunDir
from tests import nvml

from .conftest import Orch

JOB = """command:
- bash
- -c
- 'echo "$ORCH_GPUS=$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GROUP_RANK" > {said}; read end < {gate}'
code: {{dir: code}}
limits: {{grace: 1}}
"""


def given(number: int, node: int = 0, *, shown: int | None = None) -> str:
    """Return what a rank says that was given this card. `shown` is the card's number among those that it can open."""
    return f"{nvml.uuid(number)}={number if shown is None else shown} PCI_BUS_ID {node}"


class Cards:
    """A machine with cards, on which a run says what it sees of them and then waits."""

    def __init__(self, orch: Orch, folder: Path, state: Path) -> None:
        self.orch, self.folder, self.state = orch, folder, state
        self.variables: dict[str, str] = {}
        (folder / "code").mkdir(exist_ok=True)
        os.mkfifo(folder / "gate")

    def has(self, *cards: str) -> None:
        self.variables = nvml.describe(self.state, *cards).environment

    def submit(self, name: str, *, env: str = "", nodes: int = 1, ranks: str = "1", setup: str = "") -> RunDir:
        said = self.folder / name
        os.mkfifo(said)
        job, place = self.folder / f"{name}.yaml", self.folder / f"{nodes}-{ranks}.yaml"
        job.write_text(JOB.format(said=said, gate=self.folder / "gate") + env)
        place.write_text(f"kind: local\nnodes: {nodes}\nnproc_per_node: {ranks}\n{setup}")
        return self.orch.submit(str(job), "-p", str(place), **self.variables)

    def seen(self, name: str) -> list[str]:
        """Return what the run's ranks say; waits for them."""
        with open(self.folder / name, encoding="utf-8") as file:
            return sorted(file.read().split("\n")[:-1])


@pytest.fixture
def cards(orch: Orch, project: Callable[..., Path], tmp_path: Path) -> Cards:
    return Cards(orch, project(), tmp_path / "cards")


def test_two_runs_have_cards_of_their_own_and_a_third_waits_for_one(cards: Cards) -> None:
    cards.has(nvml.card(0), nvml.card(1), nvml.card(2, f"process {os.getpid()} 1000000"))
    first, second = cards.submit("first"), cards.submit("second")
    seen = [*cards.seen("first"), *cards.seen("second")]
    assert sorted(seen) == [given(number) for number in (0, 1)]
    assert [event["gpus"] for event in cards.orch.events(first, "agent_started")] == [1]
    refused = cards.orch("submit", str(cards.folder / "first.yaml"), "-p", str(cards.folder / "1-1.yaml"), "--no-wait",
                         **cards.variables)  # fmt: skip
    assert refused.code == 1
    assert "this machine: none of the 3 GPUs is free, 1 is needed: " in refused.err
    assert f"run {first.run_id} since 2" in refused.err
    assert f"{nvml.uuid(2)} used by " in refused.err
    assert f", pid {os.getpid()}, of user" in refused.err
    third = cards.submit("third")
    assert "number 1 in the queue: " in cards.orch("status", third.run_id, "--json").json["detail"]
    assert cards.orch("cancel", second.run_id, "--now").code == 0
    assert cards.seen("third") == [seen[1]]


def test_each_node_on_this_machine_has_its_part_and_the_jobs_own_choice_counts(cards: Cards) -> None:
    cards.has(*map(nvml.card, range(4)))
    env = 'env: {CUDA_VISIBLE_DEVICES: "3,1"}\n'
    cards.submit("parts", env=env, nodes=2)
    assert cards.seen("parts")[:1] in ([given(1, 1)], [given(3)])
    (cards.folder / "bad.yaml").write_text((cards.folder / "parts.yaml").read_text().replace("3,1", "7"))
    place = str(cards.folder / "2-1.yaml")
    refused = cards.orch("submit", str(cards.folder / "bad.yaml"), "-p", place, **cards.variables)
    assert refused.code == 1
    assert "this machine: the job's CUDA_VISIBLE_DEVICES=7 names 7, and it has 4 GPUs: 0 (GPU-" in refused.err


@pytest.mark.parametrize(
    ("setup", "shown"),
    [
        ("setup: [export CUDA_VISIBLE_DEVICES=1]\n", f"{nvml.uuid(2)}=1 PCI_BUS_ID 0"),  # as a login shell may do again
        ("setup: [export CUDA_DEVICE_ORDER=FASTEST_FIRST]\n", f"{nvml.uuid(2)}={nvml.uuid(2)} FASTEST_FIRST 0"),
    ],
    ids=["visible", "order"],
)
def test_a_shell_limits_the_choice_and_a_card_that_cannot_be_opened_has_no_number(
    cards: Cards, setup: str, shown: str
) -> None:
    cards.has(nvml.card(0), nvml.card(1, "hidden"), nvml.card(2))
    cards.variables["CUDA_VISIBLE_DEVICES"] = "1"
    cards.submit("limited", setup=setup)
    assert cards.seen("limited") == [shown]


def test_where_a_card_is_in_mig_mode_the_others_have_no_certain_number(cards: Cards) -> None:
    part = nvml.card(1, f"instance {nvml.mig_uuid(1, 1)} 1 0").replace("mig 0", "mig 1")
    cards.has(nvml.card(0), part, nvml.card(2))
    for name, uuid in (("first", nvml.uuid(0)), ("second", nvml.mig_uuid(1, 1)), ("third", nvml.uuid(2))):
        cards.submit(name)
        assert cards.seen(name) == [f"{uuid}={uuid} PCI_BUS_ID 0"]


def test_a_submit_is_refused_where_cards_exist_and_the_library_cannot_start(cards: Cards) -> None:
    cards.has("broken 18\n")
    cards.variables["CUDA_VISIBLE_DEVICES"] = "0"
    (cards.folder / "job.yaml").write_text(JOB.format(said="/dev/null", gate=cards.folder / "gate"))
    for leases in ("true", "false"):
        (cards.folder / "place.yaml").write_text(f"kind: local\nnproc_per_node: 1\nleases: {leases}\n")
        words = ("submit", str(cards.folder / "job.yaml"), "-p", str(cards.folder / "place.yaml"))
        refused = cards.orch(*words, **cards.variables)
        assert refused.code == 1
        assert "this machine: it has 1 GPU, but NVML can't be initialized: Driver/library version mism" in refused.err
        assert "reboot that machine" in refused.err


def test_a_program_can_tell_what_it_was_given_whatever_it_is_shown(cards: Cards) -> None:
    cards.has(nvml.card(0), nvml.card(1), nvml.card(2))
    (cards.folder / "2-cards.yaml").write_text("kind: local\nnproc_per_node: 1\nleases: false\n")
    job = cards.folder / "own.yaml"
    os.mkfifo(cards.folder / "own")
    env = 'env: {CUDA_VISIBLE_DEVICES: "2,0"}\n'
    job.write_text(JOB.format(said=cards.folder / "own", gate=cards.folder / "gate") + env)
    cards.orch.submit(str(job), "-p", str(cards.folder / "2-cards.yaml"), **cards.variables)
    assert cards.seen("own") == [f"{nvml.uuid(2)},{nvml.uuid(0)}=2,0 PCI_BUS_ID 0"]


def test_the_doctor_looks_at_this_machines_cards_and_has_torch_try_them(orch: Orch, tmp_path: Path) -> None:
    stub = nvml.describe(tmp_path / "cards", nvml.card(0, "volatile 2"), nvml.card(1, f"process {os.getpid()} 7"))
    done = orch("doctor", "-p", "local", "--json", **stub.environment)
    rows = {each["what"]: each for each in done.json}
    assert done.code == 1
    assert rows["gpus"]["value"] == "2 NVIDIA H200"
    assert rows["gpu health"]["value"] == "GPU 0: 2 uncorrectable errors"
    assert f"pid {os.getpid()}, of " in rows["gpu use"]["value"]
    assert (rows["cuda"]["level"], rows["driver"]["value"].split(",")[0]) == ("fail", "580.65.06")
