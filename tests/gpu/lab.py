"""One check in a process of its own, `python -m tests.gpu MODULE:FUNCTION FOLDER [--cpu]`, and what checks share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.checks import CHECKS

PROGRAMS = Path(__file__).with_name("programs")
ORCH = (sys.executable, "-c", "from orchestrator.cli import main; main()")


class NotHere(Exception):  # noqa: N818 (no error: this machine can't show it)
    """This machine has not what the check needs."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    folder: Path
    status: Mapping[str, Any]

    def log(self, rank: int = 0, node: int = 0, attempt: int = 0) -> str:
        """Return what a rank printed."""
        return (self.folder / f"nodes/{node}/attempt_{attempt}/rank_{rank}.log").read_text(errors="replace")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return all nodes' events of a kind."""
        paths = [self.folder / "events.jsonl", *self.folder.glob("nodes/*/events.jsonl")]
        lines = [
            line for path in paths if path.exists() for line in path.read_text().splitlines() if line.endswith("}")
        ]
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def losses(self) -> dict[int, float]:
        """Return the last loss that was told of each step."""
        rows = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}


@dataclass(frozen=True)
class Lab:
    """Where a check works, and on what: the first GPU, or in a rehearsal the CPU."""

    folder: Path
    cuda: bool = True

    @property
    def device(self) -> str:
        """The device in torch's words."""
        return "cuda" if self.cuda else "cpu"

    def of(self, full: int, rehearsal: int) -> int:
        """Return a size: that of a GPU, or that of a rehearsal."""
        return full if self.cuda else rehearsal

    def orch(self, *argv: str, timeout: float = 100, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line on this check's own state folder."""
        return subprocess.run(
            [*ORCH, *argv], env={**os.environ, "ORCH_HOME": str(self.folder / "home"), **environment}, text=True,
            cwd=self.folder, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def profile(self, nproc: int = 1, extra: str = "", *, leased: bool = False) -> str:
        """Write a profile of this machine, and return its path.

        Checks share a card with one another, which would wait for it, or refuse it for what computes there.
        """
        path = self.folder / f"here-{nproc}{'-leased' * leased}.yaml"
        path.write_text(f"kind: local\nnproc_per_node: {nproc}\nleases: {str(leased).lower()}\n{extra}")
        return str(path)

    def job(self, name: str, text: str) -> str:
        """Write a job beside copies of the programs that it may name, and return its path."""
        for program in PROGRAMS.glob("*.py"):
            (self.folder / program.name).write_text(program.read_text())
        (self.folder / "jobs_gpt.py").write_text((PROGRAMS.parents[2] / "jobs" / "gpt.py").read_text())
        (self.folder / f"{name}.yaml").write_text(text)
        return str(self.folder / f"{name}.yaml")

    def submit(self, job: str, profile: str, *options: str, **environment: str) -> Ended:
        """Submit a job and follow it to its end, whichever it is."""
        done = self.orch("submit", job, "-p", profile, "--follow", "--json", *options, **environment)
        assert done.stdout.strip(), f"orch submit: {done.returncode}: {done.stderr}"
        status = json.loads(done.stdout)
        return Ended(Path(status["folder"]), status)


def succeeded(ended: Ended) -> Ended:
    """Assert that a run succeeded."""
    verdict = ended.status["verdict"] or {}
    assert ended.status["state"] == "succeeded", f"{ended.status['state']}: {verdict.get('reason')}"
    return ended


@contextlib.contextmanager
def environ(**variables: str) -> Iterator[None]:
    """Set environment variables of this process within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def make(check: Callable[[Lab], dict[str, Any]], lab: Lab) -> dict[str, Any]:
    """Make one check; what came of it, for the process that started this one."""
    try:
        return {"outcome": "passed", "values": check(lab), "said": ""}
    except NotHere as reason:
        return {"outcome": "not here", "values": {}, "said": str(reason)}
    except Exception as error:  # noqa: BLE001 (whatever it is, the check has failed, and its text says how)
        traceback.print_exc()
        return {"outcome": "failed", "values": {}, "said": " ".join(f"{type(error).__name__}: {error}".split())[:600]}


def main(argv: Sequence[str]) -> int:
    """See the module."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("over its limit"))
    where, folder, *flags = argv
    check = next((check for check in CHECKS if check.where == where), None)
    function = check.function() if check else _by_path(where)
    lab = Lab(Path(folder), cuda="--cpu" not in flags)
    try:
        told = make(function, lab)
        (lab.folder / "result.json").write_text(json.dumps(told))
    finally:
        if (lab.folder / "home").exists():
            lab.orch("cancel", "--all", "--now", timeout=20)
    return 0


def _by_path(where: str) -> Callable[[Lab], dict[str, Any]]:
    import importlib

    module, _, name = where.partition(":")
    function: Callable[[Lab], dict[str, Any]] = getattr(importlib.import_module(module), name)
    return function
