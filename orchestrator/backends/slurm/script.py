"""Computes the options of sbatch for a plan, under submitit's names, and the lines of the batch script before and after
its one srun. This module has no side effects.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.batch.script import lay_line, stays_ended
from orchestrator.backends.slurm.parse import COMMENT
from orchestrator.backends.slurm.settings import settings_of
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.schedulers import BATCH_PID, SCHEDULERS, WARNING_NAMES, warning
from orchestrator.specs.sbatch_options import gpus_in

if TYPE_CHECKING:  # a look at runs must not wait for pydantic
    from orchestrator.backends.batch.scheduler import Array
    from orchestrator.specs.job import BatchFile, Job
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.specs.slurm_profile import SlurmProfile

FOLDER: Final = SCHEDULERS["slurm"].folder
ARCHIVE: Final = "submitit.pyz"  # submitit and what it imports, as one program
# An agent that fails ends the step. An agent that succeeds waits for the others, which may be saving.
# With --export=NONE srun passes no variables on, so the batch shell exports those that the agents need.
STEP_RULES: Final = ("--export=ALL", "--unbuffered", "--kill-on-bad-exit=1", "--wait=0")
# With spares, orch decides what the loss of a node means, and the next srun does not wait for the end of the last.
SPARES_RULES: Final = ("--no-kill", "--overlap")


@dataclass(frozen=True)
class InShell:
    """The shell expressions in the batch script for a run's job and its folders."""

    job: str  # without the double quotes that it needs
    run: str
    folder: str  # the folder of script and pickle
    log: str  # the job in srun's pattern for the name of a log


def in_shell(launch: LaunchPlan, array: Array | None) -> InShell:
    """Return shell expressions for the batch script: the number of the run's job, the run's folder, and the places
    of its logs. In a job array, each task evaluates them to the values of its own run.
    """
    run_dir = launch.tasks[0].run_dir
    if array is None:
        return InShell("$SLURM_JOB_ID", shlex.quote(run_dir), shlex.quote(f"{run_dir}/{FOLDER}"), "%j")
    # The array's last task has the array's own number as its job id: a command for that number concerns all tasks.
    job = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    run = shlex.quote(run_dir.rpartition(".")[0] + ".") + '"$SLURM_ARRAY_TASK_ID"'
    return InShell(job, run, shlex.quote(f"{array.folder}/{FOLDER}"), "%A_%a")


def command_of(array: Array, launch: LaunchPlan) -> tuple[str, ...]:
    """Return the command of each task of the array. It starts the agent, which gets the number of its run from
    Slurm.
    """
    python, *_ = launch.commands[0]
    runs = launch.tasks[0].run_dir.rpartition(".")[0]
    return (python, f"{array.folder}/node.pyz", "slurm", f"{runs}.%a")


