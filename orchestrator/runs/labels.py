"""The tags and the note that the user gives to a run. They are kept in the run's folder, in labels.json."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StoreError, UsageError, is_printable
from orchestrator.protocol.files import locked
from orchestrator.protocol.reading import read_part
from orchestrator.runs.state import drop_invalid_fields
from orchestrator.runs.store import RunDir, append_line, check_own

FILE: Final = "labels.json"
LOCK: Final = "labels.lock"
CHANGES: Final = "labelled"  # a file in the state folder; each change of a run's labels appends the run's id
MOST_TAGS: Final = 32
MOST_OF_A_TAG: Final = 40  # characters
MOST_OF_A_NOTE: Final = 10_000
_APART: Final = frozenset("\"',+")  # characters that can't be part of a tag, because they have a meaning in a filter


@dataclass(frozen=True)
class Labels:
    """A run's tags, in the order in which they were added, and its note."""

    tags: tuple[str, ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the labels as JSON types."""
        return {"tags": list(self.tags), "note": self.note}

    @staticmethod
    def from_json(data: object) -> Labels:
        """Parse the labels that `to_json` wrote. Tags and notes that are damaged or too long are dropped."""
        known = drop_invalid_fields(data, {"tags": (list,), "note": (str,)})
        tags = (tag for tag in known.get("tags", ()) if isinstance(tag, str) and why_no_tag(tag) is None)
        note = known.get("note", "")
        return Labels(tuple(dict.fromkeys(tags))[:MOST_TAGS], note if why_no_note(note) is None else "")


NO_LABELS: Final = Labels()


def labels_of(run: RunDir) -> Labels:
    """Return a run's labels. They are empty if the file is missing or can't be read."""
    try:
        return Labels.from_json(run.read(FILE))
    except StoreError:
        return Labels()


def change_tags(run: RunDir, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Labels:
    """Add and remove tags, and return the run's labels. Raises UsageError for a word that can't be a tag, or if there
    would be too many tags.
    """
    added, removed = tuple(add), frozenset(remove)
    for tag in added:
        if (why := why_no_tag(tag)) is not None:
            raise UsageError(f"{tag[:MOST_OF_A_TAG]!r} can't be a tag: {why}", "e.g. orch tag RUN +ablation -baseline")
    with _changing(run) as old:
        tags = tuple(tag for tag in dict.fromkeys((*old.tags, *added)) if tag not in removed)
        if len(tags) > MOST_TAGS:
            raise UsageError(f"a run has at most {MOST_TAGS} tags", "remove one first: orch tag RUN -TAG")
        return _written(run, Labels(tags, old.note))


def set_note(run: RunDir, text: str) -> Labels:
    """Replace the note, and return the run's labels. An empty text removes the note.

    Raises UsageError if the text can't be a note.
    """
    text = text.strip()
    if (why := why_no_note(text)) is not None:
        raise UsageError(f"the note is not valid: {why}", 'e.g. orch note RUN "lr was too high"')
    with _changing(run) as old:
        return _written(run, Labels(old.tags, text))


class Relabelled:
    """Detects the runs whose labels have changed since the previous call. One file lists the changes of all runs."""

    def __init__(self, root: Path) -> None:
        self._path = root / CHANGES
        self._size = self._size_now()

    def look(self) -> set[str]:
        """Return the ids of the runs whose labels have changed."""
        before, self._size = self._size, self._size_now()
        if self._size == before:
            return set()
        begin = before if before < self._size else 0
        return set(read_part(self._path, begin, self._size - begin).decode(errors="replace").split())

    def _size_now(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0


def why_no_tag(text: str) -> str | None:
    """Return why a word can't be used as a tag, or None if it can."""
    if not text:
        return "it is empty"
    if len(text) > MOST_OF_A_TAG:
        return f"it has more than {MOST_OF_A_TAG} characters"
    if not is_printable(text) or any(char.isspace() or char in _APART for char in text):
        return "it has a blank, a comma, a quotation mark or a plus"
    return "it begins with a dash" if text.startswith("-") else None


def why_no_note(text: str) -> str | None:
    """Return why a text can't be used as a note, or None if it can."""
    if len(text) > MOST_OF_A_NOTE:
        return f"it has more than {MOST_OF_A_NOTE:,} characters"
    return None if is_printable(text, "\n\t") else "it has characters that can't be shown"


@contextlib.contextmanager
def _changing(run: RunDir) -> Iterator[Labels]:
    """Lock the labels during the block and yield them, so that two commands don't overwrite each other's change."""
    run.check_is_there()
    check_own(run.root, run)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(run.path / LOCK))
        except OSError as error:
            raise StoreError(
                f"{run.path / LOCK} can't be opened: {error.strerror}", "make the folder writable"
            ) from error
        yield labels_of(run)


def _written(run: RunDir, labels: Labels) -> Labels:
    run.write(FILE, labels.to_json(), private=True)
    append_line(run.root / CHANGES, run.run_id)
    return labels
