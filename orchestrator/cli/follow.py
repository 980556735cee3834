"""Follows a run: prints its log lines as they are written, then its outcome."""

from __future__ import annotations

import sys
import time
from typing import Any

from orchestrator.cli.group import print_json, say, style, width_of
from orchestrator.cli.logs.printer import LogPrinter
from orchestrator.cli.render import escapes
from orchestrator.errors import EXIT_INTERRUPTED


def follow(
    run: Any, *, as_json: bool = False, selection: Any = None, tail: int | None = None, raw: bool = False,
    wanted: Any = None,
) -> int:  # fmt: skip
    """Print log lines until the run has ended, then the run's outcome. Return the exit code for the outcome."""
    from orchestrator.cli.render import runs as render
    from orchestrator.looking import run as looking
    from orchestrator.looking.account import account_of
    from orchestrator.protocol.checkpoints import checkpoint_dir
    from orchestrator.protocol.quantities import duration
    from orchestrator.runs.files.logs import Selection, Tail, result_of

    reader = Tail(run, selection or Selection(), wanted)
    if tail is not None:
        reader.skip_to_last(tail)
    out = sys.stderr if as_json else sys.stdout
    printer = LogPrinter(out, labelled=bool(selection and selection.takes_several), raw=raw)
    last = {"state": "", "detail": ""}

    def look(state: Any) -> None:
        printer.print_new(reader, ended=state.is_final)
        said = state.detail or state.state
        if not state.is_final and said != last["state"] and state.state in ("starting", "restarting", "pending"):
            printer.pause()
            say(f"{state.state}{f': {state.detail}' if state.detail else ''}")
        last["state"] = said

    try:
        with looking.bringing_logs(run, selection or Selection()):
            state = looking.wait(run, look)
    except KeyboardInterrupt:
        printer.leave()
        say(f"\ndetached; {run.run_id} continues. Follow it again: orch logs -f {run.run_id}")
        return EXIT_INTERRUPTED
    result = result_of(run)
    if as_json:
        print_json({**state.to_json(), "result": result, "folder": str(run.path)})
        return looking.exit_code(state)
    took = f" after {duration(state.ended - state.started)}" if state.ended and state.started else ""
    say(f"{run.run_id} {state.state}{took}")
    if line := render.result_line(result):
        say(f"  result       {line}")
    folder = run.path / "checkpoints"
    if newest := checkpoint_dir.newest(folder):
        say(f"  checkpoint   {folder / newest}")
    say(f"  folder       {run.path}")
    if state.state == "failed":
        say(render.verdict_page(state, style, time.time(), width_of(sys.stderr), account_of(run, state)))
        _say_where_outputs_go(run)
        return looking.exit_code(state)
    reason = [state.verdict.reason] if state.verdict is not None and state.verdict.reason else []
    for note in (*reason, *render.offer_lines(state, time.time())):
        say(f"  note         {escapes.one_line(note)}")
    _say_where_outputs_go(run)
    return looking.exit_code(state)


def _say_where_outputs_go(run: Any) -> None:
    """Print the command that copies the outputs into the code folder. Print nothing if there are no outputs."""
    from orchestrator.cli.render import escapes
    from orchestrator.errors import OrchError
    from orchestrator.runs.files.outputs import outputs_of

    try:
        count = len(outputs_of(run))
    except (OSError, OrchError):  # the run or one of its files was removed meanwhile
        return
    if count:
        from orchestrator.operations.placing import place_of

        files = f"{count} output file{'' if count == 1 else 's'}"
        folder = place_of(run)
        command = f"orch pull {run.run_id} --in-place" if folder else f"orch pull {run.run_id}"
        where = f"into {folder}" if folder else f"to ./{run.run_id}"
        say(f"  outputs      {files}; copy them {escapes.one_line(where)}: {command}")
