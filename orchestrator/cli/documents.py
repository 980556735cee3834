"""Commands about the documents: profiles, schema, init, completion."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from orchestrator.cli.group import orch, print_json, say
from orchestrator.errors import OrchError, UsageError

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


@orch.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profiles(as_json: bool) -> int:
    """List the profiles that --profile finds by name."""
    from pathlib import Path

    from orchestrator import render
    from orchestrator.load import known_profiles, load_profile

    rows: list[list[Any]] = []
    for name, path, where in known_profiles(Path.cwd()):
        try:
            found = load_profile(path)
            nproc = list(found.nproc_per_node) if isinstance(found.nproc_per_node, tuple) else found.nproc_per_node
            rows.append([name, found.kind, found.nodes, nproc, found.runtime, where])
        except OrchError as error:
            rows.append([name, "broken", None, None, None, error.message.splitlines()[0]])
    header = ["PROFILE", "KIND", "NODES", "RANKS/NODE", "RUNTIME", "WHERE"]
    if as_json:
        keys = ["profile", "kind", "nodes", "nproc_per_node", "runtime", "where"]
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        click.echo(render.table(header, [["-" if cell is None else str(cell) for cell in row] for row in rows]))
    return 0


@orch.command()
@click.argument("document", type=click.Choice(["job", "profile"]))
def schema(document: str) -> int:
    """Print the JSON Schema of the YAML documents."""
    from orchestrator.load import schema as schema_of

    click.echo(json.dumps(schema_of(document), indent=2, ensure_ascii=False))
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


@orch.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--host", "hosts", multiple=True, metavar="USER@HOST", help="Write an ssh profile for this host (n[1-3])."
)
@click.option("--slurm", is_flag=True, help="Write a slurm profile from what sinfo says here.")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def init(hosts: tuple[str, ...], slurm: bool, force: bool, name: str, command: tuple[str, ...]) -> int:
    """Write a profile or a job called NAME.

    orch init --host me@n[1-3] lab writes cluster_profiles/lab.yaml; orch init --slurm big does so from sinfo;
    orch init mine torchrun --nproc_per_node 4 train.py writes the job mine.yaml (and its profile) from the launch
    line that you type today.
    """
    from pathlib import Path

    from orchestrator import initialise
    from orchestrator.store import write_durably

    if bool(hosts) + slurm + bool(command) != 1:
        raise UsageError(
            "say what to start from: --host, --slurm, or a launch line",
            "orch init --host me@n[1-3] lab, orch init --slurm big, or orch init mine torchrun train.py",
        )
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(f"'{name}' is not a name", "letters, digits, '_', '.' and '-'")
    profile = Path("cluster_profiles") / f"{name}.yaml"
    files: dict[Path, str] = {}
    notes: tuple[str, ...] = ()
    if command:
        draft = initialise.job_from_command(shlex.join(command) if len(command) > 1 else command[0], name)
        files[Path(f"{name}.yaml")] = draft.job
        if draft.profile is not None:
            files[profile] = draft.profile
        notes = draft.notes
    else:
        files[profile] = initialise.profile_from_hosts(hosts) if hosts else initialise.profile_from_sinfo(_sinfo())
    taken = [str(path) for path in files if path.exists() and not force]
    if taken:
        raise UsageError(f"{', '.join(taken)} exists already", "give another name, or --force")
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        write_durably(path, text.encode())
        say(f"wrote {path}")
    for note in notes:
        say(f"  note: {note}")
    return 0


def _sinfo() -> str:
    """What sinfo says of the partitions here."""
    import subprocess

    try:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%P|%D|%c|%m|%G|%l"], capture_output=True, text=True, timeout=30, check=True
        )
    except FileNotFoundError as error:
        raise UsageError("sinfo is not on this machine's PATH", "run this on a login node of the cluster") from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise OrchError(f"sinfo failed: {error}", "see what it says by itself: sinfo") from error
    return done.stdout
