"""The files of tests/batch_files. Their structures come from the public documentation of clusters and libraries."""

from __future__ import annotations

from pathlib import Path

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
