"""A run handed over: what is printed is run."""

import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint.resume import Loaded, whole
from tests.local.conftest import REPO, Orch
from tests.local.programs.ranks import kept_port
from tests.patience import PATIENCE


def by_hand(text: str, folder: Path) -> str:
    """Run shell lines as a user would, and return what was printed."""
    done = subprocess.run(
        ["sh", "-ec", text],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full(
    "tests/unit/specs/test_launchers.py",
    "tests/unit/training/test_export.py",
    "tests/local/test_launcher.py::test_every_launcher_joins_the_ranks",
)
def test_a_run_goes_on_by_hand_and_its_weights_travel(orch: Orch, tmp_path: Path) -> None:
    shutil.copy(REPO / "jobs" / "regression.py", tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text("training: {task: regression.py, steps: 4, strategy: fsdp}\n")
    assert orch.with_torch("submit", str(job), "-p", "local", "--nproc-per-node", "2", "-f").code == 0
    run = orch.run()
    with kept_port() as port:
        said = by_hand(orch("export", "torchrun", "last", "--port", str(port)).out, tmp_path)
        assert "world size 2" in said
        assert "step 4/4" in said

        config = run.path / "code" / "accelerate_0.yaml"
        assert orch("export", "accelerate", "last", "--port", str(port), "-o", str(config)).code == 0
        lines = [line.removeprefix("#   ") for line in config.read_text().splitlines() if line.startswith("#   ")]
        said = by_hand("\n".join(lines), tmp_path)
    assert "resumed from checkpoints/step_00000004" in said

    assert orch("export", "safetensors", "last", "-o", str(tmp_path / "weights.safetensors")).code == 0
    path = run.path / "checkpoints" / "step_00000004"
    trained = whole(Loaded(checkpoints.load(path)[0], path))["model"]
    exported = load_file(tmp_path / "weights.safetensors")
    assert exported.keys() == trained.keys()
    assert all(exported[name].equal(value) for name, value in trained.items())
    refused = orch("export", "safetensors", "last", "--checkpoint", "3")
    assert (refused.code, refused.err.splitlines()[1].strip()) == (2, "available steps: 4")
