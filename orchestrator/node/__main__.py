"""`python node.pyz agent TASK`, or `slurm RUN` in a Slurm job: a node's agent; `launcher`: its child; `serve`: SSH;
`job KIND RUN NUMBER START LIMIT`: the first process of another scheduler's job, and `in-job RUN ...`: an agent of it;
`replay ORDER`: a single rank at a terminal; `stacks RUN_DIR NODE RUN BOUNDARY`: where this node's ranks stand;
`profile RUN_DIR NODE RUN BOUNDARY STEPS SECONDS`: what its ranks record of their next steps;
`relay RUN_DIR NODE BOUNDARY TARGET`: streams to a port of this node, or to a rank's debugger; `adapter`: that debugger;
`fault RUN_DIR NODE FAULT SECONDS`: what a drill does to a run here;
`gpus PYTHON SECONDS`: what this machine says of its GPUs.
"""

from __future__ import annotations

import sys

from orchestrator.node.system.private import hold_umask


def main() -> int:
    """Return the exit code of the agent or the launcher; what they write is their user's alone."""
    if sys.argv[1:] != ["launcher"]:  # which may be another user in its container, and decides itself
        hold_umask()
    if sys.argv[1:2] == ["agent"] and len(sys.argv) == 3:
        from orchestrator.node.agent.agent import run_agent

        return run_agent(sys.argv[2])
    if sys.argv[1:2] in (["slurm"], ["job"], ["in-job"]):
        from orchestrator.node.agent.job import main as in_job

        return in_job(sys.argv[1], sys.argv[2:])
    if sys.argv[1:] == ["launcher"]:
        from orchestrator.node.launcher.launcher import run_launcher

        return run_launcher()
    if sys.argv[1:] == ["serve"]:
        from orchestrator.node.server.server import serve

        return serve()
    if sys.argv[1:2] == ["replay"] and len(sys.argv) == 3:
        from orchestrator.node.agent.replay import replay

        return replay(sys.argv[2])
    if sys.argv[1:2] == ["stacks"] and len(sys.argv) == 6:
        from orchestrator.node.debug.stacks import print_stacks

        return print_stacks(*sys.argv[2:])
    if sys.argv[1:2] == ["profile"] and len(sys.argv) == 8:
        from orchestrator.node.debug.profiling import print_profile

        return print_profile(*sys.argv[2:])
    if sys.argv[1:2] == ["relay"] and len(sys.argv) == 6:
        from orchestrator.node.debug.relay import relay

        return relay(*sys.argv[2:])
    if sys.argv[1:] == ["adapter"]:
        from orchestrator.node.debug.adapter import run_adapter

        return run_adapter()
    if sys.argv[1:2] == ["fault"] and len(sys.argv) == 6:
        from orchestrator.node.server.fault import inject
        from orchestrator.protocol.debugging.fault import Fault

        return inject(sys.argv[2], int(sys.argv[3]), Fault(sys.argv[4]), float(sys.argv[5]))
    if sys.argv[1:2] == ["gpus"] and len(sys.argv) == 4:
        from orchestrator.node.server.gpus import print_gpus

        return print_gpus(sys.argv[2], float(sys.argv[3]))
    verbs = (
        "agent TASK.json | slurm RUN | job ... | in-job ... | launcher | serve | replay ORDER | stacks ... | "
        "profile ... | relay ... | adapter | fault ... | gpus ..."
    )
    print(f"usage: orchestrator.node {verbs}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
