"""What is known of a job when some of Slurm's programs fail, forget, or are missing: stand-ins for them on PATH."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import backend
from orchestrator.backends.slurm import client
from orchestrator.backends.slurm.backend import SlurmBackend
from orchestrator.backends.slurm.script import cores_per_node
from orchestrator.errors import BackendError, UsageError
from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.store import RunDir, create_run, remove_run
from orchestrator.supervisor.reconcile import state_of

from .test_script import launch

QUICK_SECONDS = client.QUICK_SECONDS
SHOWN = "JobId=17 JobName=r-abc234 JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=127:0 NodeList=n1"


class Site:
    """A login node with as many of Slurm's programs as a test gives it, and one run of two nodes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setattr(client, "QUICK_SECONDS", 60.0)
        monkeypatch.setattr(client, "SNAPSHOT_SECONDS", 3600.0)
        for name in ("squeue", "scontrol", "sacct", "scancel"):  # a real one must not be met
            self.program(name, "there is no Slurm here", code=1)
        self.run = create_run(folder / "home", "r-abc234", {"nnodes": 2, "kind": "slurm"})
        self.run.write("handle.json", {"state": "submitted", "job": "17"})
        self.backend = SlurmBackend()

    def program(self, name: str, out: str, code: int = 0) -> None:
        stream = ">&2 " if code else ""
        path = self.bin / name
        path.write_text(
            f"#!/bin/sh\necho {name} \"$@\" >>{self.bin}/calls\n{stream}cat <<'END'\n{out}\nEND\nexit {code}\n"
        )
        path.chmod(0o755)

    def queue(self, *lines: str) -> None:
        self.program("squeue", "\n".join(lines))

    def scheduler_status(self) -> SchedulerStatus:
        return self.backend.scheduler_status(self.run)

    def calls(self) -> list[str]:
        path = self.bin / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_job_in_the_queue_needs_one_look(site: Site) -> None:
    site.queue("17|PENDING|Priority|N/A||r-abc234", "18|RUNNING|None|N/A|n3|other")
    found = site.scheduler_status()
    assert (found.phase, site.backend.alive(site.run)) == ("waiting", {0: None, 1: None})
    assert "other jobs are ahead" in found.detail
    assert site.calls() == ["squeue"]


