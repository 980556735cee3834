"""The output of Grid Engine's programs, as Son of Grid Engine 8.1.9 printed it on the testbed."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.backends.sge import parse
from orchestrator.backends.sge.scheduler import GridEngine
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job
from orchestrator.specs.plan import LaunchPlan, RunPaths, plan
from tests.profiles import valid_profile

QSTAT = """<?xml version='1.0'?>
<job_info  xmlns:xsd="http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/qstat.xsd">
  <queue_info>
    <job_list state="running">
      <JB_job_number>3</JB_job_number>
      <JAT_prio>0.25000</JAT_prio>
      <JB_name>del</JB_name>
      <JB_owner>alice</JB_owner>
      <state>dr</state>
      <JAT_start_time>2026-11-25T19:18:25</JAT_start_time>
      <queue_name>main@n2</queue_name>
      <slots>1</slots>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>7</JB_job_number>
      <JB_name>held &amp; more</JB_name>
      <JB_owner>alice</JB_owner>
      <state>hqw</state>
      <queue_name></queue_name>
      <slots>1</slots>
    </job_list>
    <job_list state="pending">
      <JB_job_number>8</JB_job_number>
      <JB_name>arr</JB_name>
      <state>Rq</state>
      <queue_name></queue_name>
      <slots>1</slots>
      <tasks>3</tasks>
    </job_list>
    <job_list state="pending"><JB_job_number>torn</JB_job_number></job_list>
  </job_info>
