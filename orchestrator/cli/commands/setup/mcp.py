"""orch mcp: serve runs to a coding agent, by the Model Context Protocol."""

from __future__ import annotations

import signal
import sys

import click

from orchestrator.cli.group import orch, say


@orch.command(epilog="Example: orch mcp --allow-actions")
@click.option("--allow-actions", is_flag=True, help="Also let the agent submit and cancel runs.")
def mcp(allow_actions: bool) -> int:
    """Serve runs to a coding agent over stdin and stdout (MCP).

    The agent starts this command itself: docs/agents.md. Without --allow-actions, it can only read. Needs
    pip install 'orchrun[mcp]'.
    """
    from orchestrator.mcp.server import check_package, serve

    check_package()
    if sys.stdin.isatty():
        say("a coding agent should start this command, and talk to it over stdin and stdout; Ctrl-C ends it")
    # KeyboardInterrupt would not end the thread that reads stdin, so Ctrl-C ends the process directly
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(allow_actions=allow_actions)
    return 0
