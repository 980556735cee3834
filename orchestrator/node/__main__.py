"""`python node.pyz agent TASK`, or `slurm RUN` in a Slurm job: a node's agent; `launcher`: its child; `serve`: SSH;
`replay ORDER`: a single rank at a terminal.
"""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the agent or the launcher."""
    if sys.argv[1:2] == ["agent"] and len(sys.argv) == 3:
        from orchestrator.node.agent import run_agent  # noqa: PLC0415 (the launcher needs no asyncio)

        return run_agent(sys.argv[2])
    if sys.argv[1:2] == ["slurm"] and len(sys.argv) == 3:
        from orchestrator.node.slurm import run_slurm_agent  # noqa: PLC0415 (only inside a Slurm job)

        return run_slurm_agent(sys.argv[2])
    if sys.argv[1:] == ["launcher"]:
        from orchestrator.node.launcher import run_launcher  # noqa: PLC0415 (the agent must not load it)

        return run_launcher()
    if sys.argv[1:] == ["serve"]:
        from orchestrator.node.serve import serve  # noqa: PLC0415 (a machine reached over SSH needs it)

        return serve()
    if sys.argv[1:2] == ["replay"] and len(sys.argv) == 3:
        from orchestrator.node.replay import replay  # noqa: PLC0415 (next to its only use)

        return replay(sys.argv[2])
    print("usage: orchestrator.node agent TASK.json | slurm RUN | launcher | serve | replay ORDER", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
