"""Says which folders and files orch never ships as code, because they hold credentials."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# Folders and files in the home folder with credentials, which are never shipped as code.
_CREDENTIALS: Final = (
    ".ssh", ".gnupg", ".aws", ".azure", ".config/gcloud", ".kube", ".docker", ".netrc", ".git-credentials",
    ".config/git/credentials", ".config/gh", ".config/rclone", ".pgpass", ".pypirc", ".npmrc", ".kaggle",
    ".huggingface", ".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".vault-token", ".password-store",
    ".local/share/keyrings",
)  # fmt: skip


def why_never_shipped(path: Path) -> str:
    """Return why orch never ships this folder or file as code; empty if it may be shipped."""
    home, path = Path(os.path.expanduser("~")).resolve(), path.resolve()
    if home.is_relative_to(path):
        return f"{path} holds your whole home folder"
    for name in _CREDENTIALS:
        places = {home / name, (home / name).resolve()}  # it may be a link into a folder of dotfiles
        if any(path.is_relative_to(place) for place in places):
            return f"{path} is where credentials are kept (~/{name})"
        if any(place.is_relative_to(path) for place in places):
            return f"{path} holds credentials (~/{name})"
    return ""
