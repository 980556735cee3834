"""Uses apprise, a package that sends to mail, chats and push services by URL. It is an extra, loaded only on demand.

These URLs contain passwords, so no message of orch repeats a URL, and apprise's own log is disabled.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from apprise import Apprise

INSTALL: Final = "pip install 'orchrun[notify]'"
EXAMPLE: Final = "as in ntfy://topic or mailtos://user:password@example.org; see apprise's list of services"


def check_urls(variable: str, text: str, *, is_here: bool) -> None:
    """Raise UsageError for URLs that apprise does not know, if the supervisor runs on this machine (`is_here`)."""
    if is_here and find_spec("apprise") is None:
        raise UsageError(
            "notify: apprise_env needs the package apprise in orch's environment, and it is not installed", INSTALL
        )
    if is_here:
        _, refused = channels(text)
        if refused or not text.split():
            which = f"URL {refused[0]} of {len(text.split())} in {variable}" if refused else variable
            raise UsageError(f"notify: {which} is not a URL that apprise knows", EXAMPLE)


def channels(text: str) -> tuple[Apprise, list[int]]:
    """Return the receivers for URLs separated by spaces, and the numbers of unknown URLs."""
    import apprise

    logging.getLogger("apprise").disabled = True
    found = apprise.Apprise()
    return found, [number for number, url in enumerate(text.split(), 1) if not found.add(url)]
