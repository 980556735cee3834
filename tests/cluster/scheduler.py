"""alice at work with a scheduler, and her runs: what the tests of Slurm and of Grid Engine share."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.cluster.control import Control
from tests.patience import PATIENCE
from tests.result import Result
from tests.testbed.machine import wait_until

FOLDER, ORCH = "/shared/alice", "/shared/alice-orch"
# Rank 0 saves every fourth step, and where it is told to stop; a start goes on from the newest step.
COUNT = """
import os, signal, sys, time
folder, rank = os.environ["ORCH_CHECKPOINT_DIR"], os.environ["RANK"]
os.makedirs(folder, exist_ok=True)
step = max([int(name[5:]) for name in os.listdir(folder)], default=0)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
print("attempt", os.environ["ORCH_ATTEMPT"], "from step", step, "GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
sys.stdout.flush()
while step < int(sys.argv[1]):
    time.sleep(0.25)
    step += 1
    if rank == "0" and (step % 4 == 0 or stop):
        os.makedirs(f"{folder}/step_{step:08}", exist_ok=True)
        open(f"{folder}/step_{step:08}/COMMIT", "w").close()
    if stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm and orch both send it
        sys.exit(95)
print("done", flush=True)
"""


@dataclass(frozen=True)
class Person:
    """alice, at work on ctl."""

    testbed: Control
    queue: ClassVar[tuple[str, ...]]  # the command that prints nothing if the scheduler has no job of hers

    def orch(self, *args: str, **env: str) -> Result:
        return self.testbed.orch(*args, timeout=2 * PATIENCE, ORCH_HOME=ORCH, **env)

    def write(self, name: str, text: str) -> str:
        path = f"{FOLDER}/{name}"
        self.testbed.output("ctl", "bash", "-c", f"mkdir -p {FOLDER} && cat >{shlex.quote(path)}", stdin=text)
        return path

    def counting(self, steps: int, profile: str, *options: str, job: str = "") -> str:
        """Submit a job that counts this far, four steps a second; return the run's id."""
        self.write("count.py", COUNT)
        text = f"script: count.py\nargs: [{steps}]\nlauncher: exec\nlimits: {{grace: 10s}}\n{job}"
        named = self.write("count.yaml", text)
        done = self.orch("submit", named, "-p", self.write("p.yaml", profile), "--json", *options)
        assert done.code == 0, done.err
        return str(done.json["run_id"])

    def refused(self, profile: str, *options: str, **env: str) -> str:
        """Return what a submit that the scheduler does not take says on stderr, in two lines."""
        named = self.write("hello.yaml", "command: [hostname]\n")
        done = self.orch("submit", named, "-p", self.write("p.yaml", profile), *options, **env)
        assert (done.code, done.out) == (1, ""), done.err
        assert len(done.err.splitlines()) == 2, done.err
        assert self.testbed.output("ctl", *self.queue) == ""
        return done.err


@dataclass(frozen=True)
class Started:
    """A run of hers."""

    user: Person
    run_id: str

    @property
    def path(self) -> str:
        return f"{ORCH}/runs/{self.run_id}"

    def text(self, name: str) -> str:
        """Return a file of the run directory; empty if it is not there."""
        path = self.user.testbed.file("ctl", f"{self.path}/{name}")
        return path.read_text() if path.exists() else ""

    def wait_for(self, words: str, name: str = "nodes/0/attempt_0/rank_0.log") -> None:
        wait_until(lambda: words in self.text(name), f"'{words}' in {name} of {self.run_id}")

    def wait_for_checkpoint(self) -> None:
        folder = self.user.testbed.file("ctl", f"{self.path}/checkpoints")
        wait_until(lambda: list(folder.glob("step_*/COMMIT")), f"a checkpoint of {self.run_id}")

    def status(self) -> dict[str, Any]:
        return dict(self.user.orch("status", self.run_id, "--json").json)

    def end(self) -> dict[str, Any]:
        """Wait for the verdict, and return the whole status."""
        done = self.user.orch("wait", self.run_id)
        assert done.code in (0, 100, 103), done.err
        return self.status()

    def events(self, kind: str) -> list[dict[str, Any]]:
        names = ["events.jsonl", *(f"nodes/{node}/events.jsonl" for node in range(3))]
        lines = [json.loads(line) for name in names for line in self.text(name).splitlines()]
        return [event for event in lines if event["kind"] == kind]
