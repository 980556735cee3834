"""Finds unusual states in the newest samples of a run, for the commands that print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.runs.state import RunState, RunStatus

if TYPE_CHECKING:
    from orchestrator.runs.store import RunDir


def findings_of(folder: RunDir, state: RunState) -> list[str]:
    """Return a line for each unusual state in the newest samples of a run; empty if the run succeeded.

    If the run failed or was cancelled, these are the last samples before its end.
    """
    if state.state == RunStatus.SUCCEEDED:
        return []
    from orchestrator.runs.files.samples import newest_samples
    from orchestrator.runs.findings import findings, in_words

    when, hosts = "before the end, " if state.is_final else "", {each.node: each.host for each in state.nodes}
    return [f"{when}{line}" for line in in_words(findings(newest_samples(folder)), hosts)]
