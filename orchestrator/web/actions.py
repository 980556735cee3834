"""The actions of the web page: cancel a run, repeat it, copy its results to a folder, change its tags or note."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from orchestrator.errors import UsageError
from orchestrator.runs.labels import change_tags, labels_of, set_note
from orchestrator.runs.store import find_run


def cancel(root: Path, name: str) -> dict[str, Any]:
    """Cancel a run. Return a sentence on the result, which names the processes that are left on the run's machines."""
    from orchestrator.operations import runs as operations

    done = operations.cancel(root, find_run(root, name, newest=False), now=False)
    left = [f"{each} on {proof.host}" for proof in done.proofs for each in proof.survivors]
    away = [proof.host for proof in done.proofs if proof.is_unreachable]
    said = done.said
    if left or away:
        said += f"; still there: {', '.join([*left, *(f'{host} is out of reach' for host in away)])}"
    return {"said": said}


def repeat(root: Path, name: str) -> dict[str, Any]:
    """Submit a run again with the same job, profile and code."""
    from orchestrator.operations.submission import delegate, submit
    from orchestrator.prepare.prepare import Request, prepare

    run = find_run(root, name, newest=False)
    prepared = prepare(root, Request("", "", (), {}, (), None, False, True, run.run_id, None, False, ()))
    if prepared.is_delegated:
        pointer = delegate.hand_over(root, prepared)
        return {"said": f"submitted {pointer.run_id}, which {pointer.host} looks after", "id": None}
    again = submit.submit(root, prepared)
    return {"said": f"submitted {again.run_id}", "id": again.run_id}


def pull(root: Path, name: str, to: str) -> dict[str, Any]:
    """Copy a run's logs, results, outputs and newest checkpoint to a folder of this machine."""
    from orchestrator.operations.pull import pull as collect

    target = _folder(to)
    pulled = collect(find_run(root, name, newest=False), target)
    return {"said": f"copied {len(pulled.files)} files to {target}"}


def label(root: Path, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Change a run's tags (`add`, `remove`) or its note (`note`). Return its present tags and note."""
    run = find_run(root, name, newest=False)
    add, remove, note = given.get("add", []), given.get("remove", []), given.get("note")
    if not _are_words(add) or not _are_words(remove) or not isinstance(note, str | None):
        raise UsageError("add and remove must be lists of words, and note must be text")
    labels = labels_of(run)
    if add or remove:
        labels = change_tags(run, add, remove)
    if note is not None:
        labels = set_note(run, note)
    return labels.to_json()


def _are_words(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _folder(to: str) -> Path:
    """Return the folder at a path. Raises UsageError if the text can't be a path."""
    try:
        to.encode()
    except UnicodeEncodeError:
        raise UsageError("the folder's name contains an invalid character", "type the name again") from None
    try:
        target = Path() if "\0" in to else Path(to).expanduser()
    except RuntimeError:
        user = to.partition("/")[0]
        raise UsageError(f"the folder begins with {user}: there is no such user here", "e.g. ~/results/RUN") from None
    if not target.is_absolute():
        raise UsageError("the folder has to be an absolute path, or one that begins with ~", "e.g. ~/results/RUN")
    return target
