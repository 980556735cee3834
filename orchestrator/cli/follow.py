"""Following a run: its log lines as they come, and how it ended."""

from __future__ import annotations

import sys
from typing import Any

import click

from orchestrator.cli.group import print_json, say, style
from orchestrator.errors import EXIT_INTERRUPTED

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


def follow(run: Any, *, as_json: bool = False, selection: Any = None, tail: int | None = None) -> int:
    """Print log lines until the run has ended, then how; the exit code tells the outcome."""
    from orchestrator import controller, render
    from orchestrator.logs import Selection, Tail, result_of

    reader = Tail(run, selection or Selection())
    if tail is not None:
        reader.skip_to_last(tail)
    printer = Printer(bool(selection and selection.takes_several))
    out = sys.stderr if as_json else sys.stdout
    last = {"state": "", "detail": ""}

    def look(state: Any) -> None:
        for log, line in reader.read(ended=state.is_final):
            printer.line(log, line, out)
        said = state.detail or state.state
        if not state.is_final and said != last["state"] and state.state in ("starting", "restarting", "pending"):
            say(f"{state.state}{f': {state.detail}' if state.detail else ''}")
        last["state"] = said

    try:
        with controller.bringing_logs(run, selection or Selection()):
            state = controller.wait(run, look)
    except KeyboardInterrupt:
        say(f"\ndetached; {run.run_id} goes on. Follow it again: orch logs -f {run.run_id}")
        return EXIT_INTERRUPTED
    result = result_of(run)
    if as_json:
        print_json({**state.to_json(), "result": result, "folder": str(run.path)})
        return controller.exit_code(state)
    took = render.duration(state.ended - state.started) if state.ended and state.started else "-"
    say(f"{run.run_id} {state.state} after {took}")
    if line := render.result_line(result):
        say(f"  result       {line}")
    if newest := max(run.path.glob("checkpoints/step_*"), default=None):
        say(f"  checkpoint   {newest}")
    say(f"  folder       {run.path}")
    if state.state == "failed":
        click.echo(render.verdict_page(state, style), err=True)
    return controller.exit_code(state)


class Printer:
    """Prints log lines: rank 0's as they are, several ranks' with a label, and a line where an attempt begins."""

    def __init__(self, labelled: bool) -> None:
        self.labelled, self.attempt = labelled, 0

    def line(self, log: Any, text: str, out: Any) -> None:
        if log.attempt != self.attempt:
            self.attempt = log.attempt
            click.echo(style(f"--- attempt {log.attempt} ---", "magenta"), file=out)
        label = style(f"n{log.node}/r{log.rank} ", "blue") if self.labelled else ""
        click.echo(f"{label}{text}", file=out)
