"""Options under `sbatch:` are sbatch's own, by either spelling, and have no place of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.specs.sbatch_options import CLUSTERS, FIELDS, OPTIONS, OURS, known_options, note_on_unknown
from orchestrator.specs.slurm_profile import SlurmProfile
from tests.profiles import valid_profile


def test_both_spellings_are_one_option() -> None:
    assert known_options({"mail_user": "a", "--exclusive": True}) == {"mail-user": "a", "exclusive": True}
    profile = valid_profile({"name": "p", "kind": "slurm", "sbatch": {"gpus_per_task": 1}})
    assert isinstance(profile, SlurmProfile)
    assert profile.sbatch == {"gpus-per-task": 1}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no such", "can't be an option of sbatch"),
        ("clusters", "orch submits to one cluster"),
        ("cluster_constraint", "orch submits to one cluster"),
        ("requeue", "set by orch itself"),
        ("partition", "write `partition` next to `sbatch`"),
        ("cpus-per-task", "write `cpus_per_task` next to `sbatch`"),
        ("job_name", "'job-name' is set by orch itself"),
        ("array", "set by orch itself"),
    ],
)
def test_others_are_refused_with_what_there_is(name: str, words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        valid_profile({"name": "p", "kind": "slurm", "sbatch": {name: 1}})


def test_an_option_that_is_newer_than_orch_is_left_to_the_clusters_sbatch() -> None:
    assert known_options({"brand_new": 1}) == {"brand-new": 1}
    assert note_on_unknown(["spread-segments", "requeue", "reservatoin", "zzz"]) == [
        "sbatch: reservatoin: sbatch has no such option up to Slurm 25.11; did you mean 'reservation'?",
        "sbatch: zzz: sbatch has no such option up to Slurm 25.11; the cluster's own sbatch may accept it",
    ]


@pytest.mark.parametrize("value", ["USR1@75", "SIGUSR1", "R:USR2@300", "10@60", 12, "TERM@120", "usr1@9", False])
def test_a_signal_on_which_orch_acts_may_be_asked_for(value: str | int | bool) -> None:
    assert known_options({"signal": value}) == {"signal": value}


@pytest.mark.parametrize("value", ["HUP@60", "B:USR1@60", "KILL", "RTMIN", "1@60", True, "USR1@"])
def test_no_other_signal_may_be_asked_for(value: str | int | bool) -> None:
    words = f"'signal: {value}' is not valid; expected TERM, INT, USR1, USR2, XCPU, optionally with the prefix R:"
    with pytest.raises(ValidationError, match=re.escape(words)):
        valid_profile({"name": "p", "kind": "slurm", "sbatch": {"signal": value}})


def test_an_expedited_requeue_may_be_asked_for() -> None:
    assert known_options({"requeue": "expedite"}) == {"requeue": "expedite"}


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="there is no sbatch here to compare with")
def test_every_option_of_the_sbatch_here_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=none\n")  # it wants one even for its help
    environment = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    usage = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, check=True, env=environment).stdout
    found = set(re.findall(r"--([a-z][a-z0-9-]+)", usage)) - {"help", "usage", "version"}
    unknown = found - OPTIONS - set(FIELDS) - OURS - set(CLUSTERS)
    assert not unknown
    assert not OPTIONS & (set(FIELDS) | OURS)
