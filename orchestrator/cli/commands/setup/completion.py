"""orch completion: print the lines that a shell needs for completion."""

from __future__ import annotations

import click

from orchestrator.cli.group import orch


@orch.command(epilog='Example: eval "$(orch completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(orch, {}, "orch", "_ORCH_COMPLETE").source())
    return 0
