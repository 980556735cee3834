"""A script that knows nothing of orch writes its loss to files of its own, and the loss is seen while it trains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.looking.run import wait
from orchestrator.trackers import event_file
from tests.patience import PATIENCE

from .conftest import Orch

PROGRAM = """
import os, time
rank, records = os.environ["RANK"], open("records.bin", "rb").read()
os.makedirs(f"runs/rank_{rank}")
events = open(f"runs/rank_{rank}/events.out.tfevents.1.n.{os.getpid()}.0", "wb", 0)
table = open("metrics.csv", "w", 1) if rank == "0" else None
half = len(records) // 2 + 7
events.write(records[:half])
if table:
    print("epoch,step,acc", *(f"0,{step},{step / 100}" for step in range(50)), sep="\\n", file=table)
end = time.monotonic() + 300
while not os.path.exists(os.environ["GO"]) and time.monotonic() < end:
    time.sleep(0.02)
events.write(records[half:])
if table:
    print(*(f"1,{step},{step / 100}" for step in range(50, 100)), sep="\\n", file=table)
"""
JOB = "{name: plain, script: program.py, launcher: exec, env: {GO: null}}"


def test_a_plain_script_is_plotted_ranked_and_followed(
    orch: Orch, project: Callable[..., Path], tmp_path: Path
) -> None:
    records = b"".join(event_file.scalars([("train/loss", 1 / (step + 1))], step, 1.7e9 + step) for step in range(100))
    folder = project(program_py=PROGRAM, job_yaml=JOB, two_yaml="kind: local\nnproc_per_node: 2\n")
    (folder / "records.bin").write_bytes(records)
    run = orch.submit(str(folder / "job.yaml"), "-p", str(folder / "two.yaml"), GO=str(tmp_path / "go"))
    end = time.monotonic() + PATIENCE
    while (seen := orch("plot", run.run_id, "--metric", "acc", "--json")).code != 0 and time.monotonic() < end:
        assert "run.metric(loss=...)" in seen.err or "they have" in seen.err, seen.err
    assert seen.json[0]["points"] == [[step, step / 100] for step in range(50)]
    (tmp_path / "go").touch()
    assert wait(run, timeout=PATIENCE).state == "succeeded"

    points = orch("plot", run.run_id, "--json").json  # the loss is shown if no metric is named
    assert [each["metric"] for each in points] == ["train/loss"]
    assert [step for step, _ in points[0]["points"]] == list(range(100))
    assert abs(points[0]["points"][99][1] - 0.01) < 1e-6
    assert orch("best", run.run_id, "--metric", "acc", "--json").json[0]["value"] == 0.99
    assert "step 99, train/loss 0.01" in orch("status", run.run_id).out
    lines = map(json.loads, (run.node(0) / "metrics.jsonl").read_text().splitlines())
    values = [
        (row["step"], name) for row in lines if "step" in row for name in row.keys() - {"step", "attempt", "time"}
    ]
    assert len(values) == len(set(values)) == 100 * 4  # the loss of each rank, the epoch and the accuracy
