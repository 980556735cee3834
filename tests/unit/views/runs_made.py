"""Runs for the tests of what is looked at: their folders, written by the store's own functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.runs.store import RunDir, create_run, retire

FAILED = Verdict(Outcome.FAILED, Cause.USER_ERROR, "rank 1 on node 0 (n1) ended with exit code 1: boom", rank=1, code=1)


def make(root: Path, run_id: str, nodes: int = 1, **values: Any) -> RunDir:
    hosts = [f"n{node + 1}" for node in range(nodes)]
    name = run_id.partition("-")[0]
    record = {"name": name, "kind": "local", "nnodes": nodes, "hosts": hosts, "profile_name": "lab", "created": 100.0}
    run = create_run(root, run_id, {**record, "run_id": run_id, **values})
    (run.path / "events.jsonl").write_text(json.dumps({"kind": "submitted", "time": 101.0}) + "\n")
    return run


def tell(run: RunDir, node: int, kind: str, at: float, **values: Any) -> None:
    run.node(node).mkdir(exist_ok=True)
    with open(run.node(node) / "events.jsonl", "a") as file:
        file.write(json.dumps({"kind": kind, "node": node, "time": at, "mono": at, **values}) + "\n")


def begin(run: RunDir, nodes: int = 1, ranks: int = 2, attempt: int = 0, at: float = 110.0) -> None:
    """Have every node start its ranks."""
    for node in range(nodes):
        if attempt == 0:
            tell(run, node, "agent_started", at - 5, host=f"n{node + 1}", pid=1)
        tell(run, 0, "joined", at - 2, joined=node)
    tell(run, 0, "go", at, attempt=attempt, world_size=nodes * ranks)
    for node in range(nodes):
        tell(run, node, "started", at, ranks=[node * ranks, (node + 1) * ranks], attempt=attempt)


def beat(run: RunDir, rank: int, node: int = 0, attempt: int = 0, **values: Any) -> None:
    folder = run.node(node) / f"attempt_{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"beat_{rank}").write_text(json.dumps(values) + "\n")


def end(run: RunDir, verdict: Verdict, at: float = 160.0) -> None:
    run.write("verdict.json", {**verdict.to_json(), "ended": at})
    retire(run.root, run)
