"""`python node.pyz agent TASK` starts a node's agent; `python node.pyz launcher` is what the agent starts."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the agent or the launcher."""
    if sys.argv[1:2] == ["agent"] and len(sys.argv) == 3:
        from orchestrator.node.agent import run_agent  # noqa: PLC0415 (the launcher needs no asyncio)

        return run_agent(sys.argv[2])
    if sys.argv[1:] == ["launcher"]:
        from orchestrator.node.launcher import run_launcher  # noqa: PLC0415 (the agent must not load it)

        return run_launcher()
    print("usage: python -m orchestrator.node agent TASK.json | launcher", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
