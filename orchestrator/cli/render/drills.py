"""Renders drills: the observed behaviour and the promised behaviour after a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import Style, plain

if TYPE_CHECKING:
    from orchestrator.operations.debugging.drill import Report


def drill_page(report: Report, style: Style = plain) -> str:
    """Return what happened after a fault, what docs/failures.md promises, and the differences."""
    seen, promise = report.account, report.promise
    lines = []
    if seen.noticed is not None:
        within = f" (promised: within {report.within:.0f} s)" if promise.says else ""
        lines.append(f"noticed after {seen.noticed:.1f} s{within}")
    if seen.said:
        lines.append(f"said: {one_line(seen.said)}")
    if seen.restarts:
        step = "the beginning" if seen.went_on_from is None else f"step {seen.went_on_from}"
        lines.append(f"went on from {step}")
    lines.append(f"{seen.outcome or 'not ended'} after {seen.took:.1f} s, restarts: {seen.restarts}")
    lines.append(f"promised: {promise.does}; {promise.outcome}, restarts: {promise.restarts}")
    lines += [style(f"not as promised: {one_line(each)}", "red") for each in report.differences]
    if report.differences:
        lines.append(f"kept: orch why {report.run_id}, orch bundle {report.run_id}; then orch rm {report.run_id}")
    else:
        lines.append(style("as promised", "green"))
    return "\n".join(f"  {line}" for line in lines)
