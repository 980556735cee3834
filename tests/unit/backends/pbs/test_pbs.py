"""PBS by the texts that its manuals show, and by stand-ins for its programs. No server was run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.batch.backend import Batch
from orchestrator.backends.batch.scheduler import Array
from orchestrator.backends.pbs import parse
from orchestrator.backends.pbs.scheduler import CANCEL_WAITING, MINE, Pbs
from orchestrator.runs.store import create_run
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job
from orchestrator.specs.plan import LaunchPlan, RunPaths, plan
from tests.machines import FakeMachine, Said
from tests.profiles import valid_profile

COMMENT = "Not Running: Insufficient amount of resource: ncpus (R: 8 A: 4 T: 8)"


def shown(*jobs: tuple[str, dict[str, Any]]) -> str:
    """Return what `qstat -f -F json` prints of these jobs."""
    head = {"timestamp": 1479277336, "pbs_version": "20.0.1", "pbs_server": "vbox"}
    return json.dumps({**head, "Jobs": {f"{number}.vbox": entry for number, entry in jobs}})


def entry(state: str, **values: Any) -> dict[str, Any]:
    return {"Job_Name": "j-abc234", "Job_Owner": "alice@vbox", "job_state": state, "queue": "workq", **values}


def test_the_queue() -> None:
    text = shown(
        ("17", entry("Q", comment=COMMENT, run_count=0)),
        ("18", entry("R", exec_host="n1/0*4+n2/0*4", run_count=1)),
        ("19[]", entry("B")),
        ("19[0]", entry("X", Exit_status=0)),
        ("19[2]", entry("Q", run_count="1")),
    )
    waiting, running, over, again = parse.parse_qstat(text)
    assert (waiting.job_id, waiting.phase, waiting.is_deferred) == ("17", "waiting", False)
    assert waiting.why_it_waits() == f"PBS job 17 pending: fewer hosts are free than it asks for ({COMMENT}) (Q)"
    assert (running.job_id, running.phase, running.nodes) == ("18", "active", "n1,n2")
    assert (over.job_id, over.phase, over.ending) == ("19_0", "ended", "completed")
    assert (again.job_id, again.phase, again.is_deferred) == ("19_2", "waiting", True)
    assert parse.parse_qstat("") == []
    assert parse.parse_qstat('{"Jobs": [1]}') == []


@pytest.mark.parametrize(
    ("values", "ending", "words"),
    [
        ({"Exit_status": 0, "substate": 92}, "completed", "the job is over"),
        ({"Exit_status": 3, "substate": 93}, "failed", "its batch script failed with exit code 3"),
        ({"Exit_status": 265, "substate": 93}, "", "its batch script was killed by SIGKILL"),
        ({"Exit_status": -29, "substate": 93}, "timeout", "its time limit was reached"),
        ({"Exit_status": -27, "substate": 93}, "", "it used more memory than it had asked for"),
        ({"Exit_status": 271, "substate": 91}, "cancelled", "it was deleted (qdel)"),
        ({"substate": 91}, "cancelled", "it was deleted (qdel)"),
    ],
)
def test_how_a_job_ended(values: dict[str, Any], ending: str, words: str) -> None:
    (job,) = parse.parse_qstat(shown(("17", entry("F", **values))))
    assert (job.phase, job.ending) == ("ended", ending)
    assert job.how_it_ended() == f"PBS job 17: {words}"


def test_a_job_that_can_never_run_is_stuck() -> None:
    (job,) = parse.parse_qstat(
        shown(("17", entry("Q", comment="Can Never Run: Insufficient amount of resource: ngpus")))
    )
    assert "ngpus" in job.why_it_waits()
    assert parse.JobLine("1", "Q", reason=parse.reason_of("Can Never Run: no such host")).is_stuck


def test_what_a_job_used() -> None:
    used = {"cpupercent": 98, "cput": "00:01:02", "mem": "2048kb", "ncpus": 4, "walltime": "01:00:01"}
    given = {"mem": "4gb", "ncpus": 8, "nodect": 2, "walltime": "02:00:00"}
    found = parse.parse_use(shown(("17", entry("F", resources_used=used, Resource_List=given))), "j-abc234")
    assert found is not None
    assert (found.seconds, found.limit_seconds, found.core_seconds) == (3601.0, 7200.0, 62.0)
    assert (found.cores, found.memory, found.memory_limit) == (8, 2 << 20, 4 << 30)


def launch(job: dict[str, Any] | None = None, folder: str = "/r", **profile: Any) -> LaunchPlan:
    asked = valid(Job, {"name": "j", "script": "train.py", **(job or {})})
    where = valid_profile({"name": "p", "kind": "pbs", "nodes": 3, **profile})
    paths = RunPaths(f"{folder}/j-abc234", "/c", "/in", "/env/bin/python", "/env/python")
    return plan(asked, where, "j-abc234", paths)


def test_profile_and_job_reach_qsub() -> None:
    found = Pbs().options(
        launch(
            {"resources": {"cpus": 6, "gpus": 2, "mem": "4G"}, "retry": {"preempted": 0}}, time="2h", queue="gpu",
            account="lab", ngpus=4, select={"system": "a"}, qsub={"m": "n"},
        )
    )  # fmt: skip
    assert found == [
        "-V", "-N", "j-abc234", "-S", "/bin/sh", "-o", "/dev/null", "-r", "n", "-j", "oe", "-q", "gpu", "-A", "lab",
        "-l", "select=3:ncpus=6:ngpus=2:mem=4096mb:system=a", "-l", "place=scatter", "-l", "walltime=7200", "-m", "n",
    ]  # fmt: skip


def test_a_run_of_an_array_has_its_working_folder_before_its_agents_start() -> None:
    text = Pbs().text(launch(folder="/top/runs"), Array("j-abc234", "/top/sweeps/j-abc234", 3))
    assert (
        laid := '/env/bin/python /top/sweeps/j-abc234/node.pyz lay /top/sweeps/j-abc234/code "$run" || exit 1'
    ) in text
    assert text.index(laid) < text.index('"$run/node.pyz" job pbs')
    assert " lay " not in Pbs().text(launch())


def test_a_job_waits_for_others() -> None:
    waits = Pbs().after(launch(), ["17", "18_3", "19[]"], succeeds=True)
    assert waits is not None
    assert getattr(waits.profile, "qsub", None) == {"W": "depend=afterok:17:18[3]:19[]"}


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("qsub: Unknown queue", "PBS has no queue 'gpu'"),
        ("qsub: Job violates queue and/or server resource limits", "a limit of the queue or the server"),
        ("qsub: Unknown resource: ngpu Resource_List", "PBS does not know a resource that the profile requests"),
        ("Connection refused\nqsub: cannot connect to server vbox (errno=15010)", "PBS's server can't be reached"),
        ("qsub: something new", "qsub refused the job: something new"),
    ],
)
def test_refusals(said: str, meaning: str) -> None:
    backend = Pbs.here()
    error = backend.scheduler.refusal(said, launch(queue="gpu"), backend.site(None))
    assert error.message.startswith(meaning)


class Server:
    """A login node whose programs answer as PBS's do, with one run of two nodes."""

    def __init__(self, folder: Path) -> None:
        self.backend, self.jobs, self.ran = Batch(Pbs(), is_remote=False), "", list[list[str]]()
        self.history = ""
        self.machine = FakeMachine("this machine", {"run_program": self.program, "missing_programs": {"missing": []}})
        self.site = self.backend.site(None)
        self.site.machine = lambda: self.machine
        self.run = create_run(folder / "home", "j-abc234", {"nnodes": 3, "kind": "pbs"})
        self.plan = launch(folder=str(self.run.path.parent))

    def program(self, argv: list[str], **_: Any) -> Said:
        self.ran.append(argv)
        if argv[0] == "qsub":
            self.jobs = shown(("17", entry("Q", comment=COMMENT)))
            return {"code": 0, "err": ""}, b"17.vbox\n"
        if argv[0] == "qdel":
            self.jobs, self.history = "", shown(("17", entry("F", substate=91)))
        if argv[:3] == ["qstat", "-x", "-f"] and not self.history:
            return {"code": 153, "err": "qstat: Unknown Job Id 17.vbox\n"}, b""
        return {"code": 0, "err": ""}, (self.history if argv[0] == "qstat" else self.jobs).encode()


