"""A submit on this machine and through a login node: the same files, by submitit's executor, and the same recovery."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import SlurmExecutor

from orchestrator.backends.base import room
from orchestrator.backends.batch.backend import Batch
from orchestrator.backends.batch.scheduler import Array, Order
from orchestrator.backends.batch.submission import lay, queued
from orchestrator.backends.slurm.scheduler import Slurm
from orchestrator.backends.slurm.script import options_in
from orchestrator.backends.slurm.submission import script
from orchestrator.errors import BackendError
from orchestrator.node.system import private
from orchestrator.runs.store import create_run
from orchestrator.specs.plan import LaunchPlan
from orchestrator.transport.machine import Output
from tests.machines import FakeMachine, FakePool, Said
from tests.unit.profiles import profile_of

from .test_script import launch

TAKEN: Said = ({"code": 0, "err": ""}, b"Submitted batch job 18\n")


def refuses(said: str) -> Said:
    return {"code": 1, "err": f"sbatch: error: {said}"}


class Cluster:
    """The machine on which sbatch runs, and a backend that reaches it."""

    def __init__(self, kind: Batch, folder: Path, sbatch: Said, queue: Said) -> None:
        self.sbatch, self.queue, self.folder = sbatch, queue, folder
        self.machine = FakeMachine("far", {"run_program": self.run})
        if kind.is_remote:
            kind.pool = FakePool(self.machine)  # type: ignore[assignment]
            self.site = kind.site(profile_of("slurm", login="me@far", workdir=str(folder)))
        else:
            self.site = kind.site(None)
            self.site.machine = lambda: self.machine
        self.ran: list[dict[str, Any]] = []

    def run(self, argv: list[str], **values: Any) -> Said:
        self.ran.append({"argv": argv, **values})
        return {"sbatch": self.sbatch, "squeue": self.queue}.get(argv[0], {"code": 1, "err": "not here"})

    def submit(self, plan: LaunchPlan) -> str | None:
        found = queued(self.site, Order(plan))
        return found[0] if found is not None else None


def cluster_of(kind: Batch, folder: Path, sbatch: Said = TAKEN, queue: str = "") -> Cluster:
    return Cluster(kind, folder, sbatch, ({"code": 0, "err": ""}, queue.encode()))


both = pytest.mark.parametrize("kind", [Slurm.here, Slurm.through_login])


@both
def test_submitits_executor_submits(kind: Callable[[], Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = SlurmExecutor.submit
    monkeypatch.setattr(SlurmExecutor, "submit", lambda self, *words: (calls.append(words), real(self, *words))[1])
    cluster, plan = cluster_of(kind(), tmp_path), launch(str(tmp_path / "runs" / "a run"), time="3h")
    assert cluster.submit(plan) == "18"
    argv = ["/env/python", f"{plan.tasks[0].run_dir}/node.pyz", "slurm", plan.tasks[0].run_dir]
    assert [words[0] for words in calls] == [os.execvp]
    folder = Path(plan.tasks[0].run_dir) / "slurm"
    assert (folder / "submission.sh").read_text() == Slurm().script(plan)  # the dry run is the run
    (task,) = (pickle.loads(path.read_bytes()) for path in folder.glob("*.pkl"))  # noqa: S301 (our own)
    assert (task.function, task.args[1]) == (os.execvp, [plan.commands[0][0], *argv[1:]])
    assert (folder.parent / "submitit.pyz").exists()
    assert cluster.ran[0]["argv"] == ["sbatch", *options_in(Slurm().script(plan)), str(folder / "submission.sh")]


@both
def test_both_ways_write_the_same_files(kind: Callable[[], Batch], tmp_path: Path) -> None:
    cluster, plan = cluster_of(kind(), tmp_path), launch(str(tmp_path / "runs" / "j-abc234"))
    run = create_run(tmp_path / "home", "j-abc234", {"nnodes": 3})
    lay(cluster.site, plan.tasks[0].run_dir, [run], [plan.tasks], own_files=False)
    cluster.submit(plan)
    top = Path(plan.tasks[0].run_dir)
    found = {str(path.relative_to(top)): oct(path.stat().st_mode & 0o777) for path in top.rglob("*") if path.is_file()}
    made = {name if not name.endswith(".pkl") else "slurm/TASK.pkl": mode for name, mode in found.items()}
    tasks = [f"nodes/{node}/task.json" for node in range(3)]
    assert made == dict.fromkeys(["node.pyz", "submitit.pyz", "slurm/submission.sh", "slurm/TASK.pkl", *tasks], "0o600")


@both
def test_sbatch_gets_no_secret_and_no_option_of_the_shell(
    kind: Callable[[], Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By real programs: what the machine hides is what the machine is told to hide."""
    hidden = ("API_KEY", "RANK", "ORCH_HOME", "SUBMITIT_EXECUTOR", "SBATCH_JOB_NAME", "SLURM_JOB_ID", "SRUN_NTASKS")
    kept = ("SLURM_CONF", "API_KEY_FILE", "RANKING", "LC_ALL")
    for name in (*hidden, *kept):
        monkeypatch.setenv(name, "x")
    cluster = cluster_of(kind(), tmp_path)
    del cluster.machine.answers["run_program"]
    seen = cluster.site.run_submit(["env"], ("API_KEY", "RANK")).out.splitlines()
    assert [name for name in (*hidden, *kept) if f"{name}=x" in seen] == list(kept)


