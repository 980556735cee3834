"""What sbatch is asked for: a plan's parameters in submitit's words, and the lines around its one srun. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # who only looks at runs must not wait for pydantic
    from orchestrator.plan import LaunchPlan

FOLDER: Final = "slurm"  # of the run directory: script, pickle, the logs of batch shell and agents
WARN_SECONDS: Final = 90  # how long before the time limit the ranks are told to stop
LEAST_WARNING: Final = 10
# One failing agent ends the step; one that has ended well waits for the others, who may be saving.
STEP_RULES: Final = ("--unbuffered", "--kill-on-bad-exit=1", "--wait=0")


def parameters(launch: LaunchPlan) -> dict[str, Any]:
    """The parameters of submitit's SlurmExecutor for this plan: one task a node, in which its agent runs."""
    profile, resources = launch.profile, launch.job["resources"]
    extras = {name: value for name, value in profile["sbatch"].items() if value is not False}
    cpus = cores_per_node(launch)
    mem = resources["mem"] or profile["mem"]
    gpus = profile["gpus_per_node"] and (resources["gpus"] or profile["gpus_per_node"])
    minutes = None if launch.time_limit is None else max(1, -(-launch.time_limit // 60))
    asked = {
        "job_name": launch.run_id,
        "comment": f"orch {launch.run_id}",
        "nodes": launch.nnodes,
        "ntasks_per_node": 1,
        "time": minutes,
        "partition": profile["partition"],
        "account": profile["account"],
        "qos": profile["qos"],
        "gres": profile["gres"],
        "gpus_per_node": gpus,
        "cpus_per_task": cpus,
        "mem": f"{-(-mem // 2**20)}M" if mem else None,
        "constraint": profile["constraint"],
        "exclude": profile["exclude"],
        "wckey": None,
        "signal_delay_s": warning(launch.time_limit),
        "stderr_to_stdout": True,
        "use_srun": False,  # its own line would write all attempts into one log; `step` is the srun
        "setup": _setup(launch),
        "teardown": _teardown(launch),
    }
    # A job that its nodes have failed, or that gave way to another, is started again by Slurm itself.
    return {**asked, "additional_parameters": {"requeue": True, **extras}}


def cores_per_node(launch: LaunchPlan) -> int | None:
    """The cores that each node's agent asks for; one a rank where nobody says it, None where nobody knows."""
    asked = launch.job["resources"]["cpus"] or launch.profile["cpus_per_task"]
    counts = [task.nproc for task in launch.tasks if task.nproc is not None]
    return asked or (max(counts) if len(counts) == launch.nnodes else None)


def warning(time_limit: int | None) -> int:
    """Seconds before the limit at which the ranks are told; less where the limit itself is short.

    Slurm looks at its clocks every 30 s and tells up to 60 s early.
    """
    return WARN_SECONDS if time_limit is None else max(LEAST_WARNING, min(WARN_SECONDS, time_limit // 4))


def step(launch: LaunchPlan, python: str) -> str:
    """The shell words in front of `-m submitit...`: one srun over all nodes, whose logs no other start writes to."""
    cpus = cores_per_node(launch)  # srun does not take it over from sbatch since 22.05
    rules = [*STEP_RULES, *([f"--cpus-per-task={cpus}"] if cpus else [])]
    log = f'--output={_in_shell(launch, "agent.%j.")}"${{SLURM_RESTART_COUNT:-0}}".%t.log'
    return f"srun {shlex.join(rules)} {log} {shlex.quote(python)}"


def _setup(launch: LaunchPlan) -> list[str]:
    log = f'{_in_shell(launch, "batch.")}"$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}".log'
    folder = _in_shell(launch)
    return [
        f"exec >{log} 2>&1",
        "# Where the submit was killed after sbatch had answered, its pickle still lacks the job's number.",
        f'task={folder}/"$SLURM_JOB_ID"_submitted.pkl',
        f'[ -e "$task" ] || ln {folder}/*.pkl "$task" || [ -e "$task" ]',
    ]


def _teardown(launch: LaunchPlan) -> list[str]:
    """Ask for another start where the agents have left word that they want one; here, because here is no container."""
    asked = f'{_in_shell(launch, "again.")}"${{SLURM_RESTART_COUNT:-0}}"'
    return [
        "code=$?",
        f"if [ -e {asked} ] && [ ! -e {shlex.quote(launch.tasks[0].run_dir)}/cancel.json ]; then",
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]


def _in_shell(launch: LaunchPlan, name: str = "") -> str:
    path = f"{launch.tasks[0].run_dir}/{FOLDER}"
    return shlex.quote(f"{path}/{name}" if name else path)
