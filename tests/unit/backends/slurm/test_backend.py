"""What is known of a job when some of Slurm's programs fail, forget, or are missing: stand-ins for them on PATH."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends import backend_for
from orchestrator.backends.batch import site as batch_site
from orchestrator.backends.slurm.scheduler import Slurm
from orchestrator.backends.slurm.script import cores_per_node
from orchestrator.cli.output import what_is_left
from orchestrator.errors import BackendError, UsageError
from orchestrator.looking.state import state_of
from orchestrator.outcome.scheduler import SchedulerStatus
from orchestrator.runs.store import RunDir, create_run, remove_run
from tests.events import event
from tests.machines import FakeMachine, Said

from .test_script import launch

QUICK_SECONDS = batch_site.QUICK_SECONDS
SHOWN = "JobId=17 JobName=r-abc234 JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=127:0 NodeList=n1"


class Site:
    """A login node with as many of Slurm's programs as a test gives it, and one run of two nodes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setattr(batch_site, "QUICK_SECONDS", 60.0)
        monkeypatch.setattr(batch_site, "SNAPSHOT_SECONDS", 3600.0)
        for name in ("squeue", "scontrol", "sacct", "scancel"):  # a real one must not be met
            self.program(name, "there is no Slurm here", code=1)
        self.run = create_run(folder / "home", "r-abc234", {"nnodes": 2, "kind": "slurm"})
        self.run.write("handle.json", {"state": "submitted", "job": "17"})
        self.backend = Slurm.here()
        self.slurm = self.backend.site(None)

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

    def answers(self, told: Callable[..., Said]) -> FakeMachine:
        """Have a machine with these answers in the place of this one."""
        machine = FakeMachine("this machine", {"run_program": told})
        self.slurm.machine = lambda: machine
        return machine

    def calls(self) -> list[str]:
        path = self.bin / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


SILENT: Said = {"code": None, "err": ""}


def ran(out: str, code: int = 0) -> Said:
    """Return what a machine answers when a program has printed this; to its error output if it failed."""
    return ({"code": code, "err": out if code else ""}, b"" if code else out.encode())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_job_in_the_queue_needs_one_look(site: Site) -> None:
    site.queue("17|PENDING|Priority|N/A||r-abc234", "18|RUNNING|None|N/A|n3|other")
    found = site.scheduler_status()
    assert (found.phase, site.backend.look(site.run).alive) == ("waiting", {0: None, 1: None})
    assert "other jobs are ahead" in found.detail
    assert site.calls() == ["squeue"]


def test_a_node_is_reached_by_its_name_in_the_newest_start(site: Site) -> None:
    """With spares, its number in the run is not its number in the job."""
    site.queue("17|RUNNING|None|N/A|n[1-3]|r-abc234")
    folder = site.run.node(0)
    folder.mkdir(parents=True)
    starts = [
        {"kind": "batch_job", "node": 0, "start": start, "hosts": hosts}
        for start, hosts in enumerate((["n1", "n2"], ["n1", "n3"]))
    ]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in starts))
    assert "--nodelist=n3" in site.backend.reach(site.run, 1, ["true"], terminal=False)


