"""A start names each machine that can't take part, and what to do; nothing is started, and nothing stays there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.agents.handle import read_handle
from orchestrator.backends.agents.over_ssh import AgentsOverSsh
from orchestrator.backends.agents.relaunch import relaunch
from orchestrator.backends.hosts import MachinesError
from orchestrator.errors import BackendError
from orchestrator.outcome.restart import Relaunch
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, create_run
from tests.machines import FakeMachine, FakePool, Health, Told
from tests.patience import PATIENCE
from tests.unit.specs.test_plan import job, planned, profile

NAMES = ("n1", "n2", "n3")
HELLO: dict[str, Any] = {
    "host": "", "python": "3.11.2", "path": "/usr/bin/python3",
    "workdir": "/home/me/.orch", "cores": 8, "gpus": 0, "devices": [], "visible": None,
    "addresses": [], "free": 1 << 40, "memory": 1 << 34, "shm": 1 << 33, "lacks_tls": "", "interface": None,
}  # fmt: skip
WELL: dict[str, Told] = {
    "missing": ({}, b"[]"), "unpack": {"files": 0}, "write_file": {"size": 0}, "interpreter": {"python": "3.11.2"},
    "remove": {"removed": True}, "start_agent": {"pid": 1, "started": 1},
    "clean_up": {"host": "", "ended": 0, "survivors": []},
}  # fmt: skip


class Lab:
    """Three machines, and the submit of a run to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines = {name: FakeMachine(name, answers=dict(WELL)) for name in NAMES}
        self.pool = FakePool(*self.machines.values())
        for name in NAMES:
            self.says(name)

    def says(self, name: str, **hello: Any) -> None:
        """Let a machine describe itself so."""
        told = {**HELLO, "host": name, **hello}
        self.machines[name].answers["hello"] = lambda **_: {**told, "time": time.time()}

    def submit(self, resources: dict[str, Any] | None = None, **fields: Any) -> None:
        where = profile("ssh", **{"hosts": list(NAMES), "nodes": 3, "nproc_per_node": 1, **fields})
        what = job(resources=resources or {})
        launch = planned(what, where)
        record = {"kind": "ssh", "nnodes": 3, "profile": launch.profile.to_json(), "job": launch.job.to_json()}
        run = create_run(self.folder, "r-234567", {"run_id": "r-234567", **record})
        run.write("code.json", {"files": {}})
        run.write("plan.json", launch.to_json())
        AgentsOverSsh(self.pool).submit([launch], [launch.tasks], [run])  # type: ignore[arg-type]

    def refused(self, **fields: Any) -> BackendError:
        """Return the error of a submit after which nothing is anywhere."""
        with pytest.raises(BackendError) as caught:
            self.submit(**fields)
        for machine in self.machines.values():
            assert "start_agent" not in machine.verbs()
            assert machine.verbs()[-1] == "remove"  # a machine that does not answer is tried, too
        (run,) = (self.folder / "runs").iterdir()
        assert not (run / "handle.json").exists()
        assert not (run / "sending").exists()
        return caught.value


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_machines_that_can_take_part_are_all_started(lab: Lab) -> None:
    lab.submit()
    assert ["start_agent" in machine.verbs() for machine in lab.machines.values()] == [True] * 3


def test_all_machines_that_are_out_of_reach_are_named(lab: Lab) -> None:
    lab.machines["n2"].health = Health.DEAD
    del lab.pool.machines["n3"], lab.machines["n3"]
    error = lab.refused()
    assert isinstance(error, MachinesError)
    assert sorted(error.by_number) == [1, 2]
    assert error.message.splitlines() == ["n2: the connection was closed", "n3: timed out"]
    assert error.transient


@pytest.mark.parametrize(
    ("hello", "fields", "said", "hint"),
    [
        ({}, {"backend": "nccl"}, "n2: it has 0 GPUs for 1 rank with nccl", "set `backend: gloo`"),
        (
            {},
            {"resources": {"gpus": 2}},
            "n2: it has 0 GPUs, and the job asks for 2",
            "change `resources.gpus` in the job",
        ),
        ({"free": 1 << 20}, {}, "n2: /home/me/.orch has only 1.0 MiB left", "make room on that disk"),
        ({"lacks_tls": "its Python has no ssl"}, {}, "n2: its Python has no ssl, by which nodes", "OpenSSL 1.1.1"),
    ],
)
def test_what_a_machine_lacks_is_told_with_a_remedy(
    lab: Lab, hello: dict[str, Any], fields: dict[str, Any], said: str, hint: str
) -> None:
    for name in ("n1", "n3"):
        lab.says(name, gpus=8)
    lab.says("n2", **hello)
    error = lab.refused(**fields)
    assert error.message.startswith(said)
    assert hint in error.hint
    assert len(error.message.splitlines()) == 1


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("hello", "/usr/lib/orch can't be used"),
        ("interpreter", "the training interpreter /opt/none/python can't be started: No such file or directory"),
        ("unpack", "/home/me/.orch: No space left on device"),
    ],
)
def test_a_machine_that_refuses_a_request_is_named(lab: Lab, verb: str, said: str) -> None:
    lab.machines["n3"].answers[verb] = BackendError(f"n3: {said}")
    assert lab.refused(python="/opt/none/python").message == f"n3: {said}"


LATE, FULL = "no answer within 60 s", "No space left on device"


