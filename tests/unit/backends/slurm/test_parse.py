"""What Slurm's programs print, in the styles of several versions, as values and as English."""

from __future__ import annotations

import time

import pytest

from orchestrator.backends.slurm.errors import refusal
from orchestrator.backends.slurm.parse import (
    ENDED,
    WAITING,
    JobLine,
    cpu_seconds,
    exit_code,
    is_unanswered,
    job_id_of,
    memory_in,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    parse_use,
    state_word,
    wait_seconds,
)
from orchestrator.backends.slurm.settings import settings_of
from orchestrator.runs.job_use import JobUse
from tests.unit.profiles import profile_of

ACTIVE = (
    "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT",
    "POWER_UP_NODE", "UPDATE_DB", "LAUNCH_FAILED", "RECONFIG_FAIL", "EXPEDITING",
)  # fmt: skip
SQUEUE = """\
101|PENDING|Resources|2026-03-01T10:00:00||train-abc234
102|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-3]|N/A||other-abc234
103|RUNNING|None|2026-03-01T09:00:00|n[1-3]|train-abc235
104|COMPLETING|None|2026-03-01T09:00:00|n4|site-1|orch train-abc237|/w/runs/train-abc237/slurm/x|y.sh
105_[1-4]|PENDING|Priority|N/A||array
slurm_load_jobs error: Unable to contact slurm controller
106|PENDING|BeginTime|2026-03-01T09:02:00|(null)|train-abc236
"""
# Slurm 22.05; 20.02 has no Accrue fields, 23.11 ends with more TRES fields and has SLUID-less ids alike.
SCONTROL_22 = (
    "JobId=17 JobName=train-abc234 UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A Priority=4294901757 Nice=0 "
    "Account=(null) QOS=normal JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 "
    "BatchFlag=1 Reboot=0 ExitCode=137:0 RunTime=00:00:05 TimeLimit=01:00:00 TimeMin=N/A "
    "SubmitTime=2026-03-01T09:00:00 StartTime=2026-03-01T09:00:01 EndTime=2026-03-01T09:00:06 "
    "NodeList=n[1-3] BatchHost=n1 NumNodes=3 Comment=orch train-abc234 Command=/x/.submission_file_1.sh "
    "StdOut=/x/17_0_log.out Power="
)
SCONTROL_25 = (
    "JobId=18 JobName=train-abc235 UserId=alice(1000) JobState=PENDING Reason=BeginTime Requeue=1 Restarts=1 "
    "ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:00 StartTime=2026-03-01T09:02:00 EndTime=Unknown NodeList= "
    "BatchHost=n1 ReqTRES=cpu=3,mem=12G,node=3,billing=3 AllocTRES=(null) LicensesAlloc=(null) TresPerTask=cpu=1"
)


def test_a_requeued_job_says_when_it_may_start_again() -> None:
    job = JobLine("7", "PENDING", reason="BeginTime", start="2026-03-01T04:26:13")
    assert job.why_it_waits() == "Slurm job 7 pending: eligible from 2026-03-01 04:26:13 (BeginTime)"
    assert job.why_it_waits(has_run=True).startswith("Slurm job 7 pending: requeued, eligible from 2026-03-01")


def test_squeue_lists_the_jobs_that_are_whole() -> None:
    jobs = {job.job_id: job for job in parse_squeue(SQUEUE)}
    assert list(jobs) == ["101", "102", "103", "104", "106"]
    assert jobs["101"] == JobLine("101", "PENDING", "train-abc234", "Resources", "2026-03-01T10:00:00")
    assert jobs["102"].reason.startswith("ReqNodeNotAvail, Unavail")
    assert (jobs["103"].nodes, jobs["103"].reason, jobs["104"].name) == ("n[1-3]", "", "site-1")
    assert [jobs[job].phase for job in jobs] == ["waiting", "waiting", "active", "active", "waiting"]


