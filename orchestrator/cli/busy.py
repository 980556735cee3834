"""What the newest samples of a run say, for the commands that tell of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.runs.state import RunState, RunStatus

if TYPE_CHECKING:
    from orchestrator.runs.findings import Finding
    from orchestrator.runs.store import RunDir


def found_in(folder: RunDir) -> tuple[Finding, ...]:
    """Return what is worth a word in the newest samples of each node."""
    from orchestrator.runs.files.samples import newest_samples
    from orchestrator.runs.findings import findings

    return findings(newest_samples(folder))


def findings_of(folder: RunDir, state: RunState) -> list[str]:
    """Return a line for each thing that is worth a word now, or was before the end; none where all went well."""
    if state.state == RunStatus.SUCCEEDED:
        return []
    from orchestrator.runs.findings import in_words

    when = "before the end, " if state.is_final else ""
    return [f"{when}{line}" for line in in_words(found_in(folder), {each.node: each.host for each in state.nodes})]
