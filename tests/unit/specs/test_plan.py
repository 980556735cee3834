"""The plan: pure, whole, and the same ranks whatever the mix of nodes."""

from __future__ import annotations

import builtins
import json
import os
import random
import secrets
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.output import plan_json
from orchestrator.cli.render import plans
from orchestrator.protocol.gang import GANG_PORT_RANGE
from orchestrator.runs.record import PlanRecord
from orchestrator.specs.border import valid
from orchestrator.specs.documents.loader import load
from orchestrator.specs.job import Job
from orchestrator.specs.plan import (
    LaunchPlan,
    RunPaths,
    bindings_of,
    differences,
    nproc_by_node,
    plan,
    ranks_of,
    rehearsal,
)
from orchestrator.specs.profiles import AnyProfile
from tests.profiles import valid_profile

ROOT = Path(__file__).parents[3]
JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.yaml"))
PROFILES = sorted(path.stem for path in (ROOT / "cluster_profiles").glob("*.yaml"))
PATHS = RunPaths(
    "/home/me/.orch/runs/r-1", "/home/me/.orch/runs/r-1/code", "/home/me/.orch/inputs", "python3", "/env/python"
)

nprocs = st.integers(1, 16)


def job(**values: Any) -> Job:
    return valid(Job, {"name": "j", "script": "train.py", **values})


def profile(kind: str = "local", **values: Any) -> AnyProfile:
    return valid_profile({"name": "p", "kind": kind, **values})


def planned(a_job: Job | None = None, a_profile: AnyProfile | None = None, **values: Any) -> LaunchPlan:
    return plan(a_job or job(), a_profile or profile(nodes=2, nproc_per_node=2), "r-1", PATHS, **values)


class ImpureError(Exception):
    """Planning touched the world."""


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch):
    """From seal() on, clock, disk, network, environment, processes and chance are out of reach."""

    def refuse(*args: object, **_: object) -> None:
        raise ImpureError(args)

    class NoEnvironment(dict):  # type: ignore[type-arg]
        __getitem__ = __contains__ = get = __iter__ = items = keys = refuse  # type: ignore[assignment]

    def seal(patch: pytest.MonkeyPatch) -> None:
        for module, names in {
            builtins: ("open",),
            os: ("open", "stat", "getenv", "getcwd", "urandom", "listdir", "getpid"),
            socket: ("socket", "gethostname", "getaddrinfo"),
            subprocess: ("Popen",),
            time: ("time", "monotonic", "time_ns"),
            random: ("random", "randint", "choice"),
            secrets: ("token_hex", "choice"),
        }.items():
            for name in names:
                patch.setattr(module, name, refuse)
        patch.setattr(os, "environ", NoEnvironment())

    return seal


@pytest.mark.parametrize("profile_name", PROFILES)
@pytest.mark.parametrize("job_name", JOBS)
def test_planning_touches_nothing(sealed, job_name: str, profile_name: str) -> None:
    loaded = load(job_name, profile_name, cwd=ROOT)
    plans.plan_page(planned(loaded.job, loaded.profile), commands=True)  # whatever is imported late is imported now
    with pytest.MonkeyPatch.context() as patch:
        sealed(patch)
        first = planned(loaded.job, loaded.profile)
        again = planned(loaded.job, loaded.profile)
        ranks = [*ranks_of(first)]
        planned(loaded.job, rehearsal(loaded.profile))
        page = plans.plan_page(first, commands=True)
        with pytest.raises(ImpureError):  # the seal holds
            time.time()
    assert first == again
    assert page
    assert LaunchPlan.from_json(json.loads(json.dumps(first.to_json()))) == first
    assert [row.rank for row in ranks] == list(range(first.world_size or 0))


