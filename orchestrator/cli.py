"""The command line: parse, call the controller, choose a renderer. The only module that prints or exits."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import click

from orchestrator import __version__
from orchestrator.errors import EXIT_INTERRUPTED, EXIT_ORCH_FAILED, EXIT_USAGE, OrchError, UsageError

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415

WATCH_SECONDS = 1.0


class Orch(click.Group):
    """Lists the commands in the order in which one meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _dashes(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


@click.group(
    cls=Orch,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "token_normalize_func": _dashes},
)
@click.version_option(__version__, prog_name="orch")
def orch() -> None:
    """Take one PyTorch training job to any cluster: this machine, SSH hosts, or Slurm."""


def _request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--set", "sets", multiple=True, metavar="job.A.B=V", help="Override a field of job or profile."),
        click.option(
            "--env", "env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or take the shell's."
        ),
        click.option("--name", help="The run's name; the job's by default."),
        click.option("--resume", metavar="RUN", help="Start from another run's newest checkpoint."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _request(job: str, profile: str, sets: tuple[str, ...], env: tuple[str, ...], name: str | None,
             resume: str | None, rehearse: bool = False) -> Any:  # fmt: skip
    from orchestrator.controller import Request

    flags = {"job.name": name} if name else {}
    return Request(job, profile, sets, flags, env, resume, rehearse)


@orch.command()
@click.argument("job")
@click.option("--profile", "-p", required=True, metavar="PROFILE", help="A profile's name or file.")
@_request_options
@click.option("--follow", "-f", is_flag=True, help="Print rank 0's log and wait; Ctrl-C detaches.")
@click.option("--detach", "-d", is_flag=True, help="Return at once (the default).")
@click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Print what would be sent; start nothing.")
@click.option("--rehearse", is_flag=True, help="Run the profile's nodes and ranks on this machine.")
def submit(job: str, profile: str, sets: tuple[str, ...], env: tuple[str, ...], name: str | None, resume: str | None,
           as_json: bool, follow: bool, detach: bool, dry_run: bool, rehearse: bool) -> int:  # fmt: skip
    """Submit JOB (a YAML file or a shipped job's name) to a profile."""
    from orchestrator import controller, render
    from orchestrator.store import state_root

    if follow and detach:
        raise UsageError("--follow and --detach exclude each other", "leave one of them out")
    root = state_root()
    prepared = controller.prepare(root, _request(job, profile, sets, env, name, resume, rehearse))
    if dry_run:
        _show_plan(controller.plan_for(root, prepared), as_json, prepared.environment.secrets)
        return 0
    run = controller.submit(root, prepared)
    if as_json and not follow:
        _print_json({"run_id": run.run_id, "folder": str(run.path)})
    elif follow:
        _say(f"submitted {run.run_id}; Ctrl-C detaches, and the run goes on")
        return _follow(run, as_json=as_json)
    else:
        _say(f"submitted {run.run_id}")
        click.echo(render.next_commands(run.run_id))
    return 0


def _show_plan(launch: Any, as_json: bool, secrets: dict[str, str]) -> None:
    from orchestrator import render
    from orchestrator.environment import mask
    from orchestrator.plan import ranks_of

    if as_json:
        ranks = [{**row.__dict__, "argv": list(row.argv)} for row in ranks_of(launch)]
        text = json.dumps({**launch.to_json(), "ranks": ranks}, indent=1)
    else:
        text = render.plan_page(launch, commands=True)
    click.echo(mask(text, secrets))


def _follow(run: Any, *, as_json: bool = False, selection: Any = None, tail: int | None = None) -> int:
    """Print log lines until the run has ended, then how; the exit code tells the outcome."""
    from orchestrator import controller, render
    from orchestrator.logs import Selection, Tail, result_of

    reader = Tail(run, selection or Selection())
    if tail is not None:
        reader.skip_to_last(tail)
    several = bool(selection and (selection.everything or selection.node is not None))
    printer = _Printer(several)
    out = sys.stderr if as_json else sys.stdout
    last = {"state": "", "detail": ""}

    def look(state: Any) -> None:
        for log, line in reader.read(ended=state.is_final):
            printer.line(log, line, out)
        said = state.detail or state.state
        if not state.is_final and said != last["state"] and state.state in ("starting", "restarting", "pending"):
            _say(f"{state.state}{f': {state.detail}' if state.detail else ''}")
        last["state"] = said

    state = controller.wait(run, look)
    result = result_of(run)
    if as_json:
        _print_json({**state.to_json(), "result": result, "folder": str(run.path)})
        return controller.exit_code(state)
    took = render.duration(state.ended - state.started) if state.ended and state.started else "-"
    _say(f"{run.run_id} {state.state} after {took}")
    if line := render.result_line(result):
        _say(f"  result       {line}")
    if newest := max(run.path.glob("checkpoints/step_*"), default=None):
        _say(f"  checkpoint   {newest}")
    _say(f"  folder       {run.path}")
    if state.state == "failed":
        click.echo(render.verdict_page(state, _style), err=True)
    return controller.exit_code(state)


class _Printer:
    """Prints log lines: rank 0's as they are, several ranks' with a label, and a line where an attempt begins."""

    def __init__(self, labelled: bool) -> None:
        self.labelled, self.attempt = labelled, 0

    def line(self, log: Any, text: str, out: Any) -> None:
        if log.attempt != self.attempt:
            self.attempt = log.attempt
            click.echo(_style(f"--- attempt {log.attempt} ---", "magenta"), file=out)
        label = _style(f"[node {log.node} rank {log.rank}] ", "blue") if self.labelled else ""
        click.echo(f"{label}{text}", file=out)


@orch.command()
@click.argument("run", required=False)
@click.option("--all", "-a", "everything", is_flag=True, help="All runs, not only the newest.")
@click.option("--number", "-n", default=20, show_default=True, type=click.IntRange(1), help="How many of the newest.")
@click.option("--watch", "-w", is_flag=True, help="Keep the screen current until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(run: str | None, everything: bool, number: int, watch: bool, as_json: bool) -> int:
    """Show runs, or everything about one RUN (an id, a unique prefix, or last)."""
    if watch and not as_json:
        return _watch(lambda: _status_text(run, everything, number, as_json))
    click.echo(_status_text(run, everything, number, as_json))
    return 0


def _status_text(run: str | None, everything: bool, number: int, as_json: bool) -> str:
    from orchestrator import controller, render
    from orchestrator.logs import beat_of, result_of
    from orchestrator.store import find_run, state_root
    from orchestrator.supervisor import state_of

    root = state_root()
    if run is None:
        found = controller.states(root, everything=everything, limit=number)
        rows = [(state, None if state.is_final else beat_of(folder, state.attempt)) for folder, state in found]
        if as_json:
            return json.dumps([{**state.to_json(), "progress": beat} for state, beat in rows], indent=1)
        return render.status_table(rows, time.time(), _style)
    folder = find_run(root, run)
    state, result = state_of(folder), result_of(folder)
    beat = beat_of(folder, state.attempt)
    if as_json:
        whole = {**state.to_json(), "progress": beat, "result": result, "folder": str(folder.path)}
        return json.dumps(whole, indent=1)
    return render.status_page(state, beat, result, str(folder.path), time.time(), _style)


def _watch(text: Callable[[], str]) -> int:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            live.update(Text.from_ansi(text()), refresh=True)
            time.sleep(WATCH_SECONDS)  # the refresh rate of a screen


@orch.command()
@click.argument("run")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends; Ctrl-C stops looking, not the run.")
@click.option("--rank", type=click.IntRange(0), help="This rank's log instead of rank 0's.")
@click.option("--node", type=click.IntRange(0), help="All ranks of this node.")
@click.option("--all", "-a", "everything", is_flag=True, help="All ranks of all nodes.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each log.")
def logs(run: str, follow: bool, rank: int | None, node: int | None, everything: bool, tail: int | None) -> int:
    """Print the log of rank 0, or of the ranks asked for."""
    from orchestrator.logs import Selection, Tail, log_files
    from orchestrator.store import find_run, state_root
    from orchestrator.supervisor import state_of

    folder = find_run(state_root(), run)
    selection = Selection(rank, node, everything)
    if follow:
        return _follow(folder, selection=selection, tail=tail)
    if not log_files(folder, selection):
        state = state_of(folder)
        which = "no such rank, or its" if rank is not None or node is not None else "no"
        raise OrchError(f"{which} log is there yet: the run is {state.state}", f"see: orch status {folder.run_id}")
    reader = Tail(folder, selection)
    if tail is not None:
        reader.skip_to_last(tail)
    printer = _Printer(everything or node is not None)
    for log, line in reader.read(ended=True):
        printer.line(log, line, sys.stdout)
    return 0


@orch.command()
@click.argument("run")
@click.option("--now", is_flag=True, help="Kill at once, without a last checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cancel(run: str, now: bool, as_json: bool) -> int:
    """Stop a run at its next step boundary, with a checkpoint, and prove that nothing of it is left."""
    from orchestrator import controller
    from orchestrator.store import find_run, state_root

    root = state_root()
    folder = find_run(root, run)
    state, proofs = controller.cancel(root, folder, now=now)
    if as_json:
        _print_json({**state.to_json(), "proofs": [proof.__dict__ for proof in proofs]})
    else:
        if not proofs:
            _say(f"{folder.run_id} had ended before: {state.state}")
        else:
            _say(f"{folder.run_id} {state.state}")
        for proof in proofs:
            left = f"still there: {', '.join(proof.survivors)}" if proof.survivors else "0 processes left"
            _say(f"  {proof.host}: {left}")
    return EXIT_ORCH_FAILED if any(proof.survivors for proof in proofs) else 0


@orch.command()
@click.argument("run")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up waiting after this long.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def wait(run: str, timeout: float | None, as_json: bool) -> int:
    """Wait for a run to end; the exit code is its outcome (0, 100 failed, 101 not finished, 103 cancelled)."""
    from orchestrator import controller
    from orchestrator.store import find_run, state_root

    state = controller.wait(find_run(state_root(), run), timeout=timeout)
    if as_json:
        _print_json(state.to_json())
    else:
        _say(f"{state.run_id} {state.state}")
    return controller.exit_code(state)


@orch.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def why(run: str, as_json: bool) -> int:
    """Say why a run ended as it did: rank, host, code, traceback, last lines, and what to do."""
    from orchestrator import render
    from orchestrator.store import find_run, state_root
    from orchestrator.supervisor import state_of

    state = state_of(find_run(state_root(), run))
    if as_json:
        _print_json(state.verdict.to_json() if state.verdict else None)
    else:
        click.echo(render.verdict_page(state, _style))
    return 0


@orch.command()
@click.argument("job")
@click.option("--profile", "-p", "profiles", multiple=True, required=True, metavar="PROFILE", help="One or two.")
@_request_options
def plan(job: str, profiles: tuple[str, ...], sets: tuple[str, ...], env: tuple[str, ...], name: str | None,
         resume: str | None, as_json: bool) -> int:  # fmt: skip
    """Show the ranks of JOB under a profile, or what differs between two."""
    from orchestrator import controller, render
    from orchestrator.plan import differences
    from orchestrator.store import state_root

    if len(profiles) > 2:
        raise UsageError(f"{len(profiles)} profiles were given", "compare two at a time")
    root = state_root()
    plans = [
        controller.plan_for(root, controller.prepare(root, _request(job, profile, sets, env, name, resume)))
        for profile in profiles
    ]
    if as_json:
        _print_json([launch.to_json() for launch in plans] if len(plans) > 1 else plans[0].to_json())
        return 0
    for launch in plans:
        click.echo(render.plan_page(launch, commands=False))
        click.echo()
    if len(plans) == 2:
        click.echo(render.differences_page(profiles[0], profiles[1], differences(*plans)))
    return 0


@orch.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profiles(as_json: bool) -> int:
    """List the profiles that --profile finds by name."""
    from pathlib import Path

    from orchestrator import render
    from orchestrator.load import known_profiles, load_profile

    rows = []
    for name, path, where in known_profiles(Path.cwd()):
        try:
            found = load_profile(path)
            rows.append([name, found.kind, str(found.nodes), str(found.nproc_per_node), found.runtime, where])
        except OrchError as error:
            rows.append([name, "broken", "-", "-", "-", error.message.splitlines()[0]])
    header = ["PROFILE", "KIND", "NODES", "RANKS/NODE", "RUNTIME", "WHERE"]
    if as_json:
        _print_json([dict(zip([word.lower() for word in header], row, strict=True)) for row in rows])
    else:
        click.echo(render.table(header, rows))
    return 0


@orch.command()
@click.argument("document", type=click.Choice(["job", "profile"]))
def schema(document: str) -> int:
    """Print the JSON Schema of the YAML documents."""
    from orchestrator.load import schema as schema_of

    _print_json(schema_of(document))
    return 0


@orch.command()
@click.argument("runs", nargs=-1, metavar="RUN...")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Remove all finished runs but the newest N.")
def rm(runs: tuple[str, ...], keep: int | None) -> int:
    """Remove finished runs, with their logs and checkpoints. ORCH_KEEP_RUNS=N does so after every run."""
    from orchestrator import controller
    from orchestrator.store import find_run, state_root
    from orchestrator.supervisor import prune

    if not runs and keep is None:
        raise UsageError("nothing to remove was named", "orch rm RUN..., or orch rm --keep 50")
    root = state_root()
    removed = [find_run(root, reference) for reference in runs]
    for folder in removed:
        controller.remove(root, folder)
    removed += prune(root, keep) if keep else []
    _say(f"removed {', '.join(folder.run_id for folder in removed) or 'nothing'}")
    return 0


@orch.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell: eval "$(orch completion bash)"."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(orch, {}, "orch", "_ORCH_COMPLETE").source())
    return 0


def _style(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if colour and _colour_is_wanted() else text


def _colour_is_wanted() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _say(text: str) -> None:
    """Orch's own words go to stderr, so that stdout is what was asked for."""
    click.echo(text, err=True)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1))


def main() -> NoReturn:
    """Run the command line and exit with the code of docs/cli.md."""
    try:
        code = orch.main(standalone_mode=False, prog_name="orch")
        sys.stdout.flush()
    except OrchError as error:
        _say(f"orch: {error.message}")
        for line in error.hint.splitlines():
            _say(f"  {line}")
        code = error.exit_code
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except KeyboardInterrupt:
        _say("\ndetached; the run goes on. See: orch status")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # `orch logs RUN | head`: whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception as error:
        if os.environ.get("ORCH_DEBUG"):
            raise
        _say(f"orch: an error in orch itself: {type(error).__name__}: {error}")
        _say("  ORCH_DEBUG=1 shows where; please report it")
        code = EXIT_ORCH_FAILED
    sys.exit(code)


if __name__ == "__main__":
    main()
