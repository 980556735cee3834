"""The settings of systemd-logind that concern a user's processes and shared memory after the last logout."""

from __future__ import annotations

import os
import re

from orchestrator.node.system.kernel_files import read_text
from orchestrator.node.system.private import user_name
from orchestrator.protocol.reading import names_in

PLACES = ("/etc/systemd/logind.conf", "/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d")
LINGER = "/var/lib/systemd/linger"
SEATS = "/run/systemd/seats"


def applies_at_logout(setting: str, *, default: bool) -> bool:
    """Return whether a setting of logind (`RemoveIPC`, `KillUserProcesses`) takes effect when this user's last session
    ends. `loginctl enable-linger` prevents that. The default is logind's own.
    """
    if not os.path.isdir(SEATS):
        return False  # this machine has no logind
    files = [place for place in PLACES if os.path.isfile(place)]
    files += [f"{place}/{name}" for place in PLACES if os.path.isdir(place) for name in sorted(names_in(place))]
    pattern = re.compile(rf"^\s*{setting}\s*=\s*(\w+)", re.MULTILINE)
    said = [match[1] for path in files for match in pattern.finditer(read_text(path))]
    is_set = said[-1].lower() in ("yes", "true", "1", "on") if said else default
    return is_set and not os.path.exists(f"{LINGER}/{user_name(os.getuid())}")
