"""Scripts with checkpoints of their own: what a restart goes on from, and what counts as getting on."""

from __future__ import annotations

import pytest

from .conftest import Orch

# A trainer of Hugging Face's layout: it goes on from what it is told, saves once, is killed; the fifth time it ends.
TRAINER = """
import json, os, pathlib, time, zipfile
path = os.environ.get("ORCH_RESUME_FROM")
first = json.loads(pathlib.Path(path, "trainer_state.json").read_text())["global_step"] if path else 0
print(f"rank {os.environ['RANK']} begins at {first}", flush=True)
said = pathlib.Path(os.environ["ORCH_OUTPUT_DIR"], "said", os.environ["ORCH_ATTEMPT"])
said.mkdir(parents=True, exist_ok=True)
(said / os.environ["RANK"]).touch()
while len(list(said.iterdir())) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
if first < 400 and os.environ["RANK"] == "0":
    folder = pathlib.Path("out", f"checkpoint-{first + 100}")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "optimizer.pt", "w") as file:
        file.writestr("weights", str(first))
    if os.environ.get("TEARS") and first == 200 and os.environ["ORCH_ATTEMPT"] == "2":
        (folder / "trainer_state.json").write_text('{"global_step": 3')
    else:
        log = [{"eval_loss": 1 / (first + 1), "step": first + 100}]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": first + 100, "log_history": log}))
    os.kill(os.getpid(), 9)
if first < 400:
    time.sleep(600)
"""


def begun(orch: Orch, rank: int = 0) -> list[int]:
    """Where each attempt's rank has begun."""
    run = orch.run()
    logs = sorted(run.path.glob(f"nodes/*/attempt_*/rank_{rank}.log"), key=lambda path: int(path.parent.name[8:]))
    return [int(log.read_text().split("begins at ")[1].split()[0]) for log in logs]


def test_each_restart_is_given_the_newest_whole_checkpoint_on_every_rank(orch: Orch, project) -> None:
    folder = project(train_py=TRAINER, train_yaml="script: train.py\nlauncher: exec\nretry: {infra: 9}\n")
    done = orch("submit", str(folder / "train.yaml"), "-p", "local-2x2", "-f")
    assert done.code == 0, done.err
    assert [begun(orch, rank) for rank in range(4)] == [[0, 100, 200, 300, 400]] * 4
    run = orch.run()
    assert [event["resume_from"] for event in orch.events(run, "go")] == [
        None, *(f"code/out/checkpoint-{step}" for step in (100, 200, 300, 400)),
    ]  # fmt: skip
    assert [event["from_step"] for event in orch.events(run, "restart")] == [100, 200, 300, 400]
    attempts = orch("status", "last", "--json").json["attempts"]
    assert [each["offered"] for each in attempts[1:]] == [f"code/out/checkpoint-{n}" for n in (100, 200, 300, 400)]
    # The last attempt saves nothing, so that nothing tells what it has loaded.
    assert [each["resumed_from"] for each in attempts] == [None, *(each["offered"] for each in attempts[1:4]), None]
    listed = orch("checkpoints", "last", "--json").json
    assert [(each["format"], each["step"]) for each in listed] == [("hf", step) for step in (100, 200, 300, 400)]
    resume = ("--resume", f"{run.run_id}:300")
    again = orch("submit", str(folder / "train.yaml"), "-p", "local", "--nproc-per-node", "1", "-f", *resume)
    assert again.code == 0, again.err
    assert begun(orch) == [300, 400]  # given, then its own


def test_a_torn_one_is_passed_over(orch: Orch, project) -> None:
    job = "script: train.py\nlauncher: exec\nretry: {infra: 9}\nenv: {TEARS: '1'}\n"
    folder = project(train_py=TRAINER, train_yaml=job)
    done = orch("submit", str(folder / "train.yaml"), "-p", "local", "--nproc-per-node", "1", "-f")
    assert done.code == 0, done.err
    assert begun(orch) == [0, 100, 200, 200, 300, 400]


# Saves a file of weights at step 3 and is killed; the next attempt loads it, or begins at step 1 again.
SAVES = """
import json, os, sys, zipfile
path = os.environ.get("ORCH_RESUME_FROM")
first = 1
if path and sys.argv[1] == "loads":
    first = json.loads(zipfile.ZipFile(path).read("step")) + 1
for step in range(first, first + 3):
    with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"kind": "train", "step": step, "loss": 1 / step}) + "\\n")
with zipfile.ZipFile("ckpt.pt", "w") as file:
    file.writestr("step", str(first + 2))
if os.environ["ORCH_ATTEMPT"] == "0":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["loads", "ignores"])
def test_a_checkpoint_that_was_only_offered_is_not_told_as_resumed(orch: Orch, project, how: str) -> None:
    job = f"script: save.py\nlauncher: exec\nargs: [{how}]\nretry: {{infra: 1}}\n"
    folder = project(save_py=SAVES, save_yaml=job)
    done = orch("submit", str(folder / "save.yaml"), "-p", "local", "--nproc-per-node", "1", "-f")
    assert done.code == 0, done.err
    first, second = orch("status", "last", "--json").json["attempts"]
    assert (first["offered"], second["offered"]) == (None, "code/ckpt.pt")
    assert second["resumed_from"] == ("code/ckpt.pt" if how == "loads" else None)
    said = "attempt 1 was offered code/ckpt.pt; nothing shows that the script loads it; its first step is 1"
    for page in (done.err, orch("why", "last").out, orch("status", "last").out):
        assert page.count(said) == (how == "ignores")


# Dies each time; what it leaves behind is said by its argument.
DIES = """
import json, os, sys
attempt = int(os.environ["ORCH_ATTEMPT"])
if sys.argv[1] == "files":
    open("state.txt", "a").write("x")
if sys.argv[1] == "beats":
    open(os.environ["ORCH_BEAT_FILE"], "w").write(json.dumps({"step": attempt + 1, "phase": "train", "time": 1.0}))
if attempt < 4:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("sign", ["files", "beats"])
def test_where_no_format_is_known_any_sign_of_life_is_progress(orch: Orch, project, sign: str) -> None:
    job = f"script: die.py\nlauncher: exec\nargs: [{sign}]\nretry: {{infra: 9}}\n"
    folder = project(die_py=DIES, die_yaml=job)
    done = orch("submit", str(folder / "die.yaml"), "-p", "local", "--nproc-per-node", "1", "-f")
    assert done.code == 0, done.err
    # Of a format that is named, only its checkpoints count.
    named = ("--set", "job.checkpoint.format=lightning")
    assert orch("submit", str(folder / "die.yaml"), "-p", "local", "--nproc-per-node", "1", "-f", *named).code == 100
    assert orch("status", "last", "--json").json["verdict"]["cause"] == "no_progress"
