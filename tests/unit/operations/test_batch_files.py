"""The files of tests/batch_files. Their structures come from the public documentation of clusters and libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.operations.submission.batch_file import document_of_file
from orchestrator.operations.submission.init import job_from_script
from orchestrator.specs.documents.loader import load, load_profile
from orchestrator.specs.documents.yaml_source import plain
from tests.testbed.layout import REPO

FOLDER = REPO / "tests" / "batch_files"
FILES = sorted(path.name for path in FOLDER.glob("*.sbatch"))
# The nodes, and the ranks of each node, of a converted file.
CONVERTED = {
    "01_srun_python.sbatch": (2, 2),
    "02_srun_torchrun_endpoint.sbatch": (2, 2),
    "03_launcher_in_variables.sbatch": (2, 2),
    "05_setup_then_script.sbatch": (2, 2),
    "06_source_in_a_shell.sbatch": (2, 2),
    "07_one_node.sbatch": (1, 2),
}
# Why a file is not converted. It runs as it is.
RUN_AS_THEY_ARE = {
    "04_node_loop.sbatch": "line 9: 'for node in $nodes' is neither a plain set-up command nor a launch line",
    "08_first_node_only.sbatch": "line 7: without srun it is started on the first node only, and the file asks for 2",
    "09_two_programs.sbatch": "line 6: it starts a second program, after line 5",
    "10_requeue_by_trap.sbatch": "line 6: --signal is not converted: orch needs this signal before the time limit",
    "11_conditions.sbatch": "line 7: 'if [ -n \"$SLURM_JOB_ID\" ]' is neither a plain set-up command nor a launch line",
    "12_steps_side_by_side.sbatch": "line 6: 'for steps in 2 3' is neither a plain set-up command nor a launch line",
    "13_srun_options.sbatch": "line 6: --distribution is not converted: orch numbers the ranks node by node",
    "14_heredoc.sbatch": "line 7: '<' is not converted: only plain commands and one launch line are",
    "15_job_number_as_argument.sbatch": "line 7: only a shell in the job could tell $SLURM_JOB_PARTITION",
}
REFUSED = {"16_array.sbatch": "line 5: --array is refused: orch submit --sweep starts a run for each value"}
assert {*CONVERTED, *RUN_AS_THEY_ARE, *REFUSED} == {*FILES}


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_converted_or_refused(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text()
    if name not in CONVERTED:
        with pytest.raises(UsageError) as refused:
            job_from_script(text, "mine", FOLDER)
        assert refused.value.message.startswith({**RUN_AS_THEY_ARE, **REFUSED}[name])
        return
    draft = job_from_script(text, "mine", FOLDER)
    (tmp_path / "train.py").touch()
    (tmp_path / "mine.yaml").write_text(draft.job)
    (tmp_path / "p.yaml").write_text(draft.profile or "")
    loaded = load("mine.yaml", "p.yaml", cwd=tmp_path)
    assert (loaded.job.script, loaded.job.args[:2]) == ("train.py", ("--steps", "3"))
    assert (loaded.profile.nodes, loaded.profile.nproc_per_node) == CONVERTED[name]
    assert load_profile("p.yaml", cwd=tmp_path).kind == "slurm"


@pytest.mark.parametrize("name", FILES)
def test_each_file_but_an_array_can_run_as_it_is(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(UsageError, match="line 5: --array is refused"):
            document_of_file(str(FOLDER / name))
        return
    job = plain(document_of_file(str(FOLDER / name)).root)
    assert isinstance(job, dict)
    assert job["command"][-1] == name
    assert any(option.startswith(("--nodes=", "--nodes")) for option in job["batch"]["options"])


def document(text: str, folder: Path, name: str = "job.sbatch") -> dict[str, Any]:
    (folder / name).write_text(text)
    found = plain(document_of_file(str(folder / name)).root)
    assert isinstance(found, dict)
    return found


def test_a_file_with_its_own_signal_and_shell(tmp_path: Path) -> None:
    job = document(
        "#!/bin/bash -l\n#SBATCH -N 2 -n4 --requeue -J my.job\n#SBATCH -o x.out --signal=B:USR1@60 -t 1:00:00\n",
        tmp_path,
    )
    assert job["name"] == "my.job"
    assert job["command"][-3:] == ["/bin/bash", "-l", "job.sbatch"]
    assert "batch.pid" in job["command"][2]
    assert job["batch"] == {
        "scheduler": "slurm",
        "options": ["--nodes=2", "--ntasks=4", "--requeue", "--signal=B:USR1@60", "--time=1:00:00"],
    }
    assert (job["retry"]["timeout"], job["retry"]["infra"], job["resources"]) == (None, 0, {"time": "3600s"})
    assert document("#!/bin/sh\n#SBATCH -N 1\n", tmp_path)["retry"]["timeout"] == 0


@pytest.mark.parametrize(
    ("text", "name", "scheduler", "options", "limit"),
    [
        ("#!/bin/bash\n#$ -cwd -N mine -pe mpi 8\n#$ -l h_rt=1:00:00,gpu=2 -m e -M a@b\nx x\n#$ -q gpu.q\n", "j.qsub",
         "sge", ["-pe", "mpi", "8", "-l", "h_rt=1:00:00,gpu=2", "-m", "e", "-M", "a@b", "-q", "gpu.q"], "3600s"),
        ("#!/bin/bash\n#PBS -N mine\n#PBS -l select=2:ncpus=4 -l walltime=00:30:00\n#PBS -q small\nx\n#PBS -A no\n",
         "j.pbs", "pbs", ["-l", "select=2:ncpus=4", "-l", "walltime=00:30:00", "-q", "small"], "1800s"),
    ],
)  # fmt: skip
def test_files_of_qsub(text: str, name: str, scheduler: str, options: list[str], limit: str, tmp_path: Path) -> None:
    job = document(text, tmp_path, name)
    assert (job["name"], job["batch"]) == ("mine", {"scheduler": scheduler, "options": options})
    assert job["resources"] == {"time": limit}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/bash\n#SBATCH -N1\r\n", "line 2: it ends with a Windows line end"),
        ("#!/bin/bash\n#SBATCH -N1\n#PBS -l x\n", "line 1: it has options of #SBATCH and #PBS"),
        ("#!/bin/bash\npython t.py\n", "line 1: it has options of no scheduler"),
        ("#!/bin/bash\n#SBATCH --wait\n", "line 2: --wait is refused: orch wait does the same"),
        ("#!/bin/bash\n#SBATCH --no-such\n", "line 2: #SBATCH --no-such: its value is missing"),
        ("#!/bin/bash\n#$ -t 1-3\n", "line 2: -t is refused: orch submit --sweep"),
        ("#!/bin/bash\n#PBS -J 1-3\n", "line 2: -J is refused: orch submit --sweep"),
    ],
)
def test_what_no_run_can_do_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_bytes(text.encode())
    with pytest.raises(UsageError) as refused:
        document_of_file(str(tmp_path / "job.sh"))
    assert refused.value.message.startswith(f"{tmp_path}/job.sh, {message}")


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("kind: local\n", "the file has options of Slurm, and profile 'p' is of kind local"),
        ("kind: slurm\nruntime: docker\n", "profile 'p' runs programs in docker"),
    ],
)
def test_profiles_on_which_no_file_runs_as_it_is(profile: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N1\n")
    (tmp_path / "p.yaml").write_text(profile)
    with pytest.raises(UsageError, match=words):
        load(document_of_file(str(tmp_path / "job.sbatch")), "p.yaml", cwd=tmp_path)


def test_one_rank_on_one_node_of_orchs_starts_the_file(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N8\n")
    (tmp_path / "p.yaml").write_text("kind: slurm\nnodes: 4\nspares: 1\nnproc_per_node: 8\n")
    loaded = load(document_of_file(str(tmp_path / "job.sbatch")), "p.yaml", cwd=tmp_path)
    assert (loaded.profile.nodes, loaded.profile.nproc_per_node) == (1, 1)


def test_a_file_of_qsub_runs_in_the_shell_that_it_asks_for(tmp_path: Path) -> None:
    text = "# it's a comment\n#$ -S /bin/bash\n#$ -p -100 -v 'MSG=a b'\nx\n"
    job = document(text, tmp_path, "j.sge")
    assert job["command"] == ["/bin/bash", "j.sge"]
    assert job["batch"]["options"] == ["-p", "-100", "-v", "MSG=a b"]
    assert document("#!/bin/sh\n#$ -S /bin/bash\n", tmp_path, "j.sge")["command"] == ["/bin/bash", "j.sge"]
    assert document("#PBS -l walltime=1\n#PBS -S /bin/csh@host,/bin/sh\n", tmp_path, "j.pbs")["command"] == [
        "/bin/sh", "j.pbs",
    ]  # fmt: skip