</job_info>
"""
QACCT = """==============================================================
qname        main
hostname     n2
jobname      again
jobnumber    5
taskid       undefined
granted_pe   NONE
slots        1
failed       25  : rescheduling
exit_status  99
ru_wallclock 0s
cpu          0.009s
maxvmem      0.000B
==============================================================
qname        main
hostname     n1
jobname      again
jobnumber    5
taskid       undefined
slots        3
failed       {failed}
exit_status  {code}
ru_wallclock 31s
cpu          12.5s
maxvmem      3.254MB
"""


def test_the_queue() -> None:
    running, held, requeued = parse.parse_qstat(QSTAT)
    assert (running.job_id, running.phase, running.nodes, running.name) == ("3", "active", "n2", "del")
    assert (held.phase, held.name, held.is_deferred) == ("waiting", "held & more", False)
    assert (requeued.job_id, requeued.phase, requeued.is_deferred) == ("8_2", "waiting", True)
    assert parse.parse_qstat("no such thing") == []


@pytest.mark.parametrize(
    ("failed", "code", "ending", "words"),
    [
        ("0", "0", "completed", "the job is over"),
        ("0", "3", "failed", "its batch script failed with exit code 3"),
        ("100 : assumedly after job", "137                  (Killed)", "",
         "its batch script was killed by SIGKILL (assumedly after job)"),
        ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137                  (Killed)", "timeout",
         "its time limit was reached (qmaster enforced h_rt, h_cpu, or h_vmem limit)"),
        ("1   : assumedly before job", "0", "failed", "its first host could not start it"),
        ("26  : opening input/output file", "0", "failed", "its first host can't write to the run's folder"),
    ],
)  # fmt: skip
def test_how_a_job_ended(failed: str, code: str, ending: str, words: str) -> None:
    (job,) = parse.parse_qacct(QACCT.format(failed=failed, code=code))  # the rescheduled start is no end
    assert (job.job_id, job.phase, job.ending) == ("5", "ended", ending)
    assert job.how_it_ended().startswith(f"Grid Engine job 5: {words}")


def test_a_job_that_begins_again_has_not_ended() -> None:
    assert parse.parse_qacct(QACCT.partition("qname        main\nhostname     n1")[0]) == []


def test_what_a_job_used() -> None:
    used = parse.parse_use(QACCT.format(failed="0", code="0"), "again")
    assert used is not None
    assert (used.seconds, used.cores, used.core_seconds, used.memory) == (31.0, 3, 12.5, int(3.254 * 2**20))
    assert parse.parse_use(QACCT.format(failed="0", code="0"), "other") is None


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('scheduling info:            cannot run in PE "mpi" because it only offers 17 slots\n',
         "its parallel environment has too few slots that are free: "
         'cannot run in PE "mpi" because it only offers 17 slots'),
        ("scheduling info:            not all array tasks may be started due to 'max_aj_instances'\n",
         "not all array tasks may be started due to 'max_aj_instances'"),
        ("error reason          1:      can't make tmpdir\nscheduling info:  x\n", "can't make tmpdir"),
        ("scheduling info:            (Collecting of scheduler job information is turned off)\n", ""),
        ("job_number: 6\n", ""),
    ],
)  # fmt: skip
def test_why_a_job_waits(said: str, sentence: str) -> None:
    assert parse.parse_reason(said) == sentence


def test_a_job_that_waits_says_what_it_waits_for() -> None:
    told = [parse.JobLine("6", state, "r").why_it_waits() for state in ("qw", "hqw", "Eqw", "Rq")]
    assert told[0] == "Grid Engine job 6 pending: the scheduler has not found a place for it yet (qw)"
    assert "it is held" in told[1]
    assert "qmod -cj 6" in told[2]
    assert "it is to be started again" in told[3]
    assert parse.JobLine("6", "Eqw", "r").is_stuck


@pytest.mark.parametrize(("answer", "number"), [("17\n", "17"), ("motd\n18.1-3:1\n", "18"), ("Your job 17\n", None)])
def test_the_number_of_a_submitted_job(answer: str, number: str | None) -> None:
    assert GridEngine().job_id_of(answer) == number


def test_tasks_are_counted_from_0_here_and_from_1_there() -> None:
    assert parse.own_number("17_3") == ("17", "4")
    assert parse.number_of("17", "4") == "17_3"
    assert GridEngine().cancel("17_3") == ("qdel", "17", "-t", "4")
    assert GridEngine().cancel("17", "TERM") == ()  # no command sends a signal: the job looks for the cancel itself


def launch(job: dict[str, Any] | None = None, **profile: Any) -> LaunchPlan:
    asked = valid(Job, {"name": "j", "script": "train.py", **(job or {})})
    where = valid_profile({"name": "p", "kind": "sge", "nodes": 3, "pe": "mpi", **profile})
    return plan(asked, where, "j-abc234", RunPaths("/r/j-abc234", "/c", "/in", "/env/bin/python", "/env/python"))


def test_profile_and_job_reach_qsub() -> None:
    found = GridEngine().options(
        launch(
            {"resources": {"cpus": 6}, "retry": {"preempted": 0}}, time="2h", queue="gpu.q", project="lab",
            request={"gpu": 2, "h_vmem": "4G"}, qsub={"m": "e", "soft": True},
        )
    )  # fmt: skip
    assert found == [
        "-V", "-N", "j-abc234", "-S", "/bin/sh", "-o", "/dev/null", "-r", "n", "-notify", "-j", "y", "-pe", "mpi", "18",
        "-q", "gpu.q", "-P", "lab", "-l", "gpu=2,h_vmem=4G,h_rt=7200", "-m", "e", "-soft",
    ]  # fmt: skip


def test_a_batch_file_as_it_is_has_its_own_options_and_only_a_place_from_the_profile() -> None:
    job = {"script": None, "command": ["sh", "j.sge"], "retry": {"timeout": 0, "preempted": 0}}
    options = ["-pe", "mpi", "8", "-q", "own.q"]
    plan = launch({**job, "batch": {"scheduler": "sge", "options": options}}, time="2h", queue="gpu.q", project="lab")
    assert GridEngine().options(plan) == [
        "-V", "-N", "j-abc234", "-S", "/bin/sh", "-o", "/dev/null", "-r", "n", "-notify", "-j", "y", "-P", "lab",
        "-pe", "mpi", "8", "-q", "own.q",
    ]  # fmt: skip
    assert '"$run" "$job" "$start" -\n' in GridEngine().script(plan)  # no warning before the limit


def test_the_script_counts_its_starts_and_asks_for_another_by_99() -> None:
    text = GridEngine().script(launch(time="1h"))
    assert "#$ -pe mpi 3\n" in text
    assert '/env/bin/python "$run/node.pyz" job sge "$run" "$job" "$start" 3600\n' in text
    assert 'if [ "$code" = 95 ]; then\n  exit 99\nfi' in text


def test_a_job_waits_for_others_if_it_need_not_know_how_they_end() -> None:
    waits = GridEngine().after(launch(qsub={"hold_jid": "3"}), ["17_2", "18[]"], succeeds=False)
    assert waits is not None
    assert getattr(waits.profile, "qsub", None) == {"hold_jid": "3,17,18"}
    assert GridEngine().after(launch(), ["17"], succeeds=True) is None  # the supervisor waits


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ('Unable to run job: Job was rejected because job requests unknown queue "nope"\nExiting.\n',
         "Grid Engine has no queue 'None'"),
        ('Unable to run job: job rejected: the requested parallel environment "mpi" does not exist\nExiting.\n',
         "Grid Engine has no parallel environment 'mpi'"),
        ('Unable to run job: unknown resource "nope"\nExiting.\n',
         "Grid Engine does not know a resource that the profile requests"),
        ('Unable to run job: Job 8 cannot run in PE "mpi" because it only offers 24 slots\nverification: no suitable '
         "queues\nExiting.\n", 'qsub refused the job: Job 8 cannot run in PE "mpi" because it only offers 24 slots'),
    ],
)  # fmt: skip
def test_refusals(said: str, meaning: str) -> None:
    backend = GridEngine.here()
    assert backend.scheduler.refusal(said, launch(), backend.site(None)).message.startswith(meaning)


def test_numbers_below_0_and_texts_with_spaces_reach_qsub_as_values() -> None:
    job = {"script": None, "command": ["sh", "j.sge"], "retry": {"timeout": 0}}
    options = ["-p", "-100", "-v", "MSG=a b"]
    text = GridEngine().script(launch({**job, "batch": {"scheduler": "sge", "options": options}}))
    assert "#$ -p -100\n#$ -v 'MSG=a b'\n" in text