@pytest.mark.parametrize(
    ("health", "since", "said"),
    [
        (Health.HUNG, "", LATE),
        (Health.HUNG, "missing", "no answer within 600 s"),
        (Health.HUNG, "unpack", LATE),
        (Health.SLOW, "interpreter", LATE),
        (Health.SLOW, "unpack", LATE),
        (Health.FULL, "", FULL),
    ],
)
def test_no_agent_is_started_if_one_machine_is_unwell(lab: Lab, health: Health, since: str, said: str) -> None:
    lab.machines["n2"].health, lab.machines["n2"].since = health, since
    error = lab.refused(python="/opt/python")
    assert (error.message, error.transient) == (f"n2: {said}", health is not Health.FULL)


def test_machines_that_are_unwell_in_different_ways_are_all_named(lab: Lab) -> None:
    for name, health in zip(NAMES, (Health.HUNG, Health.FULL, Health.DEAD), strict=True):
        lab.machines[name].health = health
    error = lab.refused()
    assert error.message.splitlines() == [f"n1: {LATE}", f"n2: {FULL}", "n3: the connection was closed"]
    assert not error.transient  # a full disk stays full


def test_machines_are_prepared_at_the_same_time(lab: Lab) -> None:
    """Each answers only when all have been asked, so one after the other they would never answer."""
    together = threading.Barrier(3)
    for machine in lab.machines.values():
        machine.answers["unpack"] = lambda **_: {"files": together.wait(PATIENCE)}
    lab.submit()
    assert ["start_agent" in machine.verbs() for machine in lab.machines.values()] == [True] * 3


@pytest.mark.parametrize(
    ("health", "said"), [(Health.HUNG, LATE), (Health.SLOW, LATE), (Health.FULL, FULL), (Health.DEAD, "was closed")]
)
def test_an_agent_that_may_have_been_started_is_ended_with_the_others(lab: Lab, health: Health, said: str) -> None:
    """The run is then ended by its submit; the machine whose answer was lost is one of its machines."""
    lab.machines["n2"].health, lab.machines["n2"].since = health, "start_agent"
    with pytest.raises(BackendError, match=f"^n2: .*{said}"):
        lab.submit()
    run = RunDir(next((lab.folder / "runs").iterdir()))
    kept = read_handle(run)
    assert kept is not None
    assert (kept.state, sorted(kept.agents), len(kept.hosts)) == (HandleStatus.INTENT, [0, 2], 3)
    proofs = AgentsOverSsh(lab.pool).clean_up(run)  # type: ignore[arg-type]
    assert [machine.verbs()[-1] for machine in lab.machines.values()] == ["clean_up"] * 3
    assert [proof.is_unreachable for proof in proofs] == [False, health is not Health.FULL, False]


@pytest.mark.parametrize("health", [Health.SLOW, Health.HUNG, Health.FULL])
def test_an_agent_that_may_have_been_started_again_is_ended_before_a_spare_has_its_node(
    lab: Lab, health: Health
) -> None:
    lab.machines["n4"] = lab.pool.machines["n4"] = FakeMachine("n4", answers=dict(WELL))
    lab.says("n4")
    for machine in lab.machines.values():
        machine.answers |= {
            "steps": {"steps": []}, "saved": {"newest": {}, "given": False}, "listen": {"port": 1},
            "probe": {"addr": "10.0.0.1"},
        }  # fmt: skip
    lab.submit(spares=["n4"])
    lab.machines["n2"].health, lab.machines["n2"].since = health, "start_agent"
    run = RunDir(next((lab.folder / "runs").iterdir()))
    assert relaunch(run, lab.pool, Relaunch(1, 1, "infra", "lost"))
    ended = {"run_dir": "~/.orch/runs/r-234567", "run_id": "r-234567", "node": 1, "undo": 1}
    assert lab.machines["n2"].asked[-1] == ("clean_up", ended)
    assert [lab.machines[name].verbs()[-1] for name in ("n1", "n3", "n4")] == ["start_agent"] * 3
    kept = read_handle(run)
    assert kept is not None
    assert [host.name for host in kept.hosts] == ["n1", "n4", "n3"]


@pytest.mark.parametrize("since", ["lease", "start_agent"])
@pytest.mark.parametrize("health", [Health.HUNG, Health.SLOW, Health.DEAD])
def test_no_place_is_held_after_a_machine_did_not_answer(lab: Lab, health: Health, since: str) -> None:
    for machine in lab.machines.values():
        machine.answers |= {
            "look_at_queue": {"places": {"slot-0": None}, "tickets": [], "uid": 1, "now": 1},
            "lease": {"places": ["slot-0"]},
            "release": {"released": 1},
        }
    lab.machines["n2"].health, lab.machines["n2"].since = health, since
    with pytest.raises(BackendError, match=r"^n2: "):
        lab.submit(slots=1)
    assert ["release" in machine.verbs() for machine in lab.machines.values()] == [True] * 3


def test_a_folder_that_is_not_shared_though_the_profile_says_so(lab: Lab) -> None:
    for machine in lab.machines.values():
        machine.answers["read_files"] = {"files": [None]}
    error = lab.refused(shared=True)
    assert error.message == ("n1, n2, n3: ~/.orch is not the folder that n1 has there, though the profile says shared")
    assert "set `shared: false`" in error.hint