def test_scontrol_of_old_and_new_versions() -> None:
    old, new = parse_scontrol(SCONTROL_22), parse_scontrol(SCONTROL_25)
    assert old == JobLine(
        "17", "FAILED", "train-abc234", "NonZeroExitCode", "2026-03-01T09:00:01", "n[1-3]", code=137, restarts=2,
        comment="orch train-abc234", command="/x/.submission_file_1.sh",
    )  # fmt: skip
    assert new is not None
    assert (new.state, new.reason, new.nodes, new.code, new.restarts) == ("PENDING", "BeginTime", "", 0, 1)
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified") is None
    assert parse_scontrol("") is None


@pytest.mark.parametrize(
    ("job", "is_ours"),
    [
        (JobLine("1", "RUNNING", "r-abc234"), True),
        (JobLine("1", "RUNNING", "site-7", comment="orch r-abc234"), True),
        (JobLine("1", "RUNNING", "site-7", comment="budget 3", command="/w/runs/r-abc234/slurm/submission.sh"), True),
        (JobLine("1", "RUNNING", "site-7", comment="orch r-abc2345", command="/w/runs/r-abc2345/slurm/x.sh"), False),
    ],
)
def test_a_job_is_known_by_what_a_site_has_left_of_its_names(job: JobLine, is_ours: bool) -> None:
    assert job.is_named("r-abc234") is is_ours


def test_sacct_says_who_cancelled() -> None:
    text = "17|CANCELLED by 0|0:15|n[1-3]|train-abc234\n18|NODE_FAIL|1:0|n2|t\n19|PENDING|0:0|None assigned|t\n"
    first, second, third = parse_sacct(text)
    assert (first.state, first.by, first.code, first.signal) == ("CANCELLED", "0", 0, 15)
    assert (second.state, second.nodes) == ("NODE_FAIL", "n2")
    assert third.nodes == ""
    assert parse_sacct("Slurm accounting storage is disabled\n") == []


@pytest.mark.parametrize(
    ("text", "word", "by"),
    [
        ("CANCELLED by 1000", "CANCELLED", "1000"),
        ("CANCELLED by 0", "CANCELLED", "0"),
        ("CANCELLED+", "CANCELLED", ""),
        ("OUT_OF_ME+", "OUT_OF_ME", ""),
        ("running", "RUNNING", ""),
        ("SOMETHING_NEW", "SOMETHING_NEW", ""),
        ("", "", ""),
        ("odd word!", "ODD WORD!", ""),
    ],
)
def test_states_lose_what_is_no_state(text: str, word: str, by: str) -> None:
    assert state_word(text) == (word, by)


def test_every_state_of_slurm_has_one_phase() -> None:
    for state in WAITING:
        assert JobLine("1", state).phase == "waiting"
    for state in ACTIVE:
        assert JobLine("1", state).phase == "active"
    for state in ENDED:
        assert JobLine("1", state).phase == "ended"
    assert len({*WAITING, *ACTIVE, *ENDED}) == len(WAITING) + len(ACTIVE) + len(ENDED)


def test_an_unknown_state_is_shown_and_ends_nothing() -> None:
    job = JobLine("7", "HOVERING")
    assert job.phase == "active"
    assert job.how_it_ended() == "Slurm job 7: its state is HOVERING (HOVERING)"


@pytest.mark.parametrize(
    ("text", "expected"), [("137:0", (137, None)), ("0:9", (0, 9)), ("", (None, None)), ("x", (None, None))]
)
def test_exit_codes(text: str, expected: tuple[int | None, int | None]) -> None:
    assert exit_code(text) == expected


