"""Records how much of a run each tracker has received. Lists the trackers, and the shell's variables that they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from orchestrator.errors import UsageError
from orchestrator.runs.outbox import journal_of, write_journal
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import drop_invalid_fields
from orchestrator.runs.store import RunDir

TENSORBOARD: Final = "tensorboard"
MLFLOW: Final = "mlflow"
WANDB: Final = "wandb"
NAMES: Final = (TENSORBOARD, MLFLOW, WANDB)
FOLDER: Final = "trackers"  # a folder in the run's folder, for the files that trackers write
URI: Final = "MLFLOW_TRACKING_URI"
VARIABLES: Final = (
    URI, "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
)  # fmt: skip
"""MLflow's own variables. Their values are stored in a file that only this user can read."""


@dataclass(frozen=True)
class Progress:
    """How much of a run one tracker has received."""

    is_begun: bool = False
    offset: int = 0  # offset in metrics.jsonl, after the last line that was sent
    attempt: int = 0  # attempt of the last line that was sent
    step: int = 0  # step of the last line that was sent
    size: int = 0  # bytes of the event file, if the tracker writes one
    id: str = ""  # the run's id at the tracker
    link: str = ""  # the address or command that shows the run at the tracker
    problem: str = ""  # the reason if nothing can be sent now
    is_done: bool = False  # whether everything was sent, or nothing more can be sent


_KINDS: Final = {each.name: (type(each.default),) for each in fields(Progress)}


def trackers_of(named: Sequence[str]) -> tuple[str, ...]:
    """Return the trackers that a job names in its field `track`. Names of unknown trackers are left out."""
    return tuple(name for name in NAMES if name in named)


def progress_of(run: RunDir, name: str) -> Progress:
    """Read from a tracker's journal how much of the run the tracker has received."""
    return Progress(**drop_invalid_fields(journal_of(run, name), _KINDS))


def save_progress(run: RunDir, name: str, progress: Progress) -> None:
    """Store in a tracker's journal how much of the run the tracker has received. Raises StoreError if that fails."""
    write_journal(run, name, asdict(progress), durable=False)


def tracked(run: RunDir, record: RunRecord | None = None) -> list[dict[str, Any]]:
    """Return each tracker of a run with its link and its error message, as JSON types."""
    found = [(name, progress_of(run, name)) for name in trackers_of((record or run.record()).track)]
    return [{"name": name, "link": each.link, "problem": each.problem, "done": each.is_done} for name, each in found]


# -- at submit


def hidden_values(names: Iterable[str], shell: Mapping[str, str], *, is_supervised_here: bool) -> dict[str, str]:
    """Return the shell's variables that the trackers need. Raises UsageError if a variable or a package is missing.

    With `is_supervised_here`, the supervisor runs on this machine, so the package wandb must be installed on it.
    """
    if WANDB in names and is_supervised_here and find_spec("wandb") is None:
        raise UsageError(
            "track: wandb needs the package wandb in orch's environment, and it is not installed",
            "pip install 'orchrun[wandb]'",
        )
    if MLFLOW not in names:
        return {}
    values = {name: shell[name] for name in VARIABLES if shell.get(name)}
    if URI not in values:
        raise UsageError(f"track: mlflow needs {URI}, which is not set in this shell", f"export {URI}=https://...")
    try:
        split = urlsplit(values[URI])
        is_address = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:
        is_address = False
    if not is_address or any(char.isspace() for char in values[URI]):
        hint = "if it names a folder or a database, start a server for that: mlflow server"
        raise UsageError(f"track: {URI} is not an http or https address of an MLflow server", hint)
    return values