@given(st.lists(nprocs, min_size=1, max_size=8), st.booleans())
def test_any_mix_of_nodes_partitions_the_world(counts: list[int], by_ssh: bool) -> None:
    hosts = [{"host": f"n{number}", "nproc_per_node": count} for number, count in enumerate(counts)]
    shape = profile("ssh", hosts=hosts) if by_ssh else profile(nodes=len(counts), nproc_per_node=counts)
    found = planned(a_profile=shape)
    assert found.world_size == sum(counts)
    rows = [*ranks_of(found)]
    assert [row.rank for row in rows] == [int(row.environment["RANK"]) for row in rows] == list(range(sum(counts)))
    assert [row.local_rank for row in rows] == [local for count in counts for local in range(count)]
    assert [(b.nproc, b.node_rank) for b in bindings_of(found) or []] == [(c, n) for n, c in enumerate(counts)]


def test_a_plan_of_many_nodes_grows_as_they_do() -> None:
    sizes = []
    for count in (1000, 2000):
        found = planned(a_profile=profile("ssh", hosts=[f"n[1-{count}]"], nproc_per_node=8))
        text = json.dumps(plan_json(found))
        assert LaunchPlan.from_json(json.loads(json.dumps(found.to_json()))) == found
        assert PlanRecord.from_json(found.to_json()).first.code_dir == PATHS.code_dir
        sizes.append(len(text))
    assert sizes[1] < 2.1 * sizes[0] < 2_000_000
    page = plans.plan_page(found, commands=True)
    assert "0-15999  0-1999  n[1-2000]  8" in page
    assert len(page.splitlines()) < 100


def test_a_page_of_many_nodes_on_one_machine_names_it_once() -> None:
    page = plans.plan_page(planned(a_profile=profile(nodes=2000, nproc_per_node=8)), commands=False)
    assert page.splitlines()[-1].split() == ["0-15999", "0-1999", "localhost", "8"]


