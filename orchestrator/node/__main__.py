"""`python node.pyz agent TASK`, or `slurm RUN` in a Slurm job: a node's agent; `launcher`: its child; `serve`: SSH;
`replay ORDER`: a single rank at a terminal.
"""

from __future__ import annotations

import sys

from orchestrator.node.system.private import hold_umask


def main() -> int:
    """Return the exit code of the agent or the launcher; what they write is their user's alone."""
    if sys.argv[1:] != ["launcher"]:  # which may be another user in its container, and decides itself
        hold_umask()
    if sys.argv[1:2] == ["agent"] and len(sys.argv) == 3:
        from orchestrator.node.agent.agent import run_agent  # noqa: PLC0415 (the launcher needs no asyncio)

        return run_agent(sys.argv[2])
    if sys.argv[1:2] == ["slurm"] and len(sys.argv) == 3:
        from orchestrator.node.agent.slurm import run_slurm_agent  # noqa: PLC0415 (only inside a Slurm job)

        return run_slurm_agent(sys.argv[2])
    if sys.argv[1:] == ["launcher"]:
        from orchestrator.node.launcher.launcher import run_launcher  # noqa: PLC0415 (the agent must not load it)

        return run_launcher()
    if sys.argv[1:] == ["serve"]:
        from orchestrator.node.server.server import serve  # noqa: PLC0415 (a machine reached over SSH needs it)

        return serve()
    if sys.argv[1:2] == ["replay"] and len(sys.argv) == 3:
        from orchestrator.node.agent.replay import replay  # noqa: PLC0415 (next to its only use)

        return replay(sys.argv[2])
    print("usage: orchestrator.node agent TASK.json | slurm RUN | launcher | serve | replay ORDER", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
