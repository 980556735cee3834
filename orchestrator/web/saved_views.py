"""The saved views of the table of runs and of the curves. A view is a name and the query string of a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from orchestrator.errors import UsageError, is_printable
from orchestrator.protocol.files import locked
from orchestrator.runs.store import RunDir
from orchestrator.web import files

FILES: Final = {"runs": "views.json", "curves": "curve_views.json"}
MOST_VIEWS: Final = 100
MOST_OF_A_NAME: Final = 60  # the most characters of a view's name
MOST_OF_A_QUERY: Final = 4000


def views_of(root: Path, kind: str) -> dict[str, str]:
    """Return the query strings of the saved views, keyed by the view's name. Raises StoreError if the file can't be
    read.
    """
    kept = RunDir(root / "ui").read(_file(kind)) or {}
    return {name: query for name, query in kept.items() if isinstance(query, str)}


def save(root: Path, kind: str, name: str, query: Any) -> dict[str, str]:
    """Save a view under a name. If the query is null, remove the view. Return all views. Raises UsageError for an
    invalid view.
    """
    if not name.strip() or len(name) > MOST_OF_A_NAME or not is_printable(name):
        raise UsageError(f"a view's name must have 1 to {MOST_OF_A_NAME} printable characters")
    if query is not None and (not isinstance(query, str) or len(query) > MOST_OF_A_QUERY or not is_printable(query)):
        raise UsageError(f"the query of a view must have at most {MOST_OF_A_QUERY:,} printable characters")
    file, folder = _file(kind), files.folder_of(root)
    with files.writing(folder), locked(folder / "views.lock"):
        found = views_of(root, kind)
        found.pop(name, None)
        if query is not None:
            found[name] = query
        if len(found) > MOST_VIEWS:
            raise UsageError(f"there are {MOST_VIEWS} views already", "remove one that you do not need")
        RunDir(folder).write(file, found, private=True)
    return found


def _file(kind: str) -> str:
    """Return the name of the file for a kind of view (runs or curves). Raises UsageError for any other kind."""
    if kind not in FILES:
        raise UsageError(f"views exist for {' and '.join(FILES)}, but not for '{kind[:40]}'")
    return FILES[kind]
