"""Following a run: its log lines as they come, and how it ended."""

from __future__ import annotations

import sys
from typing import Any

import click

from orchestrator.cli.group import print_json, say, style
from orchestrator.cli.render import escapes
from orchestrator.errors import EXIT_INTERRUPTED


def follow(
    run: Any, *, as_json: bool = False, selection: Any = None, tail: int | None = None, raw: bool = False
) -> int:
    """Print log lines until the run has ended, then how; return the outcome's exit code."""
    from orchestrator.cli.render import runs as render
    from orchestrator.cli.render import tables
    from orchestrator.operations import runs
    from orchestrator.protocol import checkpoint_dir
    from orchestrator.runs.logs import Selection, Tail, result_of

    reader = Tail(run, selection or Selection())
    if tail is not None:
        reader.skip_to_last(tail)
    printer = Printer(bool(selection and selection.takes_several), raw=raw)
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
        with runs.bringing_logs(run, selection or Selection()):
            state = runs.wait(run, look)
    except KeyboardInterrupt:
        say(f"\ndetached; {run.run_id} goes on. Follow it again: orch logs -f {run.run_id}")
        return EXIT_INTERRUPTED
    result = result_of(run)
    if as_json:
        print_json({**state.to_json(), "result": result, "folder": str(run.path)})
        return runs.exit_code(state)
    took = tables.duration(state.ended - state.started) if state.ended and state.started else "-"
    say(f"{run.run_id} {state.state} after {took}")
    if line := render.result_line(result):
        say(f"  result       {line}")
    folder = run.path / "checkpoints"
    if newest := checkpoint_dir.newest(folder):
        say(f"  checkpoint   {folder / newest}")
    say(f"  folder       {run.path}")
    if state.state == "failed":
        say(render.verdict_page(state, style))
    elif state.verdict is not None and state.verdict.reason:
        say(f"  note         {escapes.one_line(state.verdict.reason)}")
    return runs.exit_code(state)


class Printer:
    """Prints log lines: rank 0's as they are, several ranks' with a label, and a line where an attempt begins.

    raw: also what would command the terminal.
    """

    def __init__(self, labelled: bool, *, raw: bool) -> None:
        self.labelled, self.raw, self.attempt = labelled, raw, 0

    def line(self, log: Any, text: str, out: Any) -> None:
        """Print one line of a log."""
        if log.attempt != self.attempt:
            self.attempt = log.attempt
            click.echo(style(f"--- attempt {log.attempt} ---", "magenta"), file=out)
        label = style(f"n{log.node}/r{log.rank} ", "blue") if self.labelled else ""
        if self.raw:
            click.echo(f"{label}{text}", file=out, color=True)  # else click leaves colours out of a file or a pipe
        else:
            click.echo(f"{label}{escapes.log_line(text)}", file=out)
