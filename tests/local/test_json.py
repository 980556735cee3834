"""The JSON of the commands, of real runs, is as `orch schema output` says. Other tests compare what they read, too.

No command makes a file of orch an output of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click import Context

from orchestrator.cli import orch as program
from tests.local.conftest import Orch
from tests.output_schema import problems

PROGRAM = """
import json, os, sys
with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
    for step in range(3):
        file.write(json.dumps({"kind": "train", "step": step, "loss": 1 / (step + 1)}) + "\\n")
with open(os.environ["ORCH_RESULT_FILE"], "w") as file:
    json.dump({"loss": 0.5, "words": sys.argv[1:]}, file)
with open(os.environ["ORCH_OUTPUT_DIR"] + "/out.txt", "w") as file:
    file.write("an output")
"""


# The commands that are not called below. None writes into a run that has ended.
NOT_CALLED = {
    "asks for a live run": ("stacks", "profile", "port", "shell"),
    "starts a run of its own": ("run", "debug", "drill"),
    "serves until it is ended": ("top", "ui", "tensorboard", "mcp"),
    "knows no run": ("nodes", "queue", "init", "schema", "completion"),
    "needs a run of several seconds, and only reads": ("metrics",),
    "removes the run": ("rm",),
}


def test_each_command_prints_what_its_schema_says(orch: Orch, project: Callable[..., Path], tmp_path: Path) -> None:
    folder = project(main_py=PROGRAM, job_yaml="script: main.py\nlauncher: exec\n")
    job, where = str(folder / "job.yaml"), ("-p", "local", "--nproc-per-node", "1")
    run, other = (orch.submit(job, *where).run_id for _ in range(2))
    sweep = orch("submit", job, *where, "--sweep", "--x=1,2", "--json").json["sweep"]
    for name in (run, other, sweep):
        assert orch("wait", name, "--json").json
    outputs = orch("outputs", run, "--json").json
    assert [each["path"] for each in outputs["files"]] == ["out.txt"]
    called = set()
    for words in (
        ("status",), ("status", run), ("status", sweep), ("why", run), ("tag", run, "+good"), ("note", run, "a note"),
        ("checkpoints", run), ("outputs", run), ("best", sweep, "--metric", "loss"), ("plot", run, "loss"),
        ("diff", run, other), ("usage",), ("usage", run), ("gc", "--dry-run"), ("profiles",), ("plan", job, *where[:2]),
        ("plan", job, "-p", "local", "-p", "local-2x2"), ("submit", job, *where, "--dry-run"), ("cancel", run),
        ("cancel", run, other), ("pull", run, "--to", str(tmp_path / "pulled")), ("pull", run, "--in-place"),
        ("bundle", run, "--output", str(tmp_path / "bundle.tar.gz")), ("doctor", "-p", "local"),
    ):  # fmt: skip
        done = orch(*words, "--json")
        assert done.json is not None, (words, done.err)
        called.add(words[0])
    for words in (("export", "torchrun", run), ("replay", run, "--rank", "0"), ("logs", run)):
        done = orch(*words)
        assert done.code == 0, (words, done.err)
        called.add(words[0])
    events = [json.loads(line) for line in orch("events", run, "--json").out.splitlines()]
    assert [problems("events", event) for event in events] == [[]] * len(events)
    assert len(events) > 5
    assert orch("outputs", run, "--json").json == outputs
    known = called | {"events", "wait"}.union(*NOT_CALLED.values())
    assert known == set(program.list_commands(Context(program)))
