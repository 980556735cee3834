"""What a training that goes wrong leaves as its verdict, through the command line."""

import shutil
from pathlib import Path

from tests.local.conftest import Orch
from tests.local.programs.ranks import PROGRAMS


def test_a_loss_that_is_no_number_is_the_verdict_and_is_not_tried_again(orch: Orch, tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "small.py", tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text(
        "training: {task: small.py, epochs: 3, global_batch: 12, options: {poison: 20}}\nretry: {user_error: 3}\n"
    )
    done = orch("submit", str(job), "-p", "local", "--nproc-per-node", "2", "-f")
    assert done.code == 100
    why = orch("why", "last").out
    assert "93" in why
    assert "error: The loss is nan at step" in why
    assert len(orch.events(orch.run(), "go")) == 1