def parameters(launch: LaunchPlan, array: Array | None = None) -> dict[str, Any]:
    """Return the parameters of submitit's SlurmExecutor for this plan. Each node has one task, which runs the agent."""
    settings, resources = settings_of(launch.profile), launch.job.resources
    if launch.job.batch:
        return _of_batch_file(launch, launch.job.batch, settings)
    extras = {name: value for name, value in settings.sbatch.items() if value is not False}
    cpus = cores_per_node(launch)
    mem = resources.mem or settings.mem
    gpus = settings.gpus_per_node and (resources.gpus or settings.gpus_per_node)
    minutes = None if launch.time_limit is None else max(1, -(-launch.time_limit // 60))
    name, shell = (array.sweep if array else launch.run_id), in_shell(launch, array)
    asked = {
        "job_name": name,
        "comment": COMMENT.format(name),
        "nodes": launch.nnodes + (settings.spares or 0),
        "ntasks_per_node": 1,
        "time": minutes,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "gres": settings.gres,
        "gpus_per_node": gpus,
        "cpus_per_task": cpus,
        "mem": f"{-(-mem // 2**20)}M" if mem else None,
        "constraint": settings.constraint,
        "exclude": settings.exclude,
        "wckey": None,
        "signal_delay_s": int(warning(launch.time_limit)),
        "stderr_to_stdout": True,
        "use_srun": False,  # submitit's srun would write all attempts into one log, so `step` has its own
        "setup": [
            *_setup(shell, stays=stays_ended(launch)),
            *([lay_line(launch, array, shell.run)] if array else []),
        ],
        "teardown": _teardown(shell, stays=stays_ended(launch), has_spares=bool(settings.spares)),
    }
    # Slurm itself starts a job again if its nodes have failed or it was preempted.
    again = {"no-requeue": True} if stays_ended(launch) else {"requeue": True}
    extras = {name: value for name, value in extras.items() if not (name == "requeue" and stays_ended(launch))}
    tasks = {"array": f"0-{array.count - 1}{f'%{array.parallel}' if array.parallel else ''}"} if array else {}
    survives = {"no-kill": True} if settings.spares else {}  # the job continues after the loss of a node
    return {**asked, "additional_parameters": {**again, **extras, **tasks, **survives}}


OF_THE_FILE: Final = (
    "cores", "cpu", "exclusive", "gpu", "gres", "mem", "mincpus", "no-kill", "nodes", "ntasks", "overcommit", "requeue",
    "signal", "sockets", "thread", "tres",
)  # fmt: skip
"""The prefixes of options that only the batch file sets: the same options in the profile are for other jobs."""


def _of_batch_file(launch: LaunchPlan, batch: BatchFile, settings: SlurmProfile) -> dict[str, Any]:
    """Return the parameters for a batch file that runs as it is: its own options, and the options of the profile
    that say where jobs run and that the file lacks. Nodes, tasks, cores, GPUs and memory are those of the file.
    """
    shell, stays = in_shell(launch, None), stays_ended(launch)
    names = ("partition", "account", "qos", "constraint", "exclude")
    where = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    minutes = {"time": max(1, -(-launch.time_limit // 60))} if launch.time_limit is not None else {}
    sbatch = {name: value for name, value in settings.sbatch.items() if not name.startswith(OF_THE_FILE)}
    own = dict(_pair(option) for option in batch.options)
    # submitit adds --nodes, --time and --signal if they are not given. None removes an option again.
    given = {"nodes": None, "time": None, "signal": None, **where, **minutes, **sbatch, **own}
    if "dependency" in sbatch and "dependency" in own:
        given["dependency"] = f"{sbatch['dependency']},{own['dependency']}"
    asked = {
        "job_name": launch.run_id,
        "comment": COMMENT.format(launch.run_id),
        "wckey": None,
        "stderr_to_stdout": True,
        "use_srun": False,
        "setup": _setup(shell, stays=stays),
        "teardown": _teardown(shell, stays=stays, has_spares=False),
    }
    again = {"no-requeue": True} if stays else {"requeue": True} if "requeue" in own else {}
    extras = {name: value for name, value in given.items() if value is not False and name not in ("requeue",)}
    return {**asked, "additional_parameters": {**extras, **again}}


def _pair(option: str) -> tuple[str, str | bool]:
    name, equals, value = option.removeprefix("--").partition("=")
    return name, value if equals else True


def batch_file_step(launch: LaunchPlan, batch: BatchFile) -> str:
    """Return the shell lines that start the agent for a batch file. The agent runs in the batch step, so the file's own
    srun finds all of the job's resources free.

    The batch shell passes a signal that the file requests for itself (`--signal=B:...`) on to the file's program.
    """
    python, archive, *_ = launch.commands[0]
    run, asks = launch.tasks[0].run_dir, launch.job.retry.timeout != 0
    limit = str(launch.time_limit) if asks and launch.time_limit else "-"
    words = shlex.join([python, archive, "job", "slurm", run])
    signal = next((value for name, value in map(_pair, batch.options) if name == "signal"), "")
    flags, _, requested = str(signal).rpartition(":")
    number = requested.partition("@")[0].removeprefix("SIG") if "B" in flags else ""
    pid = shlex.quote(f"{run}/{BATCH_PID}")
    to_program = [f"trap {shlex.quote(f'kill -{number} $(cat {pid})')} {shlex.quote(number)}"] if number else []
    return "\n".join(
        [
            f"rm -f {pid}  # of the start before a requeue",
            f'{words} "$SLURM_JOB_ID" "${{SLURM_RESTART_COUNT:-0}}" {limit} &',
            "agent=$!",
            f"trap : {' '.join(name for name in ('TERM', *WARNING_NAMES) if name != number)}",
            *to_program,
            "# a signal ends the wait, but not the agent",
            'while wait "$agent"; code=$?; [ "$code" -gt 128 ] && kill -0 "$agent" 2>/dev/null; do :; done',
            '(exit "$code")',
        ]
    )


def options_in(script: str) -> list[str]:
    """Return the options in the comments of a batch script, as words for sbatch's command line.

    On the command line, the options override environment variables, and options that a site's own sbatch adds.
    """
    return [shlex.split(line)[1] for line in script.splitlines() if line.startswith("#SBATCH --")]


def cores_per_node(launch: LaunchPlan) -> int | None:
    """Return the cores of each node's task: the requested number, or the GPUs' share of the cores, but at least one per
    rank.

    Return None if nothing is known.
    """
    counts = [task.nproc for task in launch.tasks if task.nproc is not None]
    ranks = max(counts) if len(counts) == launch.nnodes else 0
    return asked_of(launch.profile, launch.job, ranks).cpus_per_task


def asked_of(profile: AnyProfile, job: Job, ranks: int) -> SlurmProfile:
    """Return the settings of a profile with the numbers that sbatch gets, for a job with this number of ranks per node.

    0 ranks means that the number is unknown.
    """
    settings, resources = settings_of(profile), job.resources
    gpus = gpus_of(settings, resources.gpus)
    cores = resources.cpus or settings.cpus_per_task or max(ranks, (settings.cpus_per_gpu or 0) * (gpus or 0))
    return replace(
        settings, cpus_per_task=cores or None, gpus_per_node=gpus, mem=resources.mem or settings.mem,
        time=resources.time or settings.time,
    )  # fmt: skip


def gpus_per_node(launch: LaunchPlan) -> int | None:
    """Return the number of GPUs of each node; None if it is 0, or if only other options of sbatch set it."""
    return gpus_of(settings_of(launch.profile), launch.job.resources.gpus)


def gpus_of(settings: SlurmProfile, asked: int | None) -> int | None:
    """Return the number of GPUs to request on each node; None if it is 0.

    If the profile sets `gpus_per_node`, this is the job's number `asked`, or else the profile's. Otherwise, it is the
    number in the profile's `gres`.
    """
    return (settings.gpus_per_node and (asked or settings.gpus_per_node)) or gpus_in(settings.gres or "") or None


def leaves_cores_open(profile: AnyProfile, job: Job) -> bool:
    """Return True if GPUs are requested, and neither profile nor job sets the number of cores."""
    if job.batch:
        return False
    settings, resources = settings_of(profile), job.resources
    said = resources.cpus or settings.cpus_per_task or settings.cpus_per_gpu
    by_sbatch = any(name.startswith(("cpus", "cores", "exclusive")) for name in settings.sbatch)
    return bool(gpus_of(settings, resources.gpus)) and not said and not by_sbatch


def step(launch: LaunchPlan, array: Array | None = None) -> str:
    """Return the shell command that starts submitit's part of each task. The command is one srun with log files that no
    other start uses.

    submitit's part is an archive in the agent's folder, so the nodes need no submitit. Python imports from the archive,
    not from srun's working folder, which is the folder in which sbatch was called.

    With spares, a program of node.pyz runs this srun for each start, and adds its nodes and its log.
    """
    if launch.job.batch:
        return batch_file_step(launch, launch.job.batch)
    shell, top = in_shell(launch, array), array.folder if array else launch.tasks[0].run_dir
    python, *_ = launch.commands[0]
    rules = shlex.join(step_rules(launch))
    words = shlex.join([python, "-u", f"{top}/{ARCHIVE}", f"{top}/{FOLDER}"])
    if settings_of(launch.profile).spares:
        return f"{shlex.join([python, f'{top}/node.pyz', 'starts'])} {shell.run} {shell.log} srun {rules} {words}"
    log = f'--output={shell.run}/{FOLDER}/agent.{shell.log}."${{SLURM_RESTART_COUNT:-0}}".%t.log'
    return f"srun {rules} {log} {words}"


def step_rules(launch: LaunchPlan) -> list[str]:
    """Return the options of the srun that starts a run's agents, except those for its log."""
    cpus = cores_per_node(launch)  # since Slurm 22.05 srun does not inherit it from sbatch
    spares = SPARES_RULES if settings_of(launch.profile).spares else ()
    return [*STEP_RULES, *spares, *([f"--cpus-per-task={cpus}"] if cpus else [])]


def _setup(shell: InShell, *, stays: bool) -> list[str]:
    # The last start allowed one requeue, in case the job's `retry` has it start again.
    forbid = f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || scontrol update "jobid={shell.job}" requeue=0'
    return [
        f'exec >{shell.run}/{FOLDER}/batch."{shell.job}.${{SLURM_RESTART_COUNT:-0}}".log 2>&1',
        *([forbid] if stays else []),
        "# submitit looks for the pickle by the job's number, which was not known when the pickle was written.",
        f'task={shell.folder}/"{shell.job}"_submitted.pkl',
        f'[ -e "$task" ] || ln {shell.folder}/{"?" * 32}.pkl "$task" || [ -e "$task" ]',
    ]


def _teardown(shell: InShell, *, stays: bool, has_spares: bool) -> list[str]:
    """Return the lines of the batch script that requeue the job if an agent has requested that. The batch shell runs
    outside of containers.

    With spares, an agent may also request a start that needs no requeue, so the exit code of srun decides about a
    requeue.
    """
    word = f'-e {shell.run}/{FOLDER}/again."${{SLURM_RESTART_COUNT:-0}}"'
    asks = f'"$code" = {EXIT_REQUEUE}' if has_spares else word
    return [
        "code=$?",
        f"if [ {asks} ] && [ ! -e {shell.run}/cancel.json ]; then",
        *([f'  scontrol update "jobid={shell.job}" requeue=1'] if stays else []),
        f'  scontrol requeue "{shell.job}"',
        "fi",
        'exit "$code"',
    ]
