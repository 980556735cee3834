"""Commands about what a run left: checkpoints, pull, diff, bundle."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.elsewhere import where_it_is
from orchestrator.cli.group import orch, print_json, say, style
from orchestrator.errors import EXIT_ORCH_FAILED

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


@orch.command()
@click.argument("run")
@click.option("--verify", is_flag=True, help="Read every byte and hold it against its hash.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@where_it_is
def checkpoints(run: str, verify: bool, as_json: bool) -> int:
    """List a run's checkpoints: step, metric, size, and whether each is whole. With --verify, exit 1 if one is not."""
    from orchestrator import pages
    from orchestrator.checkpoints import checkpoint_folder, listing
    from orchestrator.store import find_run, state_root

    folder = checkpoint_folder(find_run(state_root(), run))
    found = listing(folder, verify=verify)
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        click.echo(pages.checkpoints_page(found, str(folder), style))
    return EXIT_ORCH_FAILED if verify and not all(each.is_whole for each in found) else 0


@orch.command()
@click.argument("run")
@click.option("--checkpoint", default="latest", show_default=True, metavar="best|latest|none|STEP", help="Which one.")
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", help="The folder; ./RUN by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pull(run: str, checkpoint: str, to: Path | None, as_json: bool) -> int:
    """Copy a run's log, metrics, result and a checkpoint to a folder, verified; again, it copies only what is new."""
    from orchestrator import collect, pages
    from orchestrator.store import find_run, state_root

    folder = find_run(state_root(), run)
    pulled = collect.pull(folder, to or Path(folder.run_id), checkpoint, say)
    if as_json:
        print_json(pulled.to_json())
    else:
        click.echo(pages.pulled_page(pulled))
    return 0


@orch.command()
@click.argument("one", metavar="RUN")
@click.argument("other", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(one: str, other: str, as_json: bool) -> int:
    """Show what changed from one run to another: job, profile, code, variables, versions, hosts, result."""
    from orchestrator import pages
    from orchestrator.compare import compare
    from orchestrator.conclude import state_of
    from orchestrator.store import find_run, state_root

    root = state_root()
    runs = find_run(root, one), find_run(root, other)
    found = compare(*runs, (state_of(runs[0]), state_of(runs[1])))
    if as_json:
        print_json(found.to_json())
    else:
        click.echo(pages.comparison_page(found, style))
    return 0


@orch.command()
@click.argument("run")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="./RUN-bundle.tar.gz by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bundle(run: str, output: Path | None, as_json: bool) -> int:
    """Write an archive of a run for a bug report: records, events, the ends of logs; no secrets, code or weights."""
    from orchestrator import pages
    from orchestrator.bundle import bundle as write_bundle
    from orchestrator.store import find_run, state_root

    folder = find_run(state_root(), run)
    path = output or Path(f"{folder.run_id}-bundle.tar.gz")
    members = write_bundle(folder, path)
    if as_json:
        print_json({"file": str(path), "members": [{"path": name, "bytes": count} for name, count in members]})
    else:
        click.echo(pages.members_page(members))
        say(f"wrote {path}; look into it before you send it: a log holds whatever the program printed")
    return 0
