"""What a supervisor's pass costs over a run in which nothing has changed: its first look, and each look after it.

The run is made by the store's own functions; its agents are this process, which lives. Each pass looks whether they do.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from pairs import Load, how_many

from orchestrator.node.system.processes import Process, identify
from orchestrator.protocol.events import AgentStarted, Stalled, Submitted
from orchestrator.runs.store import RunDir, append_lines, create_run
from orchestrator.supervisor.reconcile import Reconciler

SHAPES = ((1, 10), (2, 1000), (8, 1000))  # nodes, events of each


def standing_run(root: Path, nodes: int, events: int, agent: Process) -> RunDir:
    """Return a run whose agents all live and have said this much."""
    who = {"pid": agent.pid, "started": agent.started}
    record = {
        "kind": "local", "nnodes": nodes, "hosts": ["localhost"] * nodes, "created": time.time(),
        "submitter": {**who, "host": os.uname().nodename},
    }  # fmt: skip
    run = create_run(root, f"standing-{nodes}-{events}", record)
    run.append_event(Submitted())
    run.write("handle.json", {"state": "submitted", "agents": {str(node): who for node in range(nodes)}})
    for node in range(nodes):
        run.node(node).mkdir(parents=True)
        run.write(f"nodes/{node}/agent.json", who)
        said = [AgentStarted("localhost"), *[Stalled(0, 0, 1.0, full=False)] * events]
        lines = [json.dumps({**event.to_json(), "node": node}) for event in said]
        append_lines(run.node(node) / "events.jsonl", lines)
    return run


def main() -> None:
    load, count = Load(), how_many(300)
    agent = identify(os.getpid())
    assert agent is not None
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        for nodes, events in SHAPES:
            run = standing_run(Path(folder), nodes, events, agent)
            reconciler, seconds = Reconciler(Path(folder), run), []
            for _ in range(count + 1):
                begun = time.perf_counter()
                verdict = reconciler.run_once()
                seconds.append(time.perf_counter() - begun)
                assert verdict is None
            first, *rest = (1000 * each for each in seconds)
            print(
                f"{nodes} nodes, {events} events each: first {first:.1f} ms, then {statistics.median(rest):.2f} "
                f"({min(rest):.2f}-{max(rest):.2f}) ms, {count} passes; load {load}"
            )


if __name__ == "__main__":
    main()
