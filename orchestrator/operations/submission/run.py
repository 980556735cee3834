"""orch run: turns a launch line into a job, without a job file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.node.launcher.rank.argv import is_python
from orchestrator.operations.submission.launch_line import Pasted, job_of, read_words
from orchestrator.operations.submission.launcher_files import LauncherFiles
from orchestrator.prepare.interpreter import of_conda
from orchestrator.specs.documents.loader import document_of
from orchestrator.specs.documents.yaml_source import Document
from orchestrator.specs.here import text_of
from orchestrator.specs.spawning import needs_variables

CALLED: Final = "command line"


@dataclass(frozen=True)
class Typed:
    """The job of a launch line, its settings for the profile, and notes on parts that were not converted."""

    job: Document
    nodes: int | None
    nproc_per_node: int | str | None
    python: str | None
    program: str  # the launcher or interpreter as it was typed; empty if there is none
    names_launcher: bool  # whether torchrun, srun or another launcher starts the ranks
    notes: tuple[str, ...]


def read_line(words: Sequence[str], cwd: Path) -> Typed:
    """Parse the words of `orch run -- WORDS`. Raises UsageError if they start no program.

    The code folder is the current folder or, for a script outside of it, the script's own folder.
    """
    pasted = read_words(words, LauncherFiles(cwd, os.environ))
    python = of_conda(pasted.conda, os.environ) if pasted.conda else ""
    folder, fields = _placed(job_of(pasted), cwd)
    if _runs_alone(pasted, cwd):
        fields["rank_variables"] = "several"
    return Typed(
        job=document_of(fields, folder, CALLED),
        nodes=pasted.nodes,
        nproc_per_node=None if pasted.nproc_is_default else pasted.nproc,
        python=os.path.normpath(cwd / pasted.python) if pasted.python else None,
        program=python or (os.path.normpath(cwd / pasted.program) if "/" in pasted.program else pasted.program),
        names_launcher=bool(pasted.launcher) or pasted.slurm is not None,
        notes=_notes(pasted, python),
    )


def _runs_alone(pasted: Pasted, cwd: Path) -> bool:
    """Return whether the line starts a Python program without a launcher, and the program's own file reads no variable
    of a launcher without a default.
    """
    if pasted.launcher or pasted.slurm is not None:
        return False
    if pasted.kind == "command":
        return is_python(pasted.target) and not needs_variables(" ".join(pasted.args).encode())
    script = pasted.target if pasted.kind == "script" else f"{pasted.target.replace('.', '/')}.py"
    return not needs_variables(text_of(cwd / script))


def _placed(fields: dict[str, Any], cwd: Path) -> tuple[Path, dict[str, Any]]:
    """Return the code folder, and the job's fields with the script's path relative to that folder."""
    script = fields.get("script")
    if script is None or not os.path.isfile(cwd / script):
        return cwd, fields  # the job's own checks report a missing script
    path = Path(os.path.normpath(cwd / script))
    folder = cwd if path.is_relative_to(cwd) else path.parent
    return folder, {**fields, "script": str(path.relative_to(folder))}


def _notes(pasted: Pasted, python: str) -> tuple[str, ...]:
    notes = list(pasted.notes)
    if pasted.conda:
        where = "on other machines" if python else f"the environment {pasted.conda} was not found here, so"
        remedy = "set `python` in the profile to that environment's interpreter"
        notes.append(f"'{pasted.conda_by} run' was left out: {where} {remedy}")
    if pasted.hosts:
        hosts = " ".join(f"--host {host}" for host in pasted.hosts[:8])
        notes.append(f"the hosts are those of the profile; orch init {hosts} NAME writes one with the hostfile's")
    if pasted.slurm is not None:
        notes.append("of srun's options only the nodes and tasks were taken; orch init NAME srun ... keeps the others")
    return tuple(dict.fromkeys(notes))
