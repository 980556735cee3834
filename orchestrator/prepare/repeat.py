"""Repeats a run with its own job, profile and code. The submitting shell's variables are read again."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.protocol.events import Snapshot, of
from orchestrator.protocol.typed import to_json
from orchestrator.runs.files.code_snapshot import retake
from orchestrator.runs.store import RunDir
from orchestrator.specs.documents.loaded import Loaded
from orchestrator.specs.documents.loader import load


def check_has_values(run: RunDir) -> None:
    """Raise UsageError if the run is a trial of a search that has not chosen the trial's values yet."""
    point = run.record().point
    if point is not None and point.is_trial and not point.values:
        hint = "repeat a trial that has started, or set the values yourself: --set, or -- ARGUMENTS"
        raise UsageError(f"{run.run_id} has no values yet, because its search chooses them when the run starts", hint)


def load_again(run: RunDir, profile: str, sets: Iterable[str], flags: Mapping[str, Any]) -> Loaded:
    """Load the run's job, with the named profile or, if none is named, with the run's own profile.

    Raises SpecError or UsageError if the run's record is incomplete, or if the options don't fit the job.
    """
    record = run.record()
    files = (record.job_file, record.profile_file, record.code_dir)
    job, profile_then = record.job_document, record.profile_document
    if not isinstance(job.get("code"), Mapping) or not profile_then or None in files:
        raise UsageError(
            f"run {run.run_id} can't be repeated: the record of its job or code is missing",
            "submit the job file instead",
        )
    job_path, profile_path, code_dir = (Path(str(each)) for each in files)
    code = run.submitted_code
    if not code.is_dir() or run.read("code.json") is None:
        raise UsageError(
            f"run {run.run_id} can't be repeated: there is no code folder {code}", "submit the job file instead"
        )
    job = {**job, "code": {**job["code"], "dir": str(code)}}
    with tempfile.TemporaryDirectory(prefix="orch-") as folder:
        paths = {}
        for what, document in (("job", job), ("profile", profile_then)):
            paths[what] = Path(folder) / f"{run.run_id}.{what}.json"
            paths[what].write_text(json.dumps(document, indent=1))
        loaded = load(paths["job"], profile or paths["profile"], sets=sets, flags=flags, allow_code_dir=True)
    return replace(
        loaded, job=replace(loaded.job, code=record.job.code), job_path=job_path,
        profile_path=loaded.profile_path if profile else profile_path,
        code_dir=code_dir, notes=(),  # the record has all times in seconds, so notes on units are wrong
    )  # fmt: skip


def was_rehearsal(run: RunDir) -> bool:
    """Return whether the run was a rehearsal, which starts another profile's number of nodes and ranks on this
    machine.
    """
    return run.record().profile_name.endswith("(rehearsal)")


def env_options(run: RunDir) -> tuple[str, ...]:
    """Return the --env options with which the run was submitted: `NAME=VALUE` if the user gave a value, else `NAME`."""
    values = run.plan().first.env
    options = []
    for option in run.record().given:
        name, equals, _ = option.partition("=")
        if not equals:
            options.append(name)
        elif name in values:  # a secret's value is not stored, so the shell must have it
            options.append(f"{name}={values[name]}")
    return tuple(options)


def copy_code(source: RunDir, target: RunDir) -> dict[str, Any]:
    """Copy the code of an earlier run. Return the facts about the code that were recorded with that run, which are also
    true of the copy.
    """
    listing = source.code_files()
    facts = next((to_json(event, stamps=False) for event in of(source.events(), Snapshot)), {})
    retake(source.submitted_code, target.path / "code", listing)
    shutil.copymode(source.submitted_code, target.path / "code")
    return {**facts, "listing": listing}