def test_a_cancel_while_slurm_is_asked_is_not_taken_for_a_loss(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run.append_event(event("submitted"))
    site.queue("17|CANCELLED|None|N/A||r-abc234")
    squeue = site.bin / "squeue"
    cancel = f"""echo '{{"kind": "cancel"}}' >>{site.run.path}/events.jsonl; echo '{{}}' >{site.run.path}/cancel.json"""
    squeue.write_text(squeue.read_text().replace("cat <<", f"{cancel}\ncat <<"))
    monkeypatch.setattr(backend_for("slurm"), "_sites", site.backend._sites)
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
    made = site.backend.advice.completed(plan)
    assert cores_per_node(made) == cores
    open_still = made == plan and bool(profile) and not job and "cpus_per_gpu" not in profile
    record = {"kind": "slurm", "profile": made.profile.to_json(), "job": made.job.to_json()}
    run = create_run(site.bin.parent / "home", "q-abc234", record)
    assert ("set cpus_per_gpu" in site.backend.advice.unsaid(run)) is open_still is (not takes)


def test_a_slurm_that_says_nothing_leaves_the_plan_as_it_is(site: Site) -> None:
    plan = launch(gpus_per_node=4)
    site.program("sinfo", "slurm_load_partitions: Unable to contact slurm controller", code=1)
    assert site.backend.advice.completed(plan) == plan


def test_a_running_jobs_nodes_live(site: Site) -> None:
    site.queue("17|RUNNING|None|N/A|n[1-2]|r-abc234")
    assert site.backend.look(site.run).alive == {0: True, 1: True}
    assert site.scheduler_status().detail == "Slurm job 17 is RUNNING on n[1-2]"


def test_slurm_that_does_not_answer_concludes_nothing(site: Site) -> None:
    site.program("squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    assert site.backend.look(site.run).alive == {0: None, 1: None}
    said = site.scheduler_status()
    assert (said.phase, said.outcome) == ("unknown", "")
    assert "Slurm can't be asked: Unable to contact slurm controller" in said.detail


def test_a_machine_without_slurm_concludes_nothing(site: Site) -> None:
    site.answers(lambda argv, **_: BackendError(f"this machine: there is no {argv[0]} here"))
    said = "Slurm can't be asked: this machine: there is no squeue here"
    assert site.scheduler_status() == SchedulerStatus("unknown", said)


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
    assert site.backend.look(site.run).alive == {0: False, 1: False}


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
    assert site.backend.look(site.run).alive == {0: False, 1: False}


def test_a_cancel_without_accounting_names_nobody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_site, "ACCOUNTING_LAG", 0.1)
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


@pytest.mark.parametrize("stream", ["", ">&2"])  # Slurm 26.05 prints it to the error output
def test_a_task_of_an_array_that_slurm_has_forgotten_is_named_so(site: Site, stream: str) -> None:
    sweep = RunDir(site.run.root / "sweeps" / "r-abc234")
    sweep.path.mkdir(parents=True)
    sweep.write("handle.json", {"state": "submitted", "job": "17"})
    point = create_run(site.run.root, "r-abc234.2", {"nnodes": 1, "kind": "slurm"})
    point.write("handle.json", {"state": "submitted", "array": str(sweep.path)})
    site.queue("17_1|RUNNING|None|N/A|n1|r-abc234")
    (site.bin / "scontrol").write_text(f"#!/bin/sh\necho 'Job 17_2 not found' {stream}\nexit 1\n")
    site.program("sacct", "Slurm accounting storage is disabled", code=1)
    found = site.backend.scheduler_status(point)
    assert (found.phase, found.outcome, found.cause) == ("ended", "failed", "infra")
    assert found.reason.startswith("Slurm job 17_2: Slurm does not know it any more, and has no record of its end")


@pytest.mark.parametrize(
    ("state", "signal"),
    [("RUNNING", "--signal=TERM "), *((each, "") for each in ("SUSPENDED", "STOPPED", "PENDING", "COMPLETING",
                                                                "CONFIGURING", "REQUEUE_HOLD", "SPECIAL_EXIT"))],
)  # fmt: skip
def test_only_a_running_job_is_sent_a_signal_before_it_is_cancelled(site: Site, state: str, signal: str) -> None:
    """In other states `scancel --signal` repeats its request for more than a minute."""
    site.program("scancel", "")
    site.queue(f"17|{state}|None|N/A|n1|r-abc234")
    site.backend.cancel([site.run])
    sent = [line for line in (site.bin / "calls").read_text().splitlines() if line.startswith("scancel")]
    assert sent == [f"scancel {signal}17"]


@pytest.mark.parametrize(
    ("state", "signals"), [("RUNNING", ["--signal=KILL "]), *((each, []) for each in ("SUSPENDED", "COMPLETING"))]
)
def test_only_a_running_job_is_sent_kill_before_it_is_ended(
    site: Site, state: str, signals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.slurm.scheduler, "end_seconds", 0.0)
    site.program("scancel", "")
    site.queue(f"17|{state}|None|N/A|n1|r-abc234")
    assert "Slurm job 17" in what_is_left(site.backend.clean_up(site.run)[0])
    sent = [line for line in (site.bin / "calls").read_text().splitlines() if line.startswith("scancel")]
    assert sent == [f"scancel {signal}17" for signal in (*signals, "")]


def test_a_scancel_that_was_killed_says_nothing_about_the_job(site: Site) -> None:
    (site.bin / "scancel").write_text("#!/bin/sh\nkill -9 $$\n")
    site.queue("17|RUNNING|None|N/A|n1|r-abc234")
    with pytest.raises(BackendError, match="scancel can't end Slurm job 17"):
        site.backend.cancel([site.run])


def test_a_job_that_ends_while_it_is_cancelled_is_no_error(site: Site) -> None:
    (site.bin / "scancel").write_text("#!/bin/sh\nexit 1\n")  # scancel says nothing about a job that has ended
    site.queue("17|RUNNING|None|N/A|n1|r-abc234")
    site.backend.cancel([site.run])


def test_a_controller_that_went_away_between_two_questions_concludes_nothing(site: Site) -> None:
    site.queue()
    site.program("scontrol", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    site.program("sacct", "17|PENDING|0:0|None assigned|r-abc234")
    said = "Slurm can't be asked: Unable to contact slurm controller (connect failure)"
    assert site.scheduler_status() == SchedulerStatus("unknown", said)


DOWN = "Slurmctld(primary) at ctl is DOWN\nSlurmctld(backup) at ctl2 is DOWN"


def test_a_controller_that_is_down_is_named_and_holds_status_up_for_two_seconds_at_most(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = []
    monkeypatch.setattr(batch_site, "QUICK_SECONDS", QUICK_SECONDS)

    def silent(argv: Sequence[str], patience_: float) -> Said:
        patience.append(patience_)
        return ran(DOWN) if argv[0] == "scontrol" else SILENT

    site.answers(lambda argv, patience, **_: silent(argv, patience))
    told = DOWN.replace("\n", "; ")
    for _ in range(20):  # one query serves so many runs
        assert site.scheduler_status() == SchedulerStatus("unknown", f"Slurm can't be asked: {told}")
    assert patience
    assert sum(patience) <= 2.0


def test_a_controller_that_is_only_slow_is_waited_for(site: Site) -> None:
    up, queue = ran(DOWN.replace("DOWN", "UP")), ran("17|RUNNING|None|N/A|n1|r-abc234")
    late = [SILENT, queue]  # its first answer comes too late
    machine = site.answers(lambda argv, **_: up if argv[0] == "scontrol" else late.pop(0))
    assert site.scheduler_status().detail == "Slurm job 17 is RUNNING on n1"
    assert [values["argv"][0] for _, values in machine.asked] == ["squeue", "scontrol", "squeue"]


def test_a_job_whose_number_was_lost_is_found_by_its_name(site: Site) -> None:
    site.run.write("handle.json", {"state": "intent"})
    site.queue("16|COMPLETED|None|N/A|n1|r-abc23", "19|RUNNING|None|N/A|n1|r-abc234")
    assert site.scheduler_status().detail == "Slurm job 19 is RUNNING on n1"
    site.slurm.snapshot.at = float("-inf")
    site.queue()
    assert site.scheduler_status() == SchedulerStatus("none")
    assert site.backend.look(site.run).alive == {}
    (site.run.path / "slurm").mkdir()
    (site.run.path / "slurm" / "batch.19.0.log").touch()  # it has run, and named its log
    assert site.scheduler_status() == SchedulerStatus("ended")


def test_a_cancelled_run_whose_job_is_in_no_queue_since_needs_no_more_questions(site: Site) -> None:
    site.queue()
    site.slurm.queue()
    site.run.write("cancel.json", {})
    for _ in range(3):  # the queue is asked once more: as it was seen last it may be from before the submit
        assert site.scheduler_status() == SchedulerStatus("ended", outcome="cancelled")
    assert len(site.calls()) > 1
    assert set(site.calls()) == {"squeue"}


def test_a_job_that_is_handed_over_after_the_cancel_is_not_taken_for_gone(site: Site) -> None:
    site.run.write("cancel.json", {})
    site.queue()
    site.slurm.queue(fresh=True)  # after the cancel, and before sbatch has the job
    site.queue("17|PENDING|Priority|N/A||r-abc234")
    site.run.write("handle.json", {"state": "submitted", "job": "17"})
    assert site.slurm.queue().jobs == {}
    assert site.scheduler_status().phase == "waiting"


def test_a_cancelled_run_is_not_over_while_slurm_can_not_be_asked_or_has_its_job(site: Site) -> None:
    site.run.write("cancel.json", {})
    site.program("squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    assert site.scheduler_status().phase == "unknown"
    site.slurm.snapshot.at = float("-inf")
    site.queue("17|COMPLETING|None|N/A|n1|r-abc234")
    assert site.scheduler_status().phase == "active"


def test_a_job_that_bears_another_name_is_known_by_its_number(site: Site) -> None:
    """As with SBATCH_JOB_NAME in the shell, or a plugin of the site that names jobs."""
    site.queue("17|RUNNING|None|N/A|n1|site-17|orch r-abc234|/w/x.sh")
    assert site.scheduler_status().detail == "Slurm job 17 is RUNNING on n1"
    site.run.write("handle.json", {"state": "intent"})  # and without a number, by what is left of its names
    assert site.scheduler_status().detail == "Slurm job 17 is RUNNING on n1"


def test_variables_of_the_shell_change_nothing_that_slurms_programs_print(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.queue("17|RUNNING|None|N/A|n1|r-abc234")
    names = ("SINFO_PARTITION", "SCONTROL_ALL", "SQUEUE_USERS", "SACCT_LOCAL", "SCANCEL_STATE", "SLURM_CLUSTERS")
    for name in names:
        monkeypatch.setenv(name, "x")
    squeue = site.bin / "squeue"
    squeue.write_text(squeue.read_text().replace("cat <<", f"env >{site.bin}/seen\ncat <<"))
    site.scheduler_status()
    seen = (site.bin / "seen").read_text()
    assert not [name for name in names if f"{name}=" in seen]
    assert "SLURM_TIME_FORMAT=standard" in seen


def test_a_cancel_while_slurm_does_not_answer_proves_nothing(site: Site) -> None:
    site.program("squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    for node in range(2):
        site.run.node(node).mkdir(parents=True, exist_ok=True)
        started = f'{{"kind": "agent_started", "node": {node}, "host": "n{node + 1}", "time": 1.0, "seq": 0}}\n'
        (site.run.node(node) / "events.jsonl").write_text(started)
    with (site.run.node(1) / "events.jsonl").open("a") as events:  # its own word, after it has looked
        word = '{"kind": "agent_ended", "node": 1, "outcome": "failed", "swept": 1, "survivors": [], '
        events.write(f'{word}"time": 2.0, "seq": 1}}\n')
    first, second = site.backend.clean_up(site.run)
    assert (first.host, first.is_unreachable, first.is_clean) == ("n1", True, False)
    assert (second.host, second.is_unreachable, second.is_clean) == ("n2", False, True)
    assert what_is_left(first) == "not known: Slurm can't be asked: Unable to contact slurm controller"


def test_a_run_that_was_refused_before_sbatch_was_called_has_nothing_left(site: Site) -> None:
    (site.run.path / "handle.json").unlink()
    assert site.backend.clean_up(site.run) == []
    assert site.calls() == []


def test_a_controller_that_goes_away_before_the_scancel_proves_nothing(site: Site) -> None:
    site.queue("17|RUNNING|None|N/A|n[1-2]|r-abc234")
    site.program("scancel", "scancel: error: Unable to contact slurm controller", code=1)
    for proof in site.backend.clean_up(site.run):
        assert (proof.is_unreachable, proof.is_clean) == (True, False)
        assert "not known: Slurm can't be asked: scancel can't end Slurm job 17" in what_is_left(proof)


def submitted(site: Site, **profile: Any) -> dict[str, Any]:
    """Submit a job by the stand-ins; its handle."""
    plan = launch(str(site.run.path), python=sys.executable, **profile)
    for node in range(3):
        site.run.node(node).mkdir(parents=True, exist_ok=True)
    site.program("srun", "")
    site.backend.submit([plan], [plan.tasks], [site.run])
    return site.run.read("handle.json") or {}


REFUSED = "sbatch: error: Batch job submission failed: Requested node configuration is not available"


def test_what_slurm_refuses_is_refused_though_it_keeps_a_record_of_the_job(site: Site) -> None:
    site.queue("18|FAILED|BadConstraints|N/A||j-abc234|orch j-abc234|/w/x.sh")
    site.program("sbatch", REFUSED, code=1)
    site.program("sinfo", "main*|up|infinite|3|0/3|8|4000|(null)|n[1-3]")
    with pytest.raises(BackendError) as refused:
        submitted(site, mem="10G")
    said = refused.value.message
    assert "Requested node configuration is not available" in said  # in Slurm's words
    assert said.endswith("; main: n[1-3] have 4000 MiB of memory, 10240 asked")  # and with numbers


def test_an_sbatch_that_is_older_than_an_option_refuses_it(site: Site) -> None:
    """The stand-in says what sbatch's reader of options says."""
    site.queue()
    for said in ("sbatch: option '--requeue' doesn't allow an argument", "sbatch: unrecognized option '--brand-new=1'"):
        site.program("sbatch", f'{said}\nTry "sbatch --help" for more information', code=1)
        with pytest.raises(BackendError, match="this cluster's sbatch") as refused:
            submitted(site, sbatch={"requeue": "expedite"})
        assert said.partition(": ")[2] in refused.value.message


def test_a_job_that_was_taken_although_the_answer_was_lost_is_kept(site: Site) -> None:
    site.program("sbatch", "sbatch: error: Socket timed out on send/recv operation", code=1)
    site.queue("18|PENDING|Priority|N/A||j-abc234")
    assert submitted(site)["job"] == "18"


def test_sbatch_gets_the_profile_and_of_the_shell_only_what_it_leaves_open(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JOB_NAME", "ARRAY_INX", "PARTITION", "ACCOUNT", "NO_REQUEUE", "EXPORT", "COMMENT"):
        monkeypatch.setenv(f"SBATCH_{name}", "strange")
    site.program("sbatch", "Submitted batch job 18")
    sbatch = site.bin / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("cat <<", f"env >{site.bin}/seen\ncat <<"))
    handle = submitted(site, partition="main")
    assert handle["by_shell"] == {"account": {"value": "strange", "by": "SBATCH_ACCOUNT"}}
    assert "SBATCH_" not in (site.bin / "seen").read_text()
    words = (site.bin / "calls").read_text()
    for word in ("--partition=main", "--account=strange", "--job-name=j-abc234", "--requeue"):
        assert word in words
    assert (
        site.backend.advice.unsaid(site.run)
        == "the profile leaves open what the shell gives: account strange by SBATCH_ACCOUNT"
    )


def test_a_folder_that_sbatch_would_read_as_a_pattern_is_refused(tmp_path: Path) -> None:
    for workdir in ("/shared/a\\b", "/shared/50%"):
        with pytest.raises(UsageError, match="in the path of a log"):
            Slurm.here().paths(RunDir(tmp_path / "runs" / "r-abc234"), workdir, None)


def test_what_is_asked_of_a_job_that_is_over_is_asked_once(site: Site) -> None:
    site.queue("17|FAILED|NonZeroExitCode|N/A|n1|r-abc234")
    site.program("scontrol", SHOWN)
    for _ in range(3):
        site.scheduler_status()
    assert site.calls() == ["squeue", "scontrol"]


def test_the_run_directory_lies_where_the_profile_says(tmp_path: Path) -> None:
    run, backend_for = RunDir(tmp_path / "home" / "runs" / "r-abc234"), Slurm.here()
    assert backend_for.paths(run, None, None).run_dir == str(run.path)
    there = backend_for.paths(run, "~/orch", None)
    assert there.run_dir == str(Path.home() / "orch" / "runs" / "r-abc234")
    assert there.agent_python == sys.executable
    with pytest.raises(UsageError, match="workdir must be an absolute path, and it is 'orch'"):
        backend_for.paths(run, "orch", None)


def test_a_folder_that_can_not_be_looked_at_is_judged_by_the_one_above_it(tmp_path: Path) -> None:
    """As another user's folder of mode 700 can't; here its name is too long."""
    launch = SimpleNamespace(tasks=(SimpleNamespace(run_dir=f"{tmp_path}/{'x' * 300}/runs/doctor"),))
    backend_for = Slurm.here()
    found = backend_for._runs_folder(backend_for.site(None), launch)  # type: ignore[arg-type]
    assert (found.top, found.is_writable) == (str(tmp_path), True)


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