@pytest.mark.parametrize(
    ("answer", "job"),
    [
        ("Submitted batch job 17", "17"),
        ("Submitted batch job 17 on cluster big\n", "17"),
        ("17\n", "17"),
        ("17;big", "17"),
        ("sbatch: error: no", None),
        ("", None),
    ],
)
def test_the_number_in_sbatchs_answer(answer: str, job: str | None) -> None:
    assert job_id_of(answer) == job


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "other jobs are ahead of it in the queue (Priority)"),
        ("Resources", "it is next, as soon as enough nodes are free (Resources)"),
        ("", "not considered by the scheduler yet"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "nodes that it needs are down or reserved (ReqNodeNotAvail, Un"),
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", "nodes that it needs are down or reserved"),
        ("QOSMaxCpuPerUserLimit", "you use as much as the qos gives one user"),
        ("QOSMaxJobsPerUserLimit", "you have as many jobs running as you may"),
        ("QOSMaxNodePerJobLimit", "it asks for more than one job may have"),
        ("AssocGrpCPUMinutesLimit", "your account uses as much as it may"),
        ("QOSGrpGRES", "all jobs of its qos together use what they may"),
        ("PartitionTimeLimit", "it asks for more time than the partition gives a job"),
        ("PartitionNodeLimit", "it asks for more nodes than the partition gives a job"),
        ("JobHeldUser", "scontrol release"),
        ("DependencyNeverSatisfied", "it will never start"),
        ("SomethingNew", "Slurm holds it back (SomethingNew)"),
    ],
)
def test_why_a_job_waits(reason: str, words: str) -> None:
    assert words in JobLine("5", "PENDING", reason=reason).why_it_waits()


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [
        ("PartitionTimeLimit", True),
        ("PartitionConfig", True),
        ("QOSMaxNodePerJobLimit", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("Priority", False),
        ("Resources", False),
        ("ReqNodeNotAvail", False),
        ("", False),
    ],
)
def test_which_jobs_may_wait_for_ever(reason: str, stuck: bool) -> None:
    assert JobLine("5", "PENDING", reason=reason).is_stuck is stuck


def test_how_long_until_it_may_start() -> None:
    now = time.mktime((2026, 3, 1, 9, 59, 0, 0, 0, -1))
    assert wait_seconds("2026-03-01T10:00:30", now) == 90
    assert [wait_seconds(text, now) for text in ("", "N/A", "tomorrow")] == [0.0, 0.0, 0.0]


def test_when_a_job_may_start() -> None:
    job = JobLine("5", "PENDING", reason="Priority", start="2026-03-01T10:00:00")
    expected = (
        "Slurm job 5 pending: other jobs are ahead of it in the queue (Priority); may start at 2026-03-01 10:00:00"
    )
    assert job.why_it_waits() == expected


def test_how_jobs_end() -> None:
    assert JobLine("5", "TIMEOUT").how_it_ended() == "Slurm job 5: its time limit was reached (TIMEOUT)"
    assert (
        JobLine("5", "NODE_FAIL", nodes="n2").how_it_ended().startswith("Slurm job 5: one of its nodes failed (of n2)")
    )
    assert "it was cancelled by alice (" in JobLine("5", "CANCELLED", by="1000").how_it_ended("alice")
    assert "it was cancelled by user 1000 (" in JobLine("5", "CANCELLED", by="1000").how_it_ended()
    assert "failed with exit code 127 (" in JobLine("5", "FAILED", code=127, nodes="n1").how_it_ended()
    assert "set `workdir` in the profile" in JobLine("5", "FAILED", code=0, signal=53).how_it_ended()
    killed = JobLine("5", "FAILED", code=0, signal=9, nodes="n1")
    assert "failed, killed by SIGKILL (" in killed.how_it_ended()
    assert "Slurm ended it before it had a node (" in JobLine("5", "FAILED", code=0, signal=1).how_it_ended()


PROFILE = settings_of(
    profile_of("slurm", name="p", nodes=3, partition="gpu", account="lab", gres="gpu:4", cpus_per_task=4)
)


