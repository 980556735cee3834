"""The command line of the archive node.pyz: `python node.pyz VERB WORDS...`."""

from __future__ import annotations

import sys
from importlib import import_module

from orchestrator.node.system.private import hold_umask

# verb: (module and function, names of the arguments); the function takes texts and returns the exit code
VERBS = {
    "agent": ("agent.agent:run_agent", "TASK"),  # a node's agent
    "slurm": ("agent.slurm:run_slurm_agent", "RUN_DIR"),  # a node's agent in a Slurm job
    "starts": ("agent.spares:run_starts", "RUN_DIR LOG SRUN..."),  # the first process of a Slurm job with spares
    "job": ("agent.job:run_job", "KIND RUN_DIR NUMBER START LIMIT"),  # the first process of another scheduler's job
    "in-job": (
        "agent.job:run_agent_of_job",
        "RUN_DIR KIND NUMBER START NODE HOSTS LIMIT SLOTS",
    ),  # a node's agent in another scheduler's job
    "lay": ("server.working_folder:lay", "CODE RUN_DIR"),  # makes the working folder of a run of a job array
    "launcher": ("launcher.launcher:run_launcher", ""),  # the launcher, a child of the agent
    "serve": ("server.server:serve", ""),  # answers requests that come over SSH
    "stay": ("server.server:stay", ""),  # like serve, but as the first process of a step of a scheduler's job
    "replay": ("agent.replay:replay", "ORDER"),  # runs a single rank at a terminal
    "stacks": ("debug.stacks:print_stacks", "RUN_DIR NODE RUN BOUNDARY"),  # prints the stacks of this node's ranks
    # Lets the ranks record profiles of their next steps.
    "profile": ("debug.profiling:print_profile", "RUN_DIR NODE RUN BOUNDARY STEPS SECONDS"),
    # Forwards streams to a port of this node, or to a rank's debugger.
    "relay": ("debug.relay:relay", "RUN_DIR NODE BOUNDARY TARGET"),
    "adapter": ("debug.adapter:run_adapter", ""),  # runs debugpy's adapter for a rank
    "fault": ("server.fault:inject", "RUN_DIR NODE FAULT SECONDS"),  # kills or freezes processes, to test recovery
    "gpus": ("server.gpus:print_gpus", "PYTHON SECONDS"),  # prints the state of this machine's GPUs
}


def main() -> int:
    """Run a verb and return its exit code. Files that the verb writes are readable only by this user."""
    verb, words = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if verb != "launcher":  # a launcher may be another user in its container, and sets its own umask
        hold_umask()
    place, wanted = VERBS.get(verb, ("", ""))
    more = len(words) - len(wanted.split())
    if not place or more < 0 or (more > 0 and not wanted.endswith("...")):
        verbs = " | ".join(f"{name} {wanted}".rstrip() for name, (_, wanted) in VERBS.items())
        print(f"usage: orchestrator.node {verbs}", file=sys.stderr)
        return 2
    module, _, function = place.partition(":")
    code: int = getattr(import_module(f"orchestrator.node.{module}"), function)(*words)
    return code


if __name__ == "__main__":
    sys.exit(main())
