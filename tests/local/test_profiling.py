"""`orch profile`: the steps of ranks that train, recorded while they do."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from tests.testbed.machine import wait_until

from .conftest import Orch
from .programs.ranks import PROGRAMS


def test_the_next_steps_of_every_rank_are_recorded(orch: Orch, tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "small.py", tmp_path / "small.py")
    job = tmp_path / "small.yaml"
    for_ever = {"epochs": 100_000, "eval_every": 100_000, "save_every": 100_000}
    training = {"task": "small.py", "global_batch": 12, **for_ever}
    job.write_text(json.dumps({"training": training, "warm_imports": ["torch._dynamo", "orchestrator.training.train"]}))
    run = orch.with_torch.submit(str(job), "-p", "local", "--nproc-per-node", "2", "--name", "small")

    def trains() -> bool:
        return all('"phase": "train"' in path.read_text() for path in run.path.glob("nodes/0/attempt_0/beat_*")) and (
            len(list(run.path.glob("nodes/0/attempt_0/beat_*"))) == 2
        )

    wait_until(trains, f"steps of {run.run_id}")
    folder = tmp_path / "recorded"
    done = orch("profile", run.run_id, "--steps", "3", "--output", str(folder), "--json")
    assert (done.code, done.json["problems"]) == (0, []), done.err
    assert done.json["files"] == [str(folder / f"rank_{rank}.trace.json.gz") for rank in range(2)]
    for path in done.json["files"]:
        events = json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]
        assert sum(event.get("name") == "Optimizer.step#SGD.step" for event in events) == 3
    assert not list(run.path.glob("nodes/0/attempt_0/*profile*"))
    orch("cancel", run.run_id, "--now")
    refused = orch("profile", run.run_id)
    assert (refused.code, "has ended (cancelled)" in refused.err) == (2, True), refused.err
