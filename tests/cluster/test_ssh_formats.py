"""Checkpoints in the layouts of others' frameworks over SSH: taken to other machines, and gone on from after a loss."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import Lab, kill, settled

# Saves every 100 steps in the layout of Hugging Face's Trainer. After each save it goes on when its machine lets it
# (`wait`), or asks to be started again (`requeue`).
TRAINER = """
import json, os, pathlib, sys, time, zipfile
path, total = os.environ.get("ORCH_RESUME_FROM"), int(sys.argv[1])
first = json.loads(pathlib.Path(path, "trainer_state.json").read_text())["global_step"] if path else 0
print(f"begins at {first}", flush=True)
for step in range(first + 100, total + 1, 100):
    if os.environ["RANK"] == "0":
        folder = pathlib.Path("out", f"checkpoint-{step}")
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "optimizer.pt", "w") as file:
            file.writestr("weights", str(step) * 100_000)
        log = [{"eval_loss": 1 / step, "eval_runtime": 3.0, "step": step}]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": log}))
    if "requeue" in sys.argv:
        sys.exit(95) if os.environ["RANK"] == "0" else time.sleep(600)
    while "wait" in sys.argv and not os.path.exists(os.path.expanduser(f"~/go_on_after_{step}")):
        time.sleep(0.05)
print("done", flush=True)
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def begun(lab: Lab, run: str, rank: int = 0) -> list[int]:
    """Where the rank has begun, in each attempt."""
    return [int(line.rpartition(" ")[2]) for line in lab.log(run, rank).splitlines() if line.startswith("begins at")]


def let_go_on(lab: Lab, after: int, *hosts: str) -> None:
    for host in hosts:
        lab.control.file(host, f"/home/alice/go_on_after_{after}").touch()


def test_another_s_checkpoint_is_listed_pulled_and_sent_to_all_nodes_of_another_run(lab: Lab) -> None:
    first = lab.submit(lab.job("trainer", TRAINER, launcher="exec", args=["200"]), "-p", lab.profile(hosts=["n1"]))
    assert lab.wait(first).code == 0, lab.orch("why", first).out
    listed = lab.orch("checkpoints", first, "--json").json
    folder = f"/home/alice/.local/state/orch/runs/{first}/outputs/out"
    assert [(each["format"], each["step"], each["metric"], each["path"]) for each in listed] == [
        ("hf", step, {"eval_loss": 1 / step}, f"{folder}/checkpoint-{step}") for step in (100, 200)
    ]
    pulled = lab.orch("pull", first, "--checkpoint", "100", "--to", "pulled")
    assert (pulled.code, "hf outputs/out/checkpoint-100 (the one asked for)" in pulled.out) == (0, True), pulled
    again = lab.job("again", TRAINER, launcher="exec", args=["300"])
    two = lab.profile(hosts=["n2", "n3"])
    for asked, begins in ((first, 200), (f"{first}:100", 100)):
        run = lab.submit(again, "-p", two, "--resume", asked)
        assert lab.wait(run).code == 0, lab.orch("why", run).out
        assert [begun(lab, run, rank) for rank in range(2)] == [[begins], [begins]]
        assert [event["to"] for event in lab.events(run, "handed_over")] == [
            [1]
        ]  # over no more than one cable from here
        lab.assert_nothing_left(run)
    refused = lab.orch("submit", again, "-p", two, "--resume", f"{first}:150")
    assert (refused.code, "available steps: 100, 200" in refused.err) == (2, True), refused


@pytest.mark.full(
    "tests/cluster/test_ssh_elastic.py::test_node_0_may_be_lost_with_its_disk_while_the_laptop_is_closed",
)
def test_node_0_is_lost_with_its_disk_and_node_1_goes_on_from_its_replica(lab: Lab) -> None:
    job = lab.job("trainer", TRAINER, launcher="exec", args=["300", "wait"], limits={"join": 60})
    run = lab.submit(job, "-p", lab.profile(hosts=["n1", "n2"], spares=["n3"]))
    kill(lab.supervisor())
    let_go_on(lab, 100, "n1", "n2", "n3")
    replica = lab.control.file("n2", f"/home/alice/.orch/runs/{run}/code/out/checkpoint-200")
    settled((replica / "trainer_state.json").exists, "the replica of checkpoint-200 on n2")
    lab.control.crash("n1")
    shutil.rmtree(lab.control.file("n1", f"/home/alice/.orch/runs/{run}"))
    for step in (200, 300):
        let_go_on(lab, step, "n2", "n3")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert [node["host"] for node in lab.status(run)["nodes"]] == ["n2", "n3"]  # who has it leads
    assert [begun(lab, run, rank)[-1] for rank in range(2)] == [200, 200]
    assert [each["step"] for each in lab.orch("checkpoints", run, "--json").json][-1] == 300
    lab.assert_nothing_left(run, ("n2", "n3"), away="n1")


@pytest.mark.soak
@pytest.mark.full(
    "tests/cluster/test_ssh_elastic.py::test_node_0_may_be_lost_with_its_disk_while_the_laptop_is_closed",
)
def test_a_spare_in_node_0_s_place_is_given_the_newest_that_came_home(lab: Lab) -> None:
    job = lab.job("trainer", TRAINER, launcher="exec", args=["300", "wait"], limits={"join": 60})
    run = lab.submit(job, "-p", lab.profile(hosts=["n1", "n2"], spares=["n3"], second_copy=False))
    let_go_on(lab, 100, "n1", "n2", "n3")
    state = lab.home / f".local/state/orch/runs/{run}/nodes/0/outputs.json"

    def is_home() -> bool:
        record = json.loads(state.read_text()) if state.exists() else {"files": {}, "lacking": ["?"]}
        return "out/checkpoint-200/trainer_state.json" in record["files"] and not record["lacking"]

    settled(is_home, "checkpoint-200 on the laptop")
    lab.control.crash("n1")
    for step in (200, 300):
        let_go_on(lab, step, "n2", "n3")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert [node["host"] for node in lab.status(run)["nodes"]] == ["n3", "n2"]
    assert [begun(lab, run, rank) for rank in range(2)] == [[0, 200], [0, 200]]
    assert (lab.home / f".local/state/orch/runs/{run}/outputs/out/checkpoint-300/trainer_state.json").exists()
    lab.assert_nothing_left(run, ("n2", "n3"), away="n1")
