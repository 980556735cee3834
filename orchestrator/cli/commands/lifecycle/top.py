"""orch top: watch runs live on the whole terminal."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch
from orchestrator.cli.terminal import has_terminal, speaks_utf8
from orchestrator.errors import UsageError


@orch.command(epilog="Example: orch top")
@click.argument("run", required=False, shell_complete=complete.runs)
def top(run: str | None) -> int:
    """Watch runs live: ranks, curves, logs, events.

    Shows the list of runs, or the page of RUN. The last line lists the most important keys, and ? lists all keys. Needs
    pip install 'orchrun[ui]'.
    """
    if not has_terminal() or os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise UsageError(
            "orch top needs a terminal that can move the cursor (TERM is dumb, or there is no terminal)",
            "orch status prints the same as text",
        )
    if find_spec("textual") is None:
        raise UsageError("the package textual is not installed", "pip install 'orchrun[ui]'; without it: orch status")
    from orchestrator.cli.render.runs import note
    from orchestrator.cli.top.app import Top
    from orchestrator.cli.top.marks import ASCII, UNICODE
    from orchestrator.cli.top.page import Page
    from orchestrator.cli.top.run_pages import Overview
    from orchestrator.cli.top.runs_page import RunsPage
    from orchestrator.supervisor.background import attended_root
    from orchestrator.views.reader import Reader

    reader = Reader(attended_root(), note)
    pages: list[Page[Any]] = [RunsPage(reader)]
    if run is not None:
        pages.append(Overview(reader, reader.find(run)))
    Top(pages, UNICODE if speaks_utf8() else ASCII).run(mouse=False)
    return 0
