"""The job's `outputs` section: patterns of the files that are copied back, and a limit on their size."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from orchestrator.protocol.outputs import MAX_SIZE
from orchestrator.protocol.patterns import problem_of
from orchestrator.specs.fields import Bytes, Line, Spec


def _output_pattern(text: str) -> str:
    if problem := problem_of(text):
        raise ValueError(f"the pattern '{text}' {problem}")
    return text


def _no_lift(text: str) -> str:
    if text.startswith("!"):
        raise ValueError(f"'{text}' has no effect under include; write it under exclude")
    return text


OutputPattern = Annotated[Line, AfterValidator(_output_pattern)]
Pattern = Annotated[OutputPattern, AfterValidator(_no_lift)]


class Outputs(Spec):
    """Which files below the ranks' working folder are copied back. $ORCH_OUTPUT_DIR is copied back whole."""

    include: tuple[Pattern, ...] = Field((), description="patterns as in .gitignore; all files by default")
    exclude: tuple[OutputPattern, ...] = Field(
        (), description="patterns after those of orch; the last that matches counts, ! lifts it"
    )
    max_size: Bytes = Field(MAX_SIZE, description="how much of a run comes home unasked; the rest is kept there")
