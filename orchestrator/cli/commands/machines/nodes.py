"""orch nodes: list the machines of profiles, their GPUs, and the users and runs on them."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli.awaiting import naming_awaited_machines
from orchestrator.cli.group import orch, print_json, show, style
from orchestrator.cli.request import profile_option
from orchestrator.errors import EXIT_ORCH_FAILED, OrchError


@orch.command(epilog="Example: orch nodes -p lab")
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def nodes(profile: str | None, as_json: bool) -> int:
    """List a profile's machines, their GPUs, and who uses them.

    For a scheduler's profile, list its partitions or queues. Without --profile, list all your own profiles' machines.
    """
    from orchestrator.backends import backend_of, kind_of
    from orchestrator.operations.doctor import holdings_of_all
    from orchestrator.specs.documents.loader import load_profile

    if profile is not None:
        loaded = load_profile(profile)
        with naming_awaited_machines(kind_of(loaded)):
            found = backend_of(loaded).holdings(loaded)
        if as_json:
            print_json(found)
        else:
            show(_page(found))
        return _code(found)
    every = holdings_of_all()
    if as_json:
        print_json({name: found if isinstance(found, list) else {"problem": found.message} for name, found in every})
    for number, (name, each) in enumerate([] if as_json else every):
        show(f"{chr(10) * bool(number)}{style(name, 'cyan')}")
        if isinstance(each, OrchError):
            show(f"  {each.message}")
        else:
            show(_page(each))
    return max(EXIT_ORCH_FAILED if isinstance(found, OrchError) else _code(found) for _, found in every)


def _page(found: list[dict[str, Any]]) -> str:
    from orchestrator.cli.render import results

    return results.partitions_page(found) if found and "limit" in found[0] else results.nodes_page(found, style)


def _code(found: list[dict[str, Any]]) -> int:
    return EXIT_ORCH_FAILED if any("problem" in each for each in found) else 0
