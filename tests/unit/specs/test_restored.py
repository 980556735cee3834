"""Jobs and profiles read back from records: equal to what was recorded, and harmless where the record is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runs.record import RunRecord
from orchestrator.specs.border import valid
from orchestrator.specs.documents.loader import load
from orchestrator.specs.job import Checkpoint, Job, Retry
from orchestrator.specs.profile import SshProfile
from orchestrator.specs.spec import Spec, restored
from tests.unit.profiles import profile_of

TOP = Path(__file__).parents[3]
FULL = valid(Job, {
    "name": "full", "training": {"task": "t.py", "workers": 2}, "args": ["--x"],
    "container": {"image": "i", "mounts": ["/a:/b:ro"]}, "environment": {"lock": "uv.lock"}, "idle": {"gpu": 3},
    "inputs": [{"name": "A", "source": "/x", "sha256": "a" * 64}], "notify": {"on": ["failed"], "command": ["x"]},
    "track": "mlflow", "metric": "loss", "retry": {"infra": None}, "resources": {"mem": "1G"},
    "search": {"space": {"lr": {"low": 0.1, "high": 1.0}, "kind": ["a", "b"]}},
})  # fmt: skip
PROFILES = (
    profile_of(hosts=["n[1-3]", "me@b:3"], nproc_per_node=[1, 2, 3, 4], spares=["c"], defaults={"a": [1, {"b": [2]}]}),
    profile_of("slurm", login="me@far", sbatch={"mail-type": "END", "oversubscribe": True}, nodes=2, spares=1),
    profile_of("sge", pe="mpi", request={"gpu": 1}),
    profile_of("pbs", select={"host": "n1"}, mem="2G"),
    profile_of("local", nproc_per_node=2),
)  # fmt: skip


def recorded(spec: Spec) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(spec.to_json()))
    return found


@pytest.mark.parametrize("spec", [FULL, *PROFILES], ids=lambda spec: getattr(spec, "kind", "job"))
def test_a_recorded_document_is_restored_as_it_was(spec: Spec) -> None:
    assert restored(type(spec), recorded(spec)) == spec


@pytest.mark.parametrize("name", sorted(path.stem for path in (TOP / "jobs").glob("*.yaml")))
def test_each_shipped_job_is_restored_as_it_was(name: str) -> None:
    job = load(str(TOP / "jobs" / f"{name}.yaml"), "local", sets=(), flags={}, allow_code_dir=True).job
    assert restored(Job, recorded(job)) == job


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(
    st.dictionaries(st.sampled_from(sorted({*recorded(FULL), *recorded(PROFILES[0])} - {"name", "hosts"})), anything)
)
def test_damaged_fields_do_not_raise_and_parts_stay_parts(damage: dict[str, Any]) -> None:
    job = restored(Job, {**recorded(FULL), **damage})
    assert isinstance(job.checkpoint, Checkpoint)
    assert isinstance(job.retry, Retry)
    assert isinstance(job.env, dict)
    assert isinstance(restored(SshProfile, {**recorded(PROFILES[0]), **damage}).shared, bool)


def test_a_damaged_field_has_its_default_and_a_missing_name_is_refused() -> None:
    job = restored(Job, {"name": "x", "args": 3, "resources": [], "container": {"mounts": []}, "sampling": "no"})
    assert job == Job(name="x")
    with pytest.raises(ValueError, match="Job has no name"):
        restored(Job, {})


def test_a_record_without_its_documents_has_the_defaults() -> None:
    record = RunRecord.from_json("r", {"kind": "ssh", "name": "n", "profile_name": "lab"})
    assert (record.job, record.profile.name) == (Job(name="n"), "lab")
    assert getattr(record.profile, "hosts", None) == ()


@pytest.mark.parametrize("hosts", ["x", ["a"], None, [{"port": 3}]], ids=str)
def test_a_profile_whose_hosts_are_damaged_has_none(hosts: Any) -> None:
    document = {**recorded(PROFILES[0]), "hosts": hosts}
    record = RunRecord.from_json("r", {"kind": "ssh", "profile": document, "profile_name": "lab", "nnodes": 4})
    assert (record.profile.name, getattr(record.profile, "hosts", None)) == ("lab", ())
    assert record.profile.workdir == PROFILES[0].workdir


def test_a_damaged_number_of_nodes_does_not_cut_the_hosts() -> None:
    document = {**recorded(PROFILES[0]), "nodes": None}
    record = RunRecord.from_json("r", {"kind": "ssh", "profile": document, "nnodes": 4})
    assert record.profile.nodes == 4
