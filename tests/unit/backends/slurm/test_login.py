"""A run behind a login node as its files here tell it, and what is asked there, over a pipe in place of SSH."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import backend_for, kind_of
from orchestrator.backends.batch import watcher
from orchestrator.backends.batch.backend import Batch
from orchestrator.backends.batch.job import record_status, recorded_status
from orchestrator.backends.batch.site import Site
from orchestrator.backends.mirror.watching import Source
from orchestrator.backends.slurm import doctor
from orchestrator.backends.slurm.doctor import gpus_there, last_save, seconds_in, seconds_of, seen_there
from orchestrator.backends.slurm.scheduler import Slurm
from orchestrator.errors import UsageError
from orchestrator.node.server import run_program
from orchestrator.node.server.request import RefusedError
from orchestrator.outcome.scheduler import SchedulerStatus
from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.runs.store import RunDir, create_run
from orchestrator.specs.job import Job
from orchestrator.specs.plan import plan
from orchestrator.transport.address import Address, parse_address
from orchestrator.transport.machine import LocalMachine
from orchestrator.transport.node_archive import submitit_archive
from tests import nvml
from tests.profiles import valid_profile
from tests.unit.profiles import profile_of

from .test_script import launch

HERE = Site(Slurm(), LocalMachine)
PLAIN: dict[str, Any] = {"patience": 30, "env": {}, "hide": ["SQUEUE_"]}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    profile = {"kind": "slurm", "login": "me@far", "workdir": "/shared/orch"}
    return create_run(tmp_path, "r-abc234", {"nnodes": 2, "kind": "slurm-login", "profile": profile})


def test_a_profile_with_a_login_node_has_a_backend_of_its_own() -> None:
    assert kind_of(profile_of("slurm")) == "slurm"
    made = backend_for(kind_of(profile_of("slurm", login="me@far")))
    assert (type(made), made.is_remote) == (Batch, True)
    assert parse_address("me@far:2222") == Address("far", "me", 2222)


def test_its_folder_is_the_login_nodes(run: RunDir) -> None:
    paths = Slurm.through_login().paths(run, None, None)
    assert (paths.run_dir, paths.agent_python) == ("~/.orch/runs/r-abc234", "python3")
    assert Slurm.through_login().paths(run, "/shared/me", "/env/python").agent_python == "/env/python"
    with pytest.raises(UsageError, match="workdir must be an absolute path, and it is 'orch'"):
        Slurm.through_login().paths(run, "orch", None)


def test_submitits_side_of_its_task_is_the_archive_that_travels(run: RunDir) -> None:
    backend = Slurm.through_login()
    values = {
        "kind": "slurm",
        "name": "far",
        "nodes": 2,
        "nproc_per_node": 1,
        "login": "me@far",
        "python": "/env/python",
    }
    profile = valid_profile(values)
    launch = plan(Job(name="r", command=("true",)), profile, "r-abc234", backend.paths(run, "/w", "/env/python"))
    line = next(line for line in backend.advice.script(launch).splitlines() if line.startswith("srun"))
    assert line.endswith("/env/python -u /w/runs/r-abc234/submitit.pyz /w/runs/r-abc234/slurm")


def test_what_slurm_said_last_is_read_here(run: RunDir) -> None:
    backend = Slurm.through_login()
    assert backend.scheduler_status(run) == SchedulerStatus("none")  # nothing was sent
    assert backend.look(run).alive == {}
    assert backend.clean_up(run) == []
    run.write("handle.json", {"state": "submitted", "job": "17"})
    for phase, lives in (("waiting", None), ("active", True), ("unknown", None), ("ended", False)):
        record_status(run, Slurm(), SchedulerStatus(phase, f"it is {phase}"))
        assert backend.scheduler_status(run) == SchedulerStatus(phase, f"it is {phase}")
        assert backend.look(run).alive == {0: lives, 1: lives}


def test_a_look_from_before_the_submit_counts_for_nothing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Slurm.through_login()
    run.write("slurm.json", {**vars(SchedulerStatus("none")), "time": 1.0})
    run.write("handle.json", {"state": "intent"})
    asked = SchedulerStatus("waiting", "asked now")
    monkeypatch.setattr("orchestrator.backends.batch.job.scheduler_status", lambda *_: asked)
    assert backend.scheduler_status(run) == asked
    record_status(run, Slurm(), SchedulerStatus("none"))  # and one from after it does
    assert backend.scheduler_status(run) == SchedulerStatus("none")


def test_programs_are_run_with_their_input_and_their_answer() -> None:
    told = run_program.run_program({"argv": ["cat"], **PLAIN}, b"hello")
    assert told == ({"code": 0, "err": ""}, b"hello")
    told = run_program.run_program({"argv": ["sh", "-c", "echo no >&2; exit 3"], **PLAIN}, b"")
    assert told == ({"code": 3, "err": "no\n"}, b"")
    late = {"argv": [sys.executable, "-c", "input()"], **PLAIN, "patience": 0.05}
    assert run_program.run_program({**late, "argv": ["sleep", "30"]}, b"")[0]["code"] is None
    with pytest.raises(RefusedError, match="there is no sbetch on this host"):
        run_program.run_program({"argv": ["sbetch"], **PLAIN}, b"")


@pytest.mark.parametrize(
    ("shell", "file", "lines"),
    [
        ("bash", ".bash_profile", "echo welcome\nPATH=$PATH:{0}\nexport SLURM_CONF=/apps/slurm.conf\n"),
        ("tcsh", ".login", "echo welcome\nsetenv PATH ${{PATH}}:{0}\nsetenv SLURM_CONF /apps/slurm.conf\n"),
        ("dash", ".profile", "printf welcome\nexport PATH=$PATH:{0} SLURM_CONF=/apps/slurm.conf\n"),
    ],
)
def test_what_the_users_own_login_shell_sets_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, file: str, lines: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "squelch").write_text("#!/bin/sh\necho $SQUEUE_FORMAT $SLURM_CONF queue\n")
    (folder / "squelch").chmod(0o755)
    (tmp_path / file).write_text(lines.format(folder))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("SHELL", str(shutil.which(shell)))
    monkeypatch.setenv("SQUEUE_FORMAT", "strange")
    run_program.login_environment.cache_clear()
    assert run_program.missing_programs({"names": ["squelch", "sbetch", "sh"]}, b"")[0] == {"missing": ["sbetch"]}
    assert run_program.run_program({"argv": ["squelch"], **PLAIN}, b"")[1] == b"/apps/slurm.conf queue\n"
    run_program.login_environment.cache_clear()


def test_variables_that_say_which_slurm_it_is_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "x")
    facts = SCHEDULERS["slurm"]
    request = {"argv": ["env"], "patience": 30, "env": {}, "hide": [*facts.hidden], "keep": [*facts.kept]}
    seen = run_program.run_program(request, b"")[1].decode()
    assert [name for name in ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_PARTITION") if f"{name}=" in seen] == [
        "SLURM_CONF"
    ]


def test_submitits_side_travels_as_one_file() -> None:
    names = set(zipfile.ZipFile(BytesIO(submitit_archive())).namelist())
    assert {"__main__.py", "submitit/core/submission.py", "cloudpickle/cloudpickle.py"} <= names
    assert not any(os.path.basename(name).startswith("test_") for name in names)


def test_how_long_slurm_waits_and_how_long_a_checkpoint_took(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    config = "KeepAliveTime           = SYSTEM_DEFAULT\nKillOnBadExit           = 0\nKillWait                = 30 sec\n"
    assert seconds_of(config, "KillWait") == 30
    assert seconds_of(config, "GraceTime") is None
    assert list(seconds_in("PartitionName=a GraceTime=60 X=1\nPartitionName=b GraceTime=0", "GraceTime")) == [60, 0]
    monkeypatch.setenv("ORCH_HOME", str(run.path.parents[1]))
    assert last_save("far") is None
    run.write("run.json", {"profile_name": "far"})
    lines = [{"kind": "save", "seconds": 3.5}, {"kind": "eval", "seconds": 9}, {"kind": "save", "problem": "full"}]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert last_save("far") == 3.5


@pytest.mark.parametrize(
    ("out", "level", "words"),
    [
        (
            'n1\nshared\n{"python": "3.11.2", "torch": "2.10", "tls": true}',
            "ok",
            "n1 sees /w; python 3.11.2, torch 2.10",
        ),
        ('n1\nshared\n{"python": "3.11.2", "torch": null}', "fail", "n1: /py has no torch"),
        ('n1\nshared\n{"python": "3.11.2", "torch": "2.10", "tls": false}', "warn", "/py can't speak TLS 1.3"),
        ("n1\nshared\nsh: 1: /py: not found", "fail", "can't be started there: sh: 1: /py: not found"),
        ("n1\nshared\n", "fail", "can't be started there: it says nothing"),
        ("n1\napart\n{}", "fail", "/w is not the same folder on n1 and on the submitting machine"),
        ("", "fail", "srun failed: Unable to create step"),
    ],
)
def test_what_a_node_sees(out: str, level: str, words: str) -> None:
    begun = f"a greeting\norch-look\n{out}" if out else "srun: error: Unable to create step"
    found = seen_there(begun, "/w", "/py")
    assert (found[0], words in found[1]) == (level, True), found
    assert bool(found[2]) == (level != "ok")


class Cluster:
    """Stand-ins for sbatch, which runs the script here as Slurm would, squeue and srun."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.program(
            "sbatch",
            f"""echo "$*" >{folder}/asked
for word; do case $word in --output=*) out=${{word#--output=}};; esac; done
SLURM_EXPORT_ENV=NONE bash >"$out" 2>&1
echo Submitted batch job 7
""",
        )
        self.program("srun", 'while [ "$1" != sh ]; do shift; done\nexec "$@"\n')
        self.program("squeue", "echo '7|COMPLETED|None|N/A|n1|orch-doctor'\n")
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")

    def program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{text}")
        (self.folder / name).chmod(0o755)


