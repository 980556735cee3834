"""A program that runs orch's commands, each in a fork of its own: a hundred of them take seconds, as all is imported.

An order is a line of JSON on the standard input: the arguments, the state folder, and the file for what is printed.
The answer is the exit code, or null for a command that was killed after PATIENCE seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

MODULES = (
    "orchestrator.cli", "orchestrator.cli.commands.lifecycle.status", "orchestrator.operations.runs",
    "orchestrator.operations.bundle", "orchestrator.operations.pull", "orchestrator.operations.removal",
    "orchestrator.backends.agents.backend", "orchestrator.web.export", "orchestrator.views.reader",
    "orchestrator.cli.render.runs",
)  # fmt: skip


def main() -> None:
    from orchestrator.supervisor import background

    background.start_supervisor = lambda *_, **__: None  # type: ignore[assignment]  # the test reconciles runs itself
    for name in MODULES:
        import_module(name)
    import_module("orchestrator.operations.runs").CANCEL_MARGIN = 0.2
    for line in sys.stdin:
        print(json.dumps(_in_fork(json.loads(line))), flush=True)


def _in_fork(order: dict[str, Any]) -> int | None:
    child = os.fork()
    if child == 0:
        _run(order)
    watched = os.pidfd_open(child)
    ready, _, _ = select.select([watched], [], [], PATIENCE)
    os.close(watched)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ready else None


def _run(order: dict[str, Any]) -> None:
    """Run one command; does not return."""
    os.environ |= {"ORCH_HOME": order["home"], "NO_COLOR": "1", "ORCH_DEBUG": "1"}
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    code = 99
    try:
        code = _code_of(order["argv"], order["home"])
    except BaseException:  # noqa: BLE001 (that is what is looked for)
        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _code_of(argv: list[str], home: str) -> int:
    from orchestrator.cli import main as orch
    from orchestrator.errors import OrchError
    from orchestrator.runs.store import RunDir
    from orchestrator.supervisor.reconcile import reconcile

    if argv[0] == "reconcile":
        try:
            reconcile(Path(home), RunDir(Path(home) / "runs" / argv[1]))
        except (OrchError, OSError) as error:  # the supervisor says so in its log, and tries again
            print(error)
        return 0
    sys.argv = ["orch", *argv]
    try:
        orch()
    except SystemExit as ended:
        return int(ended.code or 0)


if __name__ == "__main__":
    main()
