"""The batch script: what it asks for, that submitit submits this very text, and what its lines do in a real shell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.batch.scheduler import in_words
from orchestrator.backends.slurm.environment import filled
from orchestrator.backends.slurm.scheduler import Slurm
from orchestrator.backends.slurm.script import FOLDER, cores_per_node, options_in, warning
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job
from orchestrator.specs.plan import LaunchPlan, RunPaths, plan
from tests.patience import PATIENCE
from tests.profiles import valid_profile
from tests.unit.cli.test_render_runs import golden

RUN = "/shared/my runs/j-abc234"


def launch(run_dir: str = RUN, job: dict[str, Any] | None = None, **profile: Any) -> LaunchPlan:
    asked = valid(Job, {"name": "j", "script": "train.py", **(job or {})})
    where = valid_profile({"name": "p", "kind": "slurm", "nodes": 3, "nproc_per_node": 4, **profile})
    return plan(asked, where, "j-abc234", RunPaths(run_dir, f"{run_dir}/code", "/in", "/env/bin/python", "/env/python"))


def options(script: str) -> dict[str, str]:
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH --")]
    pairs = [shlex.split(line)[1].removeprefix("--").partition("=") for line in (f"x {each[8:]}" for each in lines)]
    return {name: value for name, _, value in pairs}


def script(**values: Any) -> str:
    return Slurm().script(launch(**values))


def test_profile_and_job_reach_sbatch() -> None:
    found = options(
        script(
            job={"resources": {"mem": "7G", "cpus": 6}},
            partition="gpu", account="lab", qos="high", time="2h", gres="gpu:a100:4", constraint="big",
            exclude="n[7-9]",
            sbatch={"reservation": "ours", "exclusive": True, "mail_user": "a b", "contiguous": False},
        )
    )  # fmt: skip
    expected = {
        "partition": "gpu", "account": "lab", "qos": "high", "time": "120", "gres": "gpu:a100:4", "constraint": "big",
        "exclude": "n[7-9]", "nodes": "3", "ntasks-per-node": "1", "cpus-per-task": "6", "mem": "7168M",
        "reservation": "ours", "exclusive": "", "mail-user": "a b", "requeue": "", "signal": "USR2@90",
        "job-name": "j-abc234", "comment": "orch j-abc234", "open-mode": "append",
        "output": f"{RUN}/slurm/%j_0_log.out",
    }  # fmt: skip
    assert found == expected


def test_what_nobody_asks_for_is_left_to_slurm() -> None:
    found = options(script(nproc_per_node="auto"))
    assert not {"partition", "time", "mem", "gres", "wckey", "cpus-per-task", "account", "error"} & set(found)
    assert options(script())["cpus-per-task"] == "4"  # one core a rank
    assert options(script(nproc_per_node=[1, 5, 2]))["cpus-per-task"] == "5"


def test_gpus_are_the_jobs_number_where_the_profile_has_some() -> None:
    assert options(script(gpus_per_node=8, job={"resources": {"gpus": 2}}))["gpus-per-node"] == "2"
    assert "gpus-per-node" not in options(script(gres="gpu:8", job={"resources": {"gpus": 2}}))


def test_times_are_whole_minutes_and_short_jobs_are_told_in_time() -> None:
    assert options(script(time="90s"))["time"] == "2"
    assert options(script(time="1s"))["time"] == "1"
    assert options(script(time="2m"))["signal"] == "USR2@30"
    assert [warning(limit) for limit in (None, 3600, 240, 20)] == [90, 90, 60, 10]
    assert options(script(sbatch={"signal": "USR2@300"}))["signal"] == "USR2@300"


def in_a_job(
    run: Path,
    *,
    srun_code: int,
    job: dict[str, Any] | None = None,
    spares: int = 0,
    python_code: int = 0,
    **environment: str,
) -> tuple[int, list[str]]:
    """Run the script as Slurm would, with programs that only write down how they were called."""
    programs = run.parent / "bin"
    programs.mkdir(exist_ok=True)
    called = run.parent / "called"
    for name, code in {"srun": srun_code, "scontrol": 0}.items():
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {called}\nexit {code}\n')
        (programs / name).chmod(0o755)
    called.unlink(missing_ok=True)
    (run / FOLDER).mkdir(parents=True, exist_ok=True)
    text = Slurm().script(launch(str(run), job, spares=spares))
    text = text.replace("/env/bin/python ", f"sh -c 'exit {python_code}' ", 1) if spares else text
    values = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", **environment}
    done = subprocess.run(["bash"], input=text, env=values, text=True, capture_output=True, check=False, cwd=run.parent)
    assert (done.stdout, done.stderr) == ("", "")  # all of it is in the start's own log
    return done.returncode, called.read_text().splitlines() if called.exists() else []


def test_the_scripts_code_is_that_of_the_agents(tmp_path: Path) -> None:
    run = tmp_path / "it's a run"
    code, called = in_a_job(run, srun_code=1)
    assert (code, len(called)) == (1, 1)
    assert called[0].startswith(
        "srun --export=ALL --unbuffered --kill-on-bad-exit=1 --wait=0 --cpus-per-task=4 --output="
    )
    assert called[0].endswith(f"/env/bin/python -u {run}/submitit.pyz {run}/slurm")
    assert f"--output={run}/slurm/agent.%j.0.%t.log" in called[0]


def test_it_is_queued_again_only_when_this_start_asks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / FOLDER).mkdir(parents=True)
    (run / FOLDER / "again.0").write_text("{}")
    assert in_a_job(run, srun_code=95)[1][1:] == ["scontrol requeue 17"]
    assert in_a_job(run, srun_code=95, SLURM_RESTART_COUNT="1")[1][1:] == []
    (run / FOLDER / "again.1").write_text("{}")
    code, called = in_a_job(run, srun_code=137, SLURM_RESTART_COUNT="1")  # an agent was killed, the others ask
    assert (code, called[1:]) == (137, ["scontrol requeue 17"])
    (run / "cancel.json").write_text(json.dumps({"now": False}))
    assert in_a_job(run, srun_code=95, SLURM_RESTART_COUNT="1")[1][1:] == []


def test_a_start_whose_only_agent_was_killed_is_not_queued_again(tmp_path: Path) -> None:
    code, called = in_a_job(tmp_path / "run", srun_code=137)
    assert (code, len(called)) == (137, 1)  # srun alone


def test_starts_do_not_share_a_log(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = in_a_job(run, srun_code=0)[1], in_a_job(run, srun_code=0, SLURM_RESTART_COUNT="1")[1]
    assert ".%j.0.%t.log" in first[0]
    assert ".%j.1.%t.log" in second[0]
    assert sorted(path.name for path in (run / FOLDER).glob("batch.*")) == ["batch.17.0.log", "batch.17.1.log"]


def test_the_pickle_gets_the_jobs_number(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / FOLDER).mkdir(parents=True)
    (run / FOLDER / f"{'0123abcd' * 4}.pkl").write_text("pickle")
    for start in range(2):
        in_a_job(run, srun_code=0, SLURM_RESTART_COUNT=str(start))
        assert (run / FOLDER / "17_submitted.pkl").read_text() == "pickle"
        assert (run / FOLDER / f"batch.17.{start}.log").read_text() == ""


def test_the_shell_fills_in_what_the_profile_leaves_open() -> None:
    shell = {
        "SBATCH_ACCOUNT": "lab",
        "SBATCH_PARTITION": "debug",
        "SBATCH_RESERVATION": "ours",
        "SBATCH_TIMELIMIT": "1",
    }
    made, used = filled(launch(partition="main"), shell)
    assert {option: each["by"] for option, each in used.items()} == {
        "account": "SBATCH_ACCOUNT", "reservation": "SBATCH_RESERVATION",
    }  # fmt: skip
    found = options(Slurm().script(made))
    assert (found["account"], found["partition"], found["reservation"]) == ("lab", "main", "ours")
    assert "time" not in found
    assert in_words(used) == (
        "the profile leaves open what the shell gives: account lab by SBATCH_ACCOUNT, "
        "reservation ours by SBATCH_RESERVATION"
    )
    assert filled(launch(), {**shell, "SLURM_JOB_ID": "1"}) == (launch(), {})  # they are those of the job around
    assert filled(launch(), {"SBATCH_ACCOUNT": "a\nb"})[1] == {}


def test_the_options_stand_on_the_command_line_of_sbatch_too() -> None:
    words = options_in(script(partition="gpu", sbatch={"mail_user": "a b", "exclusive": True}))
    assert {"--job-name=j-abc234", "--partition=gpu", "--mail-user=a b", "--exclusive", "--requeue"} <= set(words)
    assert not any("\n" in word for word in words)


def test_without_restarts_after_a_preemption_slurm_requeues_nothing_by_itself(tmp_path: Path) -> None:
    job = {"retry": {"preempted": 0}}
    found = options(script(job=job, sbatch={"requeue": "expedite"}))
    assert "no-requeue" in found
    assert "requeue" not in found
    run = tmp_path / "run"
    (run / FOLDER).mkdir(parents=True)
    assert in_a_job(run, srun_code=0, job=job)[1][1:] == []
    (run / FOLDER / "again.0").write_text("{}")  # for an end that the job's retry mends
    assert in_a_job(run, srun_code=95, job=job)[1][1:] == ["scontrol update jobid=17 requeue=1", "scontrol requeue 17"]
    assert in_a_job(run, srun_code=0, job=job, SLURM_RESTART_COUNT="1")[1][:1] == ["scontrol update jobid=17 requeue=0"]


def test_spares_are_more_nodes_of_a_job_that_survives_the_loss_of_a_node(tmp_path: Path) -> None:
    found = script(spares=2)
    golden("script_spares", found)
    assert (options(found)["nodes"], options(found)["no-kill"]) == ("5", "")
    run = tmp_path / "run"
    (run / FOLDER).mkdir(parents=True)
    (run / FOLDER / "again.0").write_text("{}")  # for a start in the same job
    for code, called in ((0, []), (1, []), (EXIT_REQUEUE, ["scontrol requeue 17"])):
        assert in_a_job(run, srun_code=0, python_code=code, spares=1) == (code, called)


def test_an_expedited_requeue_is_left_to_sbatch() -> None:
    assert options(script(sbatch={"requeue": "expedite"}))["requeue"] == "expedite"


@pytest.mark.parametrize(
    ("profile", "cores"),
    [
        ({"nproc_per_node": 8, "gpus_per_node": 8}, 8),
        ({"nproc_per_node": 8, "gpus_per_node": 8, "cpus_per_gpu": 12}, 96),
        ({"nproc_per_node": "auto", "gpus_per_node": 8, "cpus_per_gpu": 12}, 96),
        ({"nproc_per_node": "auto", "gres": "gpu:h100:4", "cpus_per_gpu": 7}, 28),
        ({"nproc_per_node": "auto", "gres": "gpu", "cpus_per_gpu": 7}, 7),
        ({"nproc_per_node": 16, "gpus_per_node": 1, "cpus_per_gpu": 2}, 16),
        ({"nproc_per_node": 2, "cpus_per_gpu": 12}, 2),  # no GPU is asked for
        ({"nproc_per_node": "auto"}, None),
        ({"nproc_per_node": 8, "gpus_per_node": 8, "cpus_per_gpu": 12, "cpus_per_task": 20}, 20),
    ],
)
def test_a_gpus_share_of_the_cores_is_asked_for(profile: dict[str, Any], cores: int | None) -> None:
    assert cores_per_node(launch(**profile)) == cores


BATCH: dict[str, Any] = {"script": None, "command": ["/bin/bash", "job.sbatch"], "retry": {"timeout": 0}}


def as_it_is(*options: str, retry: int | None = 0, **values: Any) -> LaunchPlan:
    job = {**BATCH, "batch": {"scheduler": "slurm", "options": options}, "retry": {"timeout": retry}}
    return launch(job=job, nodes=1, **{"nproc_per_node": 1, **values})


def test_a_batch_file_as_it_is_has_its_own_options_and_only_a_place_from_the_profile() -> None:
    profile = {
        "partition": "gpu", "account": "lab", "mem": "4G", "gpus_per_node": 2, "cpus_per_task": 8, "gres": "gpu:3",
        "sbatch": {"reservation": "ours", "exclusive": True, "dependency": "afterok:1"},
    }  # fmt: skip
    found = options(
        Slurm().script(as_it_is("--nodes=2", "--ntasks=3", "--account=own", "--dependency=afterok:7", **profile))
    )
    assert found == {
        "nodes": "2", "ntasks": "3", "account": "own", "partition": "gpu", "reservation": "ours",
        "dependency": "afterok:1,afterok:7", "job-name": "j-abc234", "comment": "orch j-abc234", "open-mode": "append",
        "output": f"{RUN}/slurm/%j_0_log.out",
    }  # fmt: skip
    assert options(Slurm().script(as_it_is("--ntasks=4"))).keys() & {"nodes", "time", "signal", "requeue"} == set()
    asked = options(Slurm().script(as_it_is("--requeue", retry=None)))
    assert "requeue" in asked
    never = {**BATCH, "batch": {"scheduler": "slurm", "options": ["--no-requeue"]}, "retry": {"preempted": 0}}
    assert "no-requeue" in options(Slurm().script(launch(job=never, nodes=1, nproc_per_node=1)))


@pytest.mark.parametrize(("retry", "limit"), [(None, "7200"), (0, "-")])
def test_only_a_file_that_asks_for_a_requeue_is_warned_of_its_limit(
    tmp_path: Path, retry: int | None, limit: str
) -> None:
    run = tmp_path / "run"
    (run / FOLDER).mkdir(parents=True)
    job = {**BATCH, "batch": {"scheduler": "slurm", "options": ["--requeue"]}, "retry": {"timeout": retry}}
    text = Slurm().script(launch(str(run), job, time="2h", nodes=1, nproc_per_node=1))
    text = text.replace("/env/bin/python ", f"{tmp_path}/agent ")
    (tmp_path / "agent").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\nexit 7\n')
    (tmp_path / "agent").chmod(0o755)
    done = subprocess.run(["bash"], input=text, env={**os.environ, "SLURM_JOB_ID": "17"}, text=True, check=False)
    assert done.returncode == 7
    assert (tmp_path / "called").read_text() == f"{run}/node.pyz job slurm {run} 17 0 {limit}\n"


def test_the_files_own_signal_reaches_its_program_and_others_do_not_end_the_batch_shell(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / FOLDER).mkdir(parents=True)
    job = {**BATCH, "batch": {"scheduler": "slurm", "options": ["--signal=B:USR1@60"]}}
    text = Slurm().script(launch(str(run), job, nodes=1, nproc_per_node=1))
    agent = tmp_path / "agent"
    agent.write_text(
        f"#!/bin/bash\necho $$ >{run}/batch.pid\n"
        f"trap 'echo heard >>{tmp_path}/heard' USR1\nkill -USR1 $PPID\n"
        f"for _ in $(seq {PATIENCE * 20:.0f}); do [ -e {tmp_path}/heard ] && break; sleep 0.05; done\n"
        "kill -TERM $PPID; sleep 1\n"  # if TERM ended the batch shell, its exit code would say so
    )
    agent.chmod(0o755)
    done = subprocess.run(
        ["bash"], input=text.replace("/env/bin/python ", f"{agent} "), env={**os.environ, "SLURM_JOB_ID": "17"},
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert (tmp_path / "heard").read_text() == "heard\n"