@both
def test_what_is_refused_is_refused_though_slurm_keeps_a_record_of_the_job(
    kind: Callable[[], Batch], tmp_path: Path
) -> None:
    said = "Batch job submission failed: Requested node configuration is not available"
    cluster = cluster_of(kind(), tmp_path, refuses(said), "18|FAILED|BadConstraints|N/A||j-abc234")
    with pytest.raises(BackendError, match="Requested node configuration is not available"):
        cluster.submit(launch(str(tmp_path / "r")))


def test_a_login_node_without_room_refuses_before_anything_is_sent(tmp_path: Path) -> None:
    backend = Slurm.through_login()
    cluster = cluster_of(backend, tmp_path)
    cluster.machine.answers["hello"] = {"home": "/home/me", "workdir": str(tmp_path), "free": 3 << 20}
    full = launch(str(tmp_path / "r"), login="me@far", workdir=str(tmp_path))
    with pytest.raises(BackendError, match=r"me@far: .* has only 3\.0 MiB left"):
        backend._ready(full)
    assert [check.level for check in (room("/w", 3 << 20), room("/w", 65 << 20), room("/w", 1 << 30))] == [
        "fail", "warn", "ok",
    ]  # fmt: skip
    assert cluster.ran == []


@both
def test_without_slurms_programs_the_error_says_where_to_go(kind: Callable[[], Batch], tmp_path: Path) -> None:
    backend = kind()
    cluster, names = cluster_of(backend, tmp_path), ["sbatch", "srun"]
    cluster.machine.answers["missing_programs"] = {"missing": names}
    with pytest.raises(BackendError, match=r"there is no sbatch, srun on (this machine|me@far)") as refused:
        cluster.site.need(*Slurm.programs)
    assert "login" in refused.value.hint


LOST = (refuses("Batch job submission failed: Socket timed out on send/recv operation"), {"code": None, "err": ""})


@both
@pytest.mark.parametrize("answer", LOST)
def test_a_job_that_was_taken_although_the_answer_was_lost_is_found_by_its_name(
    kind: Callable[[], Batch], answer: Said, tmp_path: Path
) -> None:
    cluster = cluster_of(kind(), tmp_path, answer, "18|PENDING|Priority|N/A||j-abc234")
    assert cluster.submit(launch(str(tmp_path / "r"))) == "18"
    cluster.queue = refuses("slurm_load_jobs error: Unable to contact slurm controller")
    assert cluster.submit(launch(str(tmp_path / "r"))) is None  # it may be found later
    cluster.queue = ({"code": 0, "err": ""}, b"")
    with pytest.raises(BackendError) as refused:
        cluster.submit(launch(str(tmp_path / "r")))
    assert refused.value.transient


@both
def test_a_file_that_can_not_be_written_is_no_lost_answer(kind: Callable[[], Batch], tmp_path: Path) -> None:
    cluster = cluster_of(kind(), tmp_path)
    cluster.machine.answers["write_file"] = BackendError("far: No space left on device")
    with pytest.raises(BackendError, match="No space left"):
        cluster.submit(launch(str(tmp_path / "r")))
    assert cluster.ran == []


def test_a_job_has_the_users_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm gives a job the umask of its sbatch."""
    monkeypatch.setattr(private, "_users", 0o027)
    cluster = cluster_of(Slurm.here(), tmp_path)
    del cluster.machine.answers["run_program"]
    assert cluster.site.run_submit(["sh", "-c", "umask"], ()).out == "0027\n"


def test_a_pickle_that_can_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(BackendError, match=r"gone.* can't be written: No such file") as refused:
        cluster_of(Slurm.here(), tmp_path).submit(launch(str(tmp_path / "r")))
    assert "TMPDIR" in refused.value.hint


def test_an_arrays_tasks_share_the_script_and_the_pickle(tmp_path: Path) -> None:
    array = Array("sweep-abc234", str(tmp_path / "sweeps" / "sweep-abc234"), 3, 2)
    plan = launch(str(tmp_path / "runs" / "sweep-abc234.0"))
    sent: dict[str, bytes] = {}
    number = Slurm().submit(Order(plan, array), sent.__setitem__, lambda _: Output(0, "Submitted batch job 18", ""))
    text = sent[f"{array.folder}/slurm/submission.sh"].decode()
    assert number == "18"
    assert "--array=0-2%2" in text
    assert f"{array.folder}/submitit.pyz {array.folder}/slurm" in text
    laid = f'node.pyz lay {array.folder}/code {tmp_path}/runs/sweep-abc234."$SLURM_ARRAY_TASK_ID" || exit 1'
    assert text.index(laid) < text.index("srun ")  # the run's working folder exists before the agents start
    assert " lay " not in script(Order(plan))
    (task,) = (pickle.loads(data) for path, data in sent.items() if path.endswith(".pkl"))  # noqa: S301 (our own)
    assert task.args[1][1:] == [f"{array.folder}/node.pyz", "slurm", f"{tmp_path}/runs/sweep-abc234.%a"]