def test_a_cancel_while_slurm_is_asked_is_not_taken_for_a_loss(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run.append_event("submitted")
    site.queue("17|CANCELLED|None|N/A||r-abc234")
    squeue = site.bin / "squeue"
    cancel = f"""echo '{{"kind": "cancel"}}' >>{site.run.path}/events.jsonl; echo '{{}}' >{site.run.path}/cancel.json"""
    squeue.write_text(squeue.read_text().replace("cat <<", f"{cancel}\ncat <<"))
    monkeypatch.setattr(backend("slurm"), "slurm", site.backend.slurm)
    assert state_of(site.run).state == "cancelled"


@pytest.mark.parametrize(
    ("profile", "job", "takes", "cores"),
    [
        ({"gpus_per_node": 4}, {}, True, 24),  # Slurm's 48 for 8 GPUs
        ({"gres": "gpu:2"}, {}, True, 12),
        ({"gpus_per_node": 4}, {}, False, 4),  # more than sbatch would give: one a rank
        ({"gpus_per_node": 4, "cpus_per_gpu": 3}, {}, True, 12),
        ({"gpus_per_node": 4}, {"resources": {"cpus": 9}}, True, 9),
        ({}, {}, True, 4),
    ],
)
def test_gpus_bring_their_share_of_the_cores_along(
    site: Site, profile: dict[str, Any], job: dict[str, Any], takes: bool, cores: int
) -> None:
    site.program("sinfo", "main*|up|infinite|2|0/2|64|4000|gpu:8")
    site.program("scontrol", "PartitionName=main MaxCPUsPerNode=48")
    site.program("sbatch", "sbatch: Job 18 to start at now" if takes else "allocation failure", code=int(not takes))
    plan = launch(job=job, **profile)
    made = site.backend.completed(plan)
    assert cores_per_node(made) == cores
    open_still = made == plan and bool(profile) and not job and "cpus_per_gpu" not in profile
    run = create_run(site.bin.parent / "home", "q-abc234", {"kind": "slurm", "profile": made.profile, "job": made.job})
    assert ("set cpus_per_gpu" in site.backend.unsaid(run)) is open_still is (not takes)


def test_a_slurm_that_says_nothing_leaves_the_plan_as_it_is(site: Site) -> None:
    plan = launch(gpus_per_node=4)
    site.program("sinfo", "slurm_load_partitions: Unable to contact slurm controller", code=1)
    assert site.backend.completed(plan) == plan


def test_a_running_jobs_nodes_live(site: Site) -> None:
    site.queue("17|RUNNING|None|N/A|n[1-2]|r-abc234")
    assert site.backend.alive(site.run) == {0: True, 1: True}
    assert site.scheduler_status().detail == "Slurm job 17 is RUNNING on n[1-2]"


def test_slurm_that_does_not_answer_concludes_nothing(site: Site) -> None:
    site.program("squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    assert site.backend.alive(site.run) == {0: None, 1: None}
    said = site.scheduler_status()
    assert (said.phase, said.outcome) == ("unknown", "")
    assert "Slurm can't be asked: Unable to contact slurm controller" in said.detail


def test_a_machine_without_slurm_concludes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert site.scheduler_status() == SchedulerStatus(
        "unknown", "Slurm can't be asked: there is no squeue on this machine"
    )


def test_what_the_queue_has_forgotten_scontrol_knows(site: Site) -> None:
    site.queue()
    site.program("scontrol", SHOWN)
    folder = site.run.path / "slurm"
    folder.mkdir()
    (folder / "agent.17.0.0.log").write_text("submitit INFO Starting\nbash: /env/python: No such file or directory\n")
    found = site.scheduler_status()
    assert (found.phase, found.outcome, found.cause) == ("ended", "failed", "infra")
    assert found.reason == (
        "Slurm job 17: its batch script failed with exit code 127 (FAILED); "
        "agent.17.0.0.log: bash: /env/python: No such file or directory"
    )
    assert site.backend.alive(site.run) == {0: False, 1: False}


def test_what_scontrol_has_forgotten_sacct_knows(site: Site) -> None:
    site.queue()
    site.program("sacct", f"17|CANCELLED by {os.getuid()}|0:15|n1|r-abc234")
    found = site.scheduler_status()
    assert (found.outcome, found.phase) == ("cancelled", "ended")
    assert "it was cancelled by" in found.reason


def test_without_accounting_the_runs_own_files_are_left(site: Site) -> None:
    site.queue()
    site.program("sacct", "Slurm accounting storage is disabled", code=1)
    assert site.scheduler_status() == SchedulerStatus("ended")
    assert site.backend.alive(site.run) == {0: False, 1: False}


def test_a_cancel_without_accounting_names_nobody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ACCOUNTING_LAG", 0.1)
    site.queue("17|CANCELLED|None|N/A|n1|r-abc234")
    assert site.scheduler_status().reason == "Slurm job 17: it was cancelled (CANCELLED)"


def test_a_number_that_has_passed_to_another_job_is_not_the_run(site: Site) -> None:
    site.queue("17|RUNNING|None|N/A|n9|somebody-else")
    site.program("scontrol", SHOWN.replace("r-abc234", "somebody-else"))
    site.program("sacct", "17|RUNNING|0:0|n9|somebody-else")
    assert (site.scheduler_status().phase, site.scheduler_status().outcome) == ("ended", "failed")
    assert site.scheduler_status().reason.startswith("Slurm job 17: Slurm does not know it any more")


@pytest.mark.parametrize("state", ["PENDING|0:0|None assigned", "RUNNING|0:0|n1", "CANCELLED|0:0|n1", ""])
def test_a_job_that_the_controller_has_lost_is_over_whatever_the_accounting_says(site: Site, state: str) -> None:
    site.queue()
    site.program("scontrol", "slurm_load_jobs error: Invalid job id specified", code=1)
    site.program("sacct", f"17|{state}|r-abc234" if state else "")
    for _ in range(2):
        found = site.scheduler_status()
        assert (found.phase, found.outcome, found.cause) == ("ended", "failed", "infra")
        assert "(FORGOTTEN)" in found.reason
    assert site.calls() == ["squeue", "scontrol", "sacct"]


def test_a_controller_that_went_away_between_two_questions_concludes_nothing(site: Site) -> None:
    site.queue()
    site.program("scontrol", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    site.program("sacct", "17|PENDING|0:0|None assigned|r-abc234")
    said = "Slurm can't be asked: Unable to contact slurm controller (connect failure)"
    assert site.scheduler_status() == SchedulerStatus("unknown", said)


def test_a_controller_that_is_down_is_named_without_waiting_for_all_tries_of_squeue(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squeue that has not answered by the test's own time limit has been given up before."""
    (site.bin / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    site.program("scontrol", "Slurmctld(primary) at ctl is DOWN\nSlurmctld(backup) at ctl2 is DOWN")
    real = site.backend.slurm.runner.run
    monkeypatch.setattr(
        site.backend.slurm.runner, "run", lambda argv, stdin, _: real(argv, stdin, 0.3 if argv[0] == "squeue" else 60.0)
    )
    told = "Slurmctld(primary) at ctl is DOWN; Slurmctld(backup) at ctl2 is DOWN"
    assert site.scheduler_status() == SchedulerStatus("unknown", f"Slurm can't be asked: {told}")


def test_a_controller_that_is_down_holds_status_up_for_two_seconds_at_most(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = []
    monkeypatch.setattr(client, "QUICK_SECONDS", QUICK_SECONDS)

    def silent(argv: Sequence[str], _stdin: str, timeout: float) -> client.Answer:
        patience.append(timeout)
        if argv[0] == "scontrol":
            return client.Answer(0, "Slurmctld(primary) at ctl is DOWN", "")
        raise BackendError(f"{argv[0]} did not answer for {timeout:g} s", transient=True)

    monkeypatch.setattr(site.backend.slurm.runner, "run", silent)
    for _ in range(20):  # of so many runs, one asks
        assert site.scheduler_status().phase == "unknown"
    assert patience
    assert sum(patience) <= 2.0


def test_a_controller_that_is_only_slow_is_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.program("squeue", "17|RUNNING|None|N/A|n1|r-abc234")
    site.program("scontrol", "Slurmctld(primary) at ctl is UP\nSlurmctld(backup) at ctl2 is DOWN")
    real, late = site.backend.slurm.runner.run, ["squeue"]

    def slow(argv: Sequence[str], stdin: str, _: float) -> client.Answer:
        answer = real(argv, stdin, 60.0)
        if argv[0] in late:  # its first answer comes too late
            late.remove(argv[0])
            raise BackendError(f"{argv[0]} did not answer", transient=True)
        return answer

    monkeypatch.setattr(site.backend.slurm.runner, "run", slow)
    assert site.scheduler_status().detail == "Slurm job 17 is RUNNING on n1"
    assert site.calls() == ["squeue", "scontrol", "squeue"]


def test_a_job_whose_number_was_lost_is_found_by_its_name(site: Site) -> None:
    site.run.write("handle.json", {"state": "intent"})
    site.queue("16|COMPLETED|None|N/A|n1|r-abc23", "19|RUNNING|None|N/A|n1|r-abc234")
    assert site.scheduler_status().detail == "Slurm job 19 is RUNNING on n1"
    site.backend.slurm.snapshot.at = float("-inf")
    site.queue()
    assert site.scheduler_status() == SchedulerStatus("none")
    assert site.backend.alive(site.run) == {}
    (site.run.path / "slurm").mkdir()
    (site.run.path / "slurm" / "19_submitted.pkl").touch()  # it has run, and named its pickle
    assert site.scheduler_status() == SchedulerStatus("ended")


def test_a_cancelled_run_whose_job_is_in_no_queue_since_needs_no_more_questions(site: Site) -> None:
    site.queue()
    site.backend.slurm.queue()
    site.run.write("cancel.json", {})
    for _ in range(3):  # the queue is asked once more: as it was seen last it may be from before the submit
        assert site.scheduler_status() == SchedulerStatus("ended", outcome="cancelled")
    assert len(site.calls()) > 1
    assert set(site.calls()) == {"squeue"}


def test_a_job_that_is_handed_over_after_the_cancel_is_not_taken_for_gone(site: Site) -> None:
    site.run.write("cancel.json", {})
    site.queue()
    site.backend.slurm.queue(fresh=True)  # after the cancel, and before sbatch has the job
    site.queue("17|PENDING|Priority|N/A||r-abc234")
    site.run.write("handle.json", {"state": "submitted", "job": "17"})
    assert site.backend.slurm.queue().jobs == {}
    assert site.scheduler_status().phase == "waiting"


def test_a_cancelled_run_is_not_over_while_slurm_can_not_be_asked_or_has_its_job(site: Site) -> None:
    site.run.write("cancel.json", {})
    site.program("squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    assert site.scheduler_status().phase == "unknown"
    site.backend.slurm.snapshot.at = float("-inf")
    site.queue("17|COMPLETING|None|N/A|n1|r-abc234")
    assert site.scheduler_status().phase == "active"


def test_what_is_asked_of_a_job_that_is_over_is_asked_once(site: Site) -> None:
    site.queue("17|FAILED|NonZeroExitCode|N/A|n1|r-abc234")
    site.program("scontrol", SHOWN)
    for _ in range(3):
        site.scheduler_status()
    assert site.calls() == ["squeue", "scontrol"]


def test_the_run_directory_lies_where_the_profile_says(tmp_path: Path) -> None:
    run, backend = RunDir(tmp_path / "home" / "runs" / "r-abc234"), SlurmBackend()
    assert backend.place(run, None, None).run_dir == str(run.path)
    there = backend.place(run, "~/orch", None)
    assert there.run_dir == str(Path.home() / "orch" / "runs" / "r-abc234")
    assert there.agent_python == sys.executable
    with pytest.raises(UsageError, match="workdir is 'orch'"):
        backend.place(run, "orch", None)


def test_a_run_whose_folder_lies_elsewhere_is_a_link_and_both_go(tmp_path: Path) -> None:
    real = tmp_path / "shared" / "runs" / "r-abc234"
    run = create_run(tmp_path / "home", "r-abc234", {"nnodes": 1}, folder=str(real))
    assert (real / "run.json").exists()
    assert run.path.is_symlink()
    remove_run(tmp_path / "home", run)
    assert not real.exists()
    assert not run.path.is_symlink()


def test_a_link_whose_folder_is_gone_can_be_removed(tmp_path: Path) -> None:
    real = tmp_path / "shared" / "r-abc234"
    run = create_run(tmp_path / "home", "r-abc234", {"nnodes": 1}, folder=str(real))
    (real / "run.json").unlink()
    (real / "nodes").rmdir()
    real.rmdir()
    remove_run(tmp_path / "home", run)
    assert not run.path.is_symlink()
