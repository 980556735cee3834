"""A run once more: its own job, profile and code, from the run directory; the shell's values from the shell again."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.load import Loaded, load
from orchestrator.snapshot import retake
from orchestrator.spec import Code
from orchestrator.store import RunDir


def load_again(run: RunDir, profile: str, sets: Iterable[str], flags: Mapping[str, Any]) -> Loaded:
    """The run's job under its own profile, or under another; SpecError or UsageError when they can't be used."""
    record = _record(run)
    code = run.path / "code"
    if not code.is_dir() or run.read("code.json") is None:
        raise UsageError(f"run {run.run_id} has lost its code folder {code}", "submit the job file instead")
    job = {**record["job"], "code": {**record["job"]["code"], "dir": str(code)}}
    with tempfile.TemporaryDirectory(prefix="orch-") as folder:
        paths = {}
        for what, document in (("job", job), ("profile", record["profile"])):
            paths[what] = Path(folder) / f"{run.run_id}.{what}.json"
            paths[what].write_text(json.dumps(document, indent=1))
        loaded = load(paths["job"], profile or paths["profile"], sets=sets, flags=flags)
    restored = loaded.job.model_copy(update={"code": Code.model_validate(record["job"]["code"])})
    profile_path = loaded.profile_path if profile else Path(record["profile_file"])
    return replace(
        loaded, job=restored, job_path=Path(record["job_file"]), profile_path=profile_path,
        code_dir=Path(record["code_dir"]),
    )  # fmt: skip


def _record(run: RunDir) -> dict[str, Any]:
    record = run.read("run.json")
    if not record or not isinstance(record.get("job"), dict) or not isinstance(record.get("profile"), dict):
        raise UsageError(f"run {run.run_id} has lost its record of what was run", "submit the job file instead")
    return record


def was_rehearsal(run: RunDir) -> bool:
    """Was it another profile's nodes and ranks on this machine?"""
    return str(_record(run).get("profile_name", "")).endswith("(rehearsal)")


def env_options(run: RunDir) -> tuple[str, ...]:
    """The --env options of the run's own submit: with their values where it gave values, else from the shell again."""
    tasks = (run.read("plan.json") or {}).get("tasks") or [{}]
    values = tasks[0].get("env") or {}
    options = []
    for option in _record(run).get("given") or []:
        name, equals, _ = option.partition("=")
        if not equals:
            options.append(name)
        elif name in values:  # a secret's value is not kept: the shell must have it
            options.append(f"{name}={values[name]}")
    return tuple(options)


def copy_code(source: RunDir, target: RunDir) -> dict[str, Any]:
    """Copy what the earlier run was sent; the facts of its snapshot, which are the copy's too."""
    listing = (source.read("code.json") or {}).get("files") or {}
    facts: dict[str, Any] = next((event for event in source.events() if event["kind"] == "snapshot"), {})
    retake(source.path / "code", target.path / "code", listing)
    shutil.copymode(source.path / "code", target.path / "code")
    return {**{key: value for key, value in facts.items() if key not in ("kind", "time")}, "listing": listing}
