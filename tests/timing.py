"""Wall time and processor time of each test: a table in a file, and the slowest tests on the screen.

The processor time is that of the test process and of the children that it waited for. Programs that leave their parent,
such as agents, supervisors and the testbed's daemons, are not in it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DEFAULT = Path("build/test-times.tsv")  # TEST_TIMES=file names another one


@dataclass(eq=False)  # pytest keeps plugins in sets
class Clock:
    """Measures the test that this process runs now; the figures travel with the report of the test's teardown."""

    begun: float = 0.0
    worked: float = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.begun, self.worked = time.monotonic(), _processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            figures = (time.monotonic() - self.begun, _processor_seconds() - self.worked)
            report.user_properties.append(("times", figures))
        return report


@dataclass(eq=False)  # pytest keeps plugins in sets
class Table:
    """Collects the figures of all test processes, writes them to the file and prints the slowest."""

    rows: list[tuple[float, float, str]] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, value in report.user_properties:
            if key == "times" and report.when == "teardown":
                wall, cpu = value
                self.rows.append((wall, cpu, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.rows) < 500:  # somebody runs a few tests by hand
            return
        path = Path(os.environ.get("TEST_TIMES") or DEFAULT)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows.sort(reverse=True)
        lines = [f"{wall:.2f}\t{cpu:.2f}\t{name}\n" for wall, cpu, name in self.rows]
        path.write_text("wall_s\tcpu_s\ttest\n" + "".join(lines), encoding="utf-8")
        wall, cpu = (sum(row[column] for row in self.rows) for column in (0, 1))
        total = f"{len(self.rows)} tests: {wall:.0f} s in all, {cpu:.0f} s of processor time"
        terminalreporter.write_line(f"{total}; all of them: {path}")
        for wall, cpu, name in self.rows[:50]:
            terminalreporter.write_line(f"{wall:7.1f} s {cpu:6.1f} s of processor  {name}")


def register(config: pytest.Config) -> None:
    """Measure in the processes that run tests, and collect in the one that talks to the terminal."""
    config.pluginmanager.register(Clock(), "orch-clock")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(), "orch-times")


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