@pytest.mark.parametrize(
    ("said", "meaning", "hint"),
    [
        ("Invalid partition name specified", "Slurm has no partition 'gpu'", "sinfo"),
        ("Invalid account or account/partition combination specified", "Slurm has no account 'lab'", "sacctmgr"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "the time limit of 60 min", "`time`"),
        ("Node count specification invalid", "Slurm can't give the job 3 nodes", "`nodes`"),
        (
            "Requested node configuration is not available",
            "with the resources that the profile requests (gres gpu:4, cpus_",
            "sinfo",
        ),
        ("Invalid wckey specification", "requires a wckey", "sbatch: {wckey: NAME}"),
        ("Something {odd} happened", "sbatch refused the job: Batch job submission failed: Something {odd}", "dry-run"),
    ],
)
def test_refusals_name_the_field(said: str, meaning: str, hint: str) -> None:
    error = refusal(f"sbatch: error: Batch job submission failed: {said}", PROFILE, 3600)
    assert meaning in error.message
    assert hint in error.hint
    assert not error.transient


def test_a_controller_that_is_away_is_no_refusal() -> None:
    said = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    assert refusal(said, PROFILE, None).transient
    assert not is_unanswered(said)
    assert is_unanswered("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")


# A job of another name that had the number before; the memory of tasks together stands with their step.
USED = """\
17|COMPLETED|9|60|1|00:00:01|billing=1,cpu=1,mem=1G,node=1||other-abc234
17|COMPLETED|100|60|8|04:32.500|billing=8,cpu=8,mem=8000M,node=2||train-abc|234
17.batch|COMPLETED|100||4|00:01.000|cpu=4,mem=4000M,node=1|cpu=00:00:01,energy=0,mem=10M,pages=0|batch
17.extern|COMPLETED|100||8|00:00.001|billing=8,cpu=8,mem=8000M,node=2|cpu=00:00:00,fs/disk=12,mem=0|extern
17.0|COMPLETED|99||8|04:31.000|cpu=8,mem=8000M,node=2|cpu=00:04:31,energy=0,mem=1229M,vmem=9G|agent
"""


def test_what_a_job_has_used() -> None:
    found = parse_use(USED, "train-abc|234")
    assert found is not None
    assert found == JobUse("17", "COMPLETED", 100.0, 3600.0, 8, 272.5, 1229 << 20, 8000 << 20)
    assert found.core_share == pytest.approx(0.340625)
    before = parse_use(USED, "other-abc234")
    assert before is not None
    assert before.seconds == 9.0
    assert parse_use(USED, "train-before-it-was-renamed") == found
    assert parse_use("sacct: error: Slurm accounting storage is disabled", "train") is None


def test_what_slurm_has_not_measured_is_not_invented() -> None:
    line = "17_3|CANCELLED by 1000|0|UNLIMITED|0||||train"
    assert parse_use(line, "train") == JobUse("17_3", "CANCELLED", 0.0, None, 0, None, None, None)
    assert JobUse("17_3", "CANCELLED", 0.0, None, 0, None, None, None).core_share is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("1-02:03:04", 93784.0), ("02:03:04", 7384.0), ("03:04.250", 184.25), ("", None), ("x", None)]
)
def test_times_of_cores(text: str, seconds: float | None) -> None:
    assert cpu_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [("cpu=8,mem=4000M", 4000 << 20), ("mem=1.5G", 3 << 29), ("vmem=9G", None), ("mem=5", 5)],
)
def test_memory_among_what_a_job_was_given(text: str, found: int | None) -> None:
    assert memory_in(text) == found


@pytest.mark.parametrize(
    ("nodes", "words"),
    [(1, "the cluster does not have a node with the resources that the profile requests (mem 900 GiB)"),
     (3, "the cluster does not have 3 nodes with the resources that the profile requests (mem 900 GiB)")],
)  # fmt: skip
def test_a_refusal_counts_nodes_and_memory_in_words(nodes: int, words: str) -> None:
    asked = settings_of(profile_of("slurm", name="p", nodes=nodes, mem=900 << 30))
    said = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    slurms = "sbatch: Batch job submission failed: Requested node configuration is not available"
    assert refusal(said, asked, None).message == f"{words} ({slurms})"
