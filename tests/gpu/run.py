"""Make every check of GPU support that this machine can make: `make gpu`, or `python tests/gpu/run.py`.

Each check is a process with a limit of its own. Its result is written before the next begins, so that a run that is
cut off still tells; the table comes last. Exit code: 0 where all that must pass has, 1 else, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.checks import CHECKS, CHECKS_PART, SPEED_PART, Check  # noqa: E402

LANES = 3
GRACE_SECONDS = 8.0  # for a check that is over its limit to end its runs
REHEARSAL = 4.0  # times its limit a check may take on a CPU, beside whatever else runs there
LAST_LINES = 12


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    LATE = "over its limit"
    NOT_BEGUN = "not begun"  # no time was left, or what it builds on has failed
    NOT_HERE = "not here"  # this machine has not what it needs


@dataclass(frozen=True)
class Result:
    """What came of one check."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    values: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


def main(arguments: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """See the module; `checks` is for this program's own tests."""
    options = parse(arguments)
    wanted = [
        check
        for check in checks
        if (not options.only or check.name in options.only) and options.part in ("all", check.part)
    ]
    if options.list:
        for check in wanted:
            print(f"{check.name:4} {check.limit:4d} s  {'must' if check.must else 'told':4}  {check.asks}")
        print(f"{len(wanted)} checks, at most {whole_limit(wanted):.0f} s in {LANES} lanes")
        return 0
    if unknown := set(options.only) - {check.name for check in checks}:
        print(f"there is no check {', '.join(sorted(unknown))}: --list names them", file=sys.stderr)
        return 2
    run = Run(options.out, time.monotonic() + options.limit, install_wheels(options.out), cpu=options.cpu)
    found = run.machine()
    print(found.get("words") or f"torch can't be used here: {found['problem']}", flush=True)
    if not options.cpu and not found["gpus"]:
        print(f"no GPU that torch can use: {found['problem']}; --cpu rehearses the checks on the CPU", file=sys.stderr)
        return 2
    results = run.make(wanted, found["gpus"])
    print("\n" + table(wanted, results))
    return 0 if all_well(wanted, results) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; argparse itself leaves with code 2 on a wrong one."""
    parser = argparse.ArgumentParser(prog="python tests/gpu/run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("only", nargs="*", metavar="CHECK", help="only these, such as T1 S4")
    parser.add_argument("--list", action="store_true", help="name every check with its limit, and make none")
    parser.add_argument("--part", choices=("all", CHECKS_PART, SPEED_PART), default="all")
    parser.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="results.jsonl and logs (default: a new folder)"
    )
    parser.add_argument("--limit", type=float, default=570, metavar="S", help="seconds for all of it (default 570)")
    parser.add_argument("--cpu", action="store_true", help="rehearse what a CPU can, in small sizes")
    options = parser.parse_args(arguments)
    if not options.list:
        options.out = (options.out or Path(tempfile.mkdtemp(prefix="orch-gpu-"))).absolute()
        options.out.mkdir(parents=True, exist_ok=True)
    return options


def install_wheels(out: Path) -> dict[str, str]:
    """Unpack what .whl/ carries for a machine without a network; returns the environment in which checks run."""
    paths = [str(ROOT)]
    if wheels := sorted(map(str, ROOT.glob(".whl/*.whl"))):
        site = out / "site"
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*argv, "--upgrade", *wheels], check=True)
        paths.append(str(site))
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *([before] if before else [])]), "NO_COLOR": "1"}


class Run:
    """One run of the checks, which writes down each result at once."""

    def __init__(self, out: Path, deadline: float, environment: Mapping[str, str], *, cpu: bool) -> None:
        self.out, self.deadline, self.environment, self.cpu = out, deadline, environment, cpu
        self.results: dict[str, Result] = {}
        self._writing = threading.Lock()

    def machine(self) -> dict[str, Any]:
        """Return what torch finds here, asked in a process of its own: `gpus`, `words`, `problem`."""
        argv = [sys.executable, "-m", "tests.gpu.facts"]
        done = subprocess.run(argv, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        return json.loads(lines[-1]) if done.returncode == 0 else {"gpus": 0, "problem": (lines or ["?"])[-1]}

    def make(self, wanted: Sequence[Check], gpus: int) -> dict[str, Result]:
        """Make the checks, in lanes, and those of speed one after the other when all others have ended."""
        with ThreadPoolExecutor(LANES) as pool:
            list(
                pool.map(
                    lambda check: self.check(check, gpus), [c for c in wanted if c.part == CHECKS_PART and not c.after]
                )
            )
        for check in wanted:
            if check.part == SPEED_PART or check.after:
                self.check(check, gpus)
        return self.results

    def check(self, check: Check, gpus: int) -> None:
        """Make one check, and write down what came of it."""
        result = self._obstacle(check, gpus) or self._make(check)
        with self._writing:
            self.results[check.name] = result
            with open(self.out / "results.jsonl", "a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            print(f"{check.name:4} {result.seconds:6.1f} s  {result.outcome}  {shown(result)}", flush=True)

    def _obstacle(self, check: Check, gpus: int) -> Result | None:
        before = self.results.get(check.after)
        if self.cpu and not check.on_cpu:
            return Result(check.name, Outcome.NOT_HERE, said="it needs a GPU")
        if not self.cpu and gpus < check.gpus:
            return Result(check.name, Outcome.NOT_HERE, said=f"it needs {check.gpus} GPUs")
        if before and before.outcome is not Outcome.PASSED:
            return Result(check.name, Outcome.NOT_BEGUN, said=f"{check.after} has not passed")
        if self.deadline - time.monotonic() < min(10, check.limit):
            return Result(check.name, Outcome.NOT_BEGUN, said="no time was left")
        return None

    def _make(self, check: Check) -> Result:
        folder = self.out / check.name
        folder.mkdir(exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        limit = min(check.limit * (REHEARSAL if self.cpu else 1.0), self.deadline - time.monotonic())
        argv = [sys.executable, "-m", "tests.gpu", check.where, str(folder), *(["--cpu"] if self.cpu else [])]
        begun = time.monotonic()
        with open(folder / "output.txt", "wb") as output:
            process = subprocess.Popen(
                argv, env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            is_late = not ended_within(process, limit)
        seconds = round(time.monotonic() - begun, 1)
        if is_late:
            return Result(check.name, Outcome.LATE, seconds, said=f"{limit:.0f} s; {last_words(folder)}")
        try:
            told = json.loads((folder / "result.json").read_text())
        except (OSError, ValueError):
            return Result(
                check.name, Outcome.FAILED, seconds, said=f"ended with {process.returncode}; {last_words(folder)}"
            )
        return Result(check.name, Outcome(told["outcome"]), seconds, told["values"], told["said"])


def ended_within(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for a check; one that is over its limit is asked to end its runs, then killed with all of its session."""
    try:
        process.wait(limit)
        return True
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False


def last_words(folder: Path) -> str:
    """Return the last lines that a check printed, in one."""
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())


