"""Renders the batch script for a scheduler that starts one process per job. That process (node/agent/job.py) starts all
agents. This module has no side effects.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.schedulers import SCHEDULERS, WARNING_NAMES

if TYPE_CHECKING:  # a look at runs must not wait for pydantic
    from orchestrator.backends.batch.scheduler import Array
    from orchestrator.specs.plan import LaunchPlan


@dataclass(frozen=True)
class Words:
    """The parts of a batch script that depend on the scheduler.

    number: the shell expression for the job's number. task: the shell expression for the number of an array's task,
    counted from 0. options: the lines with the options of qsub. again: the lines that ask the scheduler to start the
    job `$job` again.
    """

    kind: str
    number: str
    task: str
    options: Sequence[str]
    again: Sequence[str]


def lay_line(launch: LaunchPlan, array: Array, run: str) -> str:
    """Return the line of a batch script that creates the working folder of an array's run before the agents start.

    run: the shell expression for the run's folder.
    """
    words = (launch.commands[0][0], f"{array.folder}/node.pyz", "lay", f"{array.folder}/code")
    return f"{shlex.join(words)} {run} || exit 1"


def job_script(words: Words, launch: LaunchPlan, array: Array | None) -> str:
    """Return the batch script of a job, for one run or for each task of an array."""
    folder = SCHEDULERS[words.kind].folder
    run_dir, python = launch.tasks[0].run_dir, launch.commands[0][0]
    task = [f"task={words.task}"] if array else []
    number = f'job="{words.number}_$task"' if array else f'job="{words.number}"'
    run = shlex.quote(run_dir.rpartition(".")[0] + ".") + '"$task"' if array else shlex.quote(run_dir)
    # A batch file that does not ask for another start keeps its whole time, without a warning before its end.
    ends = launch.job.batch and launch.job.retry.timeout == 0
    limit = "-" if launch.time_limit is None or ends else str(launch.time_limit)
    return "\n".join(
        [
            "#!/bin/sh",
            *words.options,
            *task,
            number,
            f"run={run}",
            "# The scheduler does not say how often it has started the job, so the logs of earlier starts are counted.",
            "start=0",
            f'while [ -e "$run/{folder}/batch.$job.$start.log" ]; do start=$((start + 1)); done',
            f'exec >"$run/{folder}/batch.$job.$start.log" 2>&1 </dev/null',
            *([lay_line(launch, array, '"$run"')] if array else []),
            f"trap '' {' '.join(WARNING_NAMES)} # they would end the shell; node 0's agent gets them as TERM",
            f'{shlex.quote(python)} "$run/node.pyz" job {words.kind} "$run" "$job" "$start" {limit}',
            "code=$?",
            f'if [ "$code" = {EXIT_REQUEUE} ]; then',
            *(f"  {line}" for line in words.again),
            "fi",
            'exit "$code"',
            "",
        ]
    )


def as_words(options: Iterable[tuple[str, Any]]) -> list[str]:
    """Return options with their values as words of a command line. An option with an empty value is left out.

    The value True means an option without a value. A tuple means an option with several values.
    """
    words = []
    for name, value in options:
        if value:
            values = () if value is True else value if isinstance(value, tuple) else (value,)
            words += [name, *map(str, values)]
    return words


def as_comments(mark: str, words: Sequence[str]) -> list[str]:
    """Return a comment line of a batch script for each option. The scheduler reads options from these comments."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") and not word[1:].isdigit():
            lines.append(f"{mark} {word}")
        else:
            lines[-1] += f" {shlex.quote(word) if len(word.split()) > 1 else word}"
    return lines


def stays_ended(launch: LaunchPlan) -> bool:
    """Return True if the scheduler must not start the job again after a preemption, because `retry.preempted` is 0."""
    return launch.job.retry.preempted == 0