def test_ranks_are_shown_as_ranges_of_nodes_with_as_many() -> None:
    found = planned(a_profile=profile(nodes=30, nproc_per_node=[2] * 10 + [4] * 20))
    rows = [line.split() for line in plans.plan_page(found, commands=False).splitlines()[-2:]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [("0-19", "0-9", "2"), ("20-99", "10-29", "4")]


def test_a_plan_of_an_older_form_is_refused() -> None:
    with pytest.raises(ValueError, match="this plan has format 1, but this orch reads 2"):
        LaunchPlan.from_json({**planned().to_json(), "version": 1})


def test_three_nodes_of_eight_are_24_ranks() -> None:
    found = planned(a_profile=profile("slurm", nodes=3, nproc_per_node=8))
    rows = [*ranks_of(found)]
    assert (found.world_size, found.nnodes, len(rows)) == (24, 3, 24)
    assert (rows[17].node_rank, rows[17].local_rank, rows[17].host) == (2, 1, "slurm node 2")


def test_what_the_nodes_decide_shows_no_ranks() -> None:
    for shape in (
        profile(nodes=2, nproc_per_node="auto"),
        profile("ssh", hosts=["a", {"host": "b", "nproc_per_node": 2}], nproc_per_node="auto"),
    ):
        found = planned(a_profile=shape)
        assert (found.world_size, [*ranks_of(found)], bindings_of(found)) == (None, [], None)
        assert "decided on the nodes" in plans.plan_page(found, commands=True)


def test_a_hosts_own_number_and_python_win() -> None:
    hosts = ["a", {"host": "b", "nproc_per_node": 3, "python": "/b/python"}]
    found = planned(a_profile=profile("ssh", hosts=hosts, nproc_per_node=2, python="/all/python"))
    assert [(task.nproc, task.python) for task in found.tasks] == [(2, "/all/python"), (3, "/b/python")]


def test_a_hosts_address_is_what_the_others_dial() -> None:
    found = planned(a_profile=profile("ssh", hosts=[{"host": "login", "addr": "10.0.0.5"}, "b"], nproc_per_node=1))
    assert found.master_addr == "10.0.0.5"
    assert {task.leader_addrs for task in found.tasks} == {("10.0.0.5",)}


def test_only_as_many_hosts_as_nodes_take_part() -> None:
    found = planned(a_profile=profile("ssh", hosts=["n[1-5]"], nodes=2, nproc_per_node=1))
    assert [task.host for task in found.tasks] == ["n1", "n2"]


def test_no_value_of_a_secret_is_in_the_plan() -> None:
    found = planned(job(secrets=["API_KEY"], env={"OTHER": "seen"}), env={"OTHER": "seen"})
    assert found.secret_names == ("API_KEY",)
    assert [(task.credentials, task.secrets) for task in found.tasks] == [("", {}), ("", {})]
    assert "API_KEY=***" in plans.plan_page(found, commands=True)


def test_a_plan_has_the_range_of_the_ports_and_tells_none_of_them() -> None:
    assert planned(a_profile=profile(ports="20000-20003")).tasks[0].port_range == (20000, 20003)
    assert {task.port_range for task in planned().tasks} == {GANG_PORT_RANGE}
    page = plans.plan_page(planned(a_profile=profile(nodes=2, ports="20000-20003")), commands=True)
    assert "chosen at submit, from 20000-20003" in page


def test_limits_and_checkpoints() -> None:
    slurm = profile("slurm", nodes=1, time="2h")
    assert planned(a_profile=slurm).time_limit == 7200
    assert planned(a_profile=slurm).tasks[0].time_limit is None  # Slurm's, which starts the job again
    assert planned(job(resources={"time": "1h"}), slurm).time_limit == 3600
    assert planned(job(resources={"time": "1h"})).tasks[0].time_limit == 3600
    assert planned().tasks[0].time_limit is None
    assert planned().tasks[0].checkpoint_dir == f"{PATHS.run_dir}/checkpoints"
    assert planned(job(checkpoint={"dir": "/scratch/c", "keep": 7})).tasks[0].checkpoint_dir == "/scratch/c"
    assert planned(job(retry={"infra": None})).tasks[0].retry["infra"] is None


@given(st.lists(nprocs, min_size=1, max_size=5))
def test_a_rehearsal_keeps_nodes_and_ranks(counts: list[int]) -> None:
    hosts = [{"host": f"n{number}", "nproc_per_node": count} for number, count in enumerate(counts)]
    shape = profile("ssh", hosts=hosts, backend="nccl", python="/there/python", ports="20000-20001")
    local = rehearsal(shape)
    real, tried = planned(a_profile=shape), planned(a_profile=local)
    assert bindings_of(tried) == bindings_of(real)
    assert (local.kind, local.backend, local.python) == ("local", "auto", None)


def test_a_rehearsal_of_what_the_nodes_decide_takes_the_gpus_asked_for() -> None:
    assert nproc_by_node(rehearsal(profile("slurm", nodes=2, gpus_per_node=4))) == [4, 4]
    assert nproc_by_node(rehearsal(profile(nodes=2))) == [1, 1]


def test_plans_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="has format 9"):
        LaunchPlan.from_json({**planned().to_json(), "version": 9})


def test_a_plan_does_not_differ_from_itself() -> None:
    assert differences(planned(), planned()) == []


def test_differences_name_each_field_once() -> None:
    training = job(script=None, training={"task": "t.py", "global_batch": 96})
    one = planned(training, profile(nodes=1, nproc_per_node=2))
    other = planned(training, profile("slurm", nodes=3, nproc_per_node=4, partition="gpu"), env={"A": "1"})
    rows = {what: (here, there) for what, here, there in differences(one, other)}
    assert rows["nodes"] == ("1", "3")
    assert rows["world size"] == ("2", "12")
    assert rows["samples per rank and step"] == ("48", "8")
    assert rows["profile.partition"] == ("-", "gpu")
    assert rows["env A"] == ("-", "1")
    assert len(rows) == len(differences(one, other))
    assert not any(what.startswith("job.") for what in rows)