def whole_limit(checks: Iterable[Check]) -> float:
    """Return how long these take at most: checks in lanes, those of speed alone."""
    lanes = [0.0] * LANES
    for check in checks:
        if check.part == CHECKS_PART:
            lanes[lanes.index(min(lanes))] += check.limit
    return max(lanes) + sum(check.limit for check in checks if check.part == SPEED_PART)


def all_well(checks: Iterable[Check], results: Mapping[str, Result]) -> bool:
    """Has all that must pass passed: what this machine can't show apart, and findings that are known?"""
    fine = (Outcome.PASSED, Outcome.NOT_HERE)
    return all(results[check.name].outcome in fine or check.known or not check.must for check in checks)


def shown(result: Result) -> str:
    """Return values and words of a result in one line."""
    values = ", ".join(f"{name} {value}" for name, value in result.values.items())
    return "; ".join(part for part in (values, result.said) if part)


def table(checks: Sequence[Check], results: Mapping[str, Result]) -> str:
    """Return the results as a table in Markdown, as bench/README.md keeps it."""
    lines = ["| check | asks | outcome | took | values |", "|---|---|---|---|---|"]
    for check in checks:
        result = results[check.name]
        mark = f" (known: {check.known})" if check.known else "" if check.must else " (told only)"
        if check.known and result.outcome is Outcome.PASSED:
            mark += ": it passes now, take the mark away"
        words = shown(result).replace("|", "\\|")
        lines.append(f"| {check.name} | {check.asks} | {result.outcome}{mark} | {result.seconds:.0f} s | {words} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
