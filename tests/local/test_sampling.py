"""How busy real ranks are, as their agent measures it; and what becomes of a run that does nothing."""

from __future__ import annotations

from orchestrator.runs.files.samples import read_samples
from orchestrator.runs.store import RunDir
from tests.testbed.machine import wait_until

from .conftest import Orch

# Rank 1 computes, rank 0 sleeps, until the test has seen enough.
UNEVEN = """
import os, time
stop = os.environ["ORCH_OUTPUT_DIR"] + "/stop"
while not os.path.exists(stop):
    if os.environ["RANK"] == "0":
        time.sleep(0.2)
"""


def cpu_seconds(run: RunDir, rank: int) -> float:
    """Return how much the samples say that a rank has computed."""
    samples = [sample for node in read_samples(run) for sample in node.samples]
    return sum(each.cpu * sample.seconds for sample in samples for each in sample.ranks if each.rank == rank)


def test_a_rank_that_computes_and_one_that_sleeps_are_seen_so(orch: Orch, project) -> None:
    folder = project(uneven_py=UNEVEN, uneven_yaml="script: uneven.py\n")
    (folder / "here.yaml").write_text("kind: local\nnproc_per_node: 2\n")
    run = orch.submit(str(folder / "uneven.yaml"), "-p", str(folder / "here.yaml"))
    wait_until(lambda: cpu_seconds(run, 1) > 0.5 + 4 * cpu_seconds(run, 0), "that rank 1 computes and rank 0 does not")
    (node,) = read_samples(run)  # while both run: one that has just ended has no memory any more
    assert all(sample.memory_total > sample.memory > 0 for sample in node.samples)
    assert all(rank.memory > 1 << 20 for sample in node.samples for rank in sample.ranks)
    page = orch("metrics", run.run_id, "--ascii")
    assert page.code == 0
    assert page.out.isascii()
    assert [line.split()[1] for line in page.out.splitlines() if line.startswith("  rank")] == ["0", "1"]

    (run.path / "outputs" / "stop").touch()
    assert orch("wait", run.run_id).code == 0
    (node,) = read_samples(run)
    (ended,) = orch.events(run, "agent_ended")
    assert ended["joules"] is None or ended["joules"] > 0  # of a machine with a GPU that tells
    said = orch("metrics", run.run_id, "--json").json
    assert len(said["nodes"][0]["samples"]) == len(node.samples)
    (used,) = orch("usage", "--by", "job", "--json").json
    assert (used["job"], used["runs"]) == ("uneven", 1)
    assert used["rank_hours"] > 0
    assert orch("status", run.run_id, "--json").json["findings"] == []


def test_a_run_that_does_nothing_is_cancelled_with_the_reason(orch: Orch, project) -> None:
    job = "script: uneven.py\nidle: {cpu: 50%, after: 2s, do: cancel}\nnotify: {on: [idle], command: [cat]}\n"
    folder = project(uneven_py=UNEVEN, idler_yaml=job)
    (folder / "here.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    done = orch("submit", str(folder / "idler.yaml"), "-p", str(folder / "here.yaml"), "-f")
    assert done.code == 103
    run = orch.run()
    assert "it was idle (CPU" in orch("why", run.run_id).out
    assert len(orch.events(run, "unused")) == 1
    assert orch.events(run, "restart") == []


def test_a_job_may_do_without_samples(orch: Orch, project) -> None:
    folder = project(quick_py="", quick_yaml="script: quick.py\nsampling: false\n")
    (folder / "here.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    assert orch("submit", str(folder / "quick.yaml"), "-p", str(folder / "here.yaml"), "-f").code == 0
    refused = orch("metrics", "last")
    assert refused.code == 2
    assert "its job says sampling: false" in refused.err
    assert read_samples(orch.run()) == ()