def test_a_nodes_gpus_are_tried_by_the_doctors_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On cards of a stand-in for NVIDIA's library."""
    Cluster(tmp_path, monkeypatch)
    stub = nvml.describe(tmp_path / "cards", nvml.card(0), nvml.card(1, "volatile 2"))
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    shape = launch(gpus_per_node=2, python=sys.executable)
    found = doctor._on_node(HERE, shape, str(tmp_path / "runs"))
    asked = (tmp_path / "asked").read_text()
    assert "--gpus-per-node=2" in asked
    assert "--nodes=1" in asked
    assert found["node"].level == "ok"
    assert found["gpus"][:2] == ("ok", "2 NVIDIA H200")
    assert found["gpu health"][:2] == ("fail", "GPU 1: 2 uncorrectable errors")
    assert found["cuda"].level == "fail"  # torch has no such card
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_doctors_job_is_started_as_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --export=NONE, an srun without --export=ALL would hand nothing on."""
    cluster = Cluster(tmp_path, monkeypatch)
    ends = "case \" $* \" in *' --export=ALL '*) ;; *) echo srun: error: no environment; exit 1;; esac\n"
    cluster.program("srun", ends + 'while [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    shape = launch(python=sys.executable, sbatch={"export": "NONE", "nodelist": "n1"})
    found = doctor._on_node(HERE, shape, str(tmp_path / "runs"))
    assert found["node"].level == "ok", found
    asked = (tmp_path / "asked").read_text()
    assert "--export=NONE" in asked
    assert "--nodelist=n1" in asked
    monkeypatch.setattr(doctor, "step_rules", lambda _: [])
    found = doctor._on_node(HERE, shape, str(tmp_path / "runs"))
    assert found["node"][:2] == ("fail", "srun failed: no environment")


def test_a_node_that_does_not_see_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.program("sbatch", "echo Submitted batch job 7\n")
    cluster.program("squeue", "echo '7|FAILED|NonZeroExitCode|N/A|n1|orch-doctor'\n")
    found = doctor._on_node(HERE, launch(), str(tmp_path / "runs"))
    assert found["node"][:2] == ("fail", f"{tmp_path}/runs is not the same folder on n1 and on the submitting machine")
    assert "`workdir`" in found["node"].hint


def test_a_job_without_the_gpus_that_were_asked_for_is_told() -> None:
    none = json.dumps({"said": {"gpus": []}, "tried": {}})
    assert gpus_there([none], 4)["gpus"][:2] == ("fail", "the job got none of the 4 that the profile requests")
    assert gpus_there([none], None) == gpus_there([], 4) == {}


def test_an_end_is_recorded_only_when_all_that_was_written_before_it_is_here(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short job may end between a question and its copy: what is recorded was said before that."""
    active, ended = SchedulerStatus("active"), SchedulerStatus("ended")
    answers, done = iter([active, ended]), list[str]()

    def ask(*_: object) -> SchedulerStatus:
        answer = next(answers)
        done.append(answer.phase)
        return answer

    monkeypatch.setattr(watcher.job, "scheduler_status", ask)
    monkeypatch.setattr(watcher.job, "release_requeued", lambda *_: None)
    monkeypatch.setattr(watcher, "update_all", lambda *_: done.append("copied"))
    source = Source("far", (0, 1), lambda: None)  # type: ignore[arg-type, return-value]
    follower = watcher.LoginFollower(run, source, HERE)
    follower.update()
    assert done == ["copied", "active", "copied"]
    assert recorded_status(run, Slurm()) == active
    follower.update()
    assert done[3:] == ["copied", "ended", "copied"]
    assert recorded_status(run, Slurm()) == ended
