"""orch tag: show or change a run's tags."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, say, show
from orchestrator.errors import UsageError


@orch.command(context_settings={"allow_interspersed_args": False}, epilog="Example: orch tag last +ablation -baseline")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("run", shell_complete=complete.runs_and_sweeps)
@click.argument("words", nargs=-1, metavar="[+TAG|-TAG]...")
@delegated
def tag(run: str, words: tuple[str, ...], as_json: bool) -> int:
    """Add tags to a run or a sweep, or remove them.

    +TAG adds a tag, and -TAG removes it. Without tags, the command shows those of the run.
    """
    from orchestrator.runs.labels import change_tags, labels_of
    from orchestrator.runs.store import state_root
    from orchestrator.runs.sweeps import find_runs

    as_json, words = as_json or "--json" in words, tuple(word for word in words if word != "--json")
    for word in words:
        if word.startswith("--") or word in ("-", "+"):
            raise UsageError(f"{word} is no tag", "+TAG adds a tag, and -TAG removes it")
    add = [word.removeprefix("+") for word in words if not word.startswith("-")]
    remove = [word[1:] for word in words if word.startswith("-")]
    found = find_runs(state_root(), run, newest=not words)
    labels = {each.run_id: change_tags(each, add, remove) if words else labels_of(each) for each in found}
    if as_json:
        print_json({run_id: each.to_json() for run_id, each in labels.items()})
        return 0
    for run_id, each in labels.items():
        (say if words else show)(f"{run_id}: {', '.join(each.tags) or 'no tags'}")
    return 0
