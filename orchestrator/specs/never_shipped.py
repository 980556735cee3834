"""Says which folders and files orch never ships as code, because they hold credentials."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# Folders in the home folder with credentials, which are never shipped as code.
_CREDENTIALS: Final = (".ssh", ".gnupg", ".aws", ".azure", ".config/gcloud", ".kube", ".docker")


def why_never_shipped(path: Path) -> str:
    """Return why orch never ships this folder or file as code; empty if it may be shipped."""
    home, path = Path(os.path.expanduser("~")).resolve(), path.resolve()
    if home.is_relative_to(path):
        return f"{path} holds your whole home folder"
    inside = next((name for name in _CREDENTIALS if path.is_relative_to(home / name)), None)
    return f"{path} is where credentials are kept (~/{inside})" if inside else ""
