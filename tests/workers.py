"""Which process of `make test` runs which file, also after a test has ended its process."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class ByFile(LoadFileScheduling):
    """Hands out the tests file by file.

    A test that reaches its time limit ends its process (timeout_method in pyproject.toml). xdist 3.8 then gives all
    files of this process to other processes: also the test that ended it, which would end the next process too, and the
    files without a test left, at which a process waits for ever (pytest-dev/pytest-xdist#1371, #1378).
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Give what a process leaves undone to others, and return the test that ended the process."""
        files = self.assigned_work[node]
        left = [(tests, name) for tests in files.values() for name, is_done in tests.items() if not is_done]
        ended = None
        if left:
            tests, ended = left[0]
            tests[ended] = True
        self.assigned_work[node] = {file: tests for file, tests in files.items() if not all(tests.values())}
        super().remove_node(node)
        return ended

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process a second test if it has only one: it begins a test when it knows the next (#1327)."""
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None
