"""orch doctor: check every machine of a profile, or this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from orchestrator.cli.awaiting import naming_awaited_machines
from orchestrator.cli.group import orch, print_json, say, show, style, width_of
from orchestrator.cli.request import profile_option, profile_or_default
from orchestrator.errors import EXIT_ORCH_FAILED, UsageError


@orch.command(epilog="Example: orch doctor -p lab")
@profile_option
@click.option("--set", "sets", multiple=True, metavar="profile.A=V", help="Override a field of the profile.")
@click.option("--on-node", is_flag=True, help="Also run a short job on a compute node, if the scheduler allows it.")
@click.option("--bench", is_flag=True, help="Also measure the bandwidth of all-reduce in and between nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(profile: str | None, sets: tuple[str, ...], on_node: bool, bench: bool, as_json: bool) -> int:
    """Check a profile's machines, and print remedies.

    The command checks Python, torch, disk and GPUs. For an ssh profile it also checks keys, and ports between the
    nodes. For a scheduler's profile it also checks the scheduler's programs, queue and limits.
    """
    from orchestrator.backends import kind_of
    from orchestrator.backends.base import Level
    from orchestrator.cli.render import results
    from orchestrator.operations import bandwidth
    from orchestrator.operations.doctor import examine
    from orchestrator.runs.store import state_root
    from orchestrator.specs.documents.loader import load_profile
    from orchestrator.specs.kinds import kind_named

    name = profile_or_default(profile)
    if of_job := next((each for each in sets if each.startswith("job.")), None):
        raise UsageError(f"--set {of_job}: doctor checks a profile and has no job", "write --set profile.FIELD=VALUE")
    loaded = load_profile(name, sets=sets)
    with naming_awaited_machines(kind_of(loaded)):
        checks = examine(loaded, on_node=on_node)
    if not as_json:
        show(results.doctor_page(checks, style, width_of(sys.stdout)))
    fails = any(check.level == Level.FAIL for check in checks)
    figures = bandwidth.measure(state_root(), name, say, sets) if bench and not fails else []
    if as_json:
        print_json([*(check.to_json() for check in checks), *map(asdict, figures)])
    else:
        for figure in figures:
            show(bandwidth.in_words(figure))
        is_network = loaded.nodes > 1 and not kind_named(loaded.kind).on_this_machine
        if is_network and _is_new(state_root(), "note-on-encryption"):
            say("note: torch's own traffic between nodes is neither encrypted nor authenticated (docs/security.md)")
    return EXIT_ORCH_FAILED if fails else 0


def _is_new(root: Path, note: str) -> bool:
    """Return True if the note with this name was never printed before, and record that it is printed now."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        os.close(os.open(root / note, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    except OSError:  # the note may be printed again next time, which does no harm
        pass
    return True
