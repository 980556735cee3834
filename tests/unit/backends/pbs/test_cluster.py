"""The checks of a PBS profile and the rows of its queues, by stand-ins for PBS's programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.pbs.scheduler import Pbs
from tests.profiles import valid_profile

SERVER = {"server_state": "Active", "default_queue": "workq"}
QUEUES = {
    "workq": {
        "queue_type": "Execution",
        "enabled": "True",
        "started": "True",
        "resources_max": {"walltime": "24:00:00"},
    },
    "held": {"queue_type": "Execution", "enabled": "True", "started": "False"},
    "shut": {"queue_type": "Execution", "enabled": "False", "started": "True"},
    "route": {"queue_type": "Route", "enabled": "True", "started": "True"},
}
HAS = {"ncpus": 8, "mem": "4194304kb", "ngpus": 2}
NODES = {
    "n1": {"state": "free", "resources_available": HAS},
    "n2": {"state": "job-busy", "resources_available": HAS, "jobs": ["17.server"]},
    "n3": {"state": "down", "resources_available": {**HAS, "ncpus": 16}},
    "n4": {"state": "free", "resources_available": {"ncpus": 64}, "queue": "other"},
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for PBS's programs on PATH."""
    shown = {"server": {"Server": {"vbox": SERVER}}, "queues": {"Queue": QUEUES}, "nodes": {"nodes": NODES}}
    for name, value in shown.items():
        (tmp_path / name).write_text(json.dumps({"timestamp": 1, **value}))
    programs = dict.fromkeys(("qsub", "qdel", "qselect"), "exit 0")
    programs["qstat"] = (
        f'case "$*" in "-B -f -F json") cat {tmp_path}/server;; "-Q -f -F json") cat {tmp_path}/queues;; esac'
    )
    programs["pbsnodes"] = f'[ "$*" = "-a -F json" ] && cat {tmp_path}/nodes'
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "state"))


def test_the_queues_of_a_cluster(cluster: None) -> None:
    rows = Pbs.here().holdings(valid_profile({"name": "p", "kind": "pbs"}))
    assert [row["name"] for row in rows] == ["workq", "held", "shut"]
    first = {"is_default": True, "is_up": True, "limit": 86400, "nodes": 3, "idle": 1, "cores": "8+", "memory": "4096"}
    assert {name: rows[0][name] for name in first} == first
    assert (rows[0]["gres"], rows[0]["what"], rows[1]["is_up"]) == ("ngpus:2", "queue", False)


@pytest.mark.parametrize(
    ("profile", "what", "level", "words"),
    [
        ({"nodes": 2, "ncpus": 8}, "hosts", "ok", "3 hosts have ncpus 8, 1 idle"),
        ({"nodes": 3, "ncpus": 8}, "hosts", "warn", "too few of them are up, so jobs wait"),
        ({"nodes": 2, "ncpus": 16}, "hosts", "fail", "1 of 3 hosts have ncpus 16, the profile asks for 2"),
        ({"nodes": 1, "ncpus": 8, "ngpus": 4}, "hosts", "fail", "0 of 3 hosts have ncpus 8, ngpus 4"),
        ({"nodes": 1, "mem": "8G"}, "hosts", "fail", "0 of 3 hosts have ncpus 1, mem 8192mb"),
        ({"queue": "nope"}, "queue", "fail", "there is no queue nope"),
        ({"queue": "shut"}, "queue", "fail", "queue shut accepts no jobs now"),
        ({"queue": "held"}, "queue", "warn", "queue held starts no jobs now, so jobs wait"),
        ({"time": "48h"}, "queue", "fail", "workq gives 1440 min, the profile asks for 2880"),
        ({}, "server", "ok", "vbox: Active"),
        ({}, "programs", "ok", "qsub"),
    ],
)
def test_the_checks_of_a_profile(cluster: None, profile: dict[str, Any], what: str, level: str, words: str) -> None:
    checks = Pbs.here().doctor(
        valid_profile({"name": "p", "kind": "pbs", "nproc_per_node": 1, **profile}), on_node=False
    )
    found = {check.what: check for check in checks}
    assert list(found) == ["programs", "server", "queue", "hosts", "workdir"]
    assert found[what].level == level, found[what]
    assert words in found[what].value


def test_a_server_that_does_not_answer_is_the_first_check(cluster: None, tmp_path: Path) -> None:
    (tmp_path / "qstat").write_text("#!/bin/sh\necho 'pbs_connect: Connection refused' >&2\nexit 1\n")
    found = {
        check.what: check for check in Pbs.here().doctor(valid_profile({"name": "p", "kind": "pbs"}), on_node=False)
    }
    assert (found["server"].level, found["queue"].level) == ("fail", "-")
    assert "qstat -B failed: pbs_connect: Connection refused" in found["server"].value