def test_a_job_is_queued_waits_is_deleted_and_has_ended(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.backend.submit([server.plan], [server.plan.tasks], [server.run])
    assert server.run.read("handle.json") == {"state": "submitted", "job": "17"}
    assert "qselect" in MINE
    server.site.queue(fresh=True)
    waiting = server.backend.scheduler_status(server.run)
    assert (waiting.phase, waiting.detail.partition(":")[0]) == ("waiting", "PBS job 17 pending")
    server.backend.cancel([server.run])
    assert ["qdel", "17"] in server.ran
    ended = server.backend.scheduler_status(server.run)
    assert (ended.phase, ended.outcome) == ("ended", "cancelled")


def test_a_job_that_pbs_has_forgotten_is_lost(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.backend.submit([server.plan], [server.plan.tasks], [server.run])
    server.jobs = ""
    server.site.queue(fresh=True)
    lost = server.backend.scheduler_status(server.run)
    assert (lost.phase, lost.outcome) == ("ended", "failed")
    assert "PBS does not know it any more" in lost.reason


def programs(folder: Path, **texts: str) -> dict[str, str]:
    """Return the variables with which these shell texts are the programs on PATH."""
    for name, text in texts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}


def test_the_script_runs_in_a_real_shell_and_asks_for_another_start(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "j-abc234"
    (run / "batch").mkdir(parents=True)
    env = programs(tmp_path, python='echo "$@"; exit 95', qrerun=f'echo "$@" >>{tmp_path}/reruns; exit 1')
    text = Pbs().script(launch(folder=str(tmp_path / "runs"), time="1h"))
    text = text.replace("/env/bin/python", str(tmp_path / "python"))
    for start in range(2):
        done = subprocess.run(["sh", "-c", text], env={**env, "PBS_JOBID": "17.vbox"}, check=False)
        assert done.returncode == 95
        log = (run / "batch" / f"batch.17.{start}.log").read_text()
        assert log.splitlines()[0] == f"{run}/node.pyz job pbs {run} 17 {start} 3600"
        assert "this PBS lets only its operators start a job again" in log
    assert (tmp_path / "reruns").read_text() == "17.vbox\n17.vbox\n"


def test_only_subjobs_that_wait_are_deleted(tmp_path: Path) -> None:
    listed = "echo 17[1].vbox; echo 17[2].vbox; echo 170.vbox; echo 16.vbox"
    env = programs(tmp_path, qselect=listed, qdel=f'echo "$@" >>{tmp_path}/deleted')
    subprocess.run(["sh", "-c", CANCEL_WAITING, "qselect", "17"], env=env, check=True)
    assert (tmp_path / "deleted").read_text() == "17[1].vbox\n17[2].vbox\n"
