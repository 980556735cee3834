"""orch init: a first job and profile from a launch line."""

from __future__ import annotations

import shlex

import click

from orchestrator.cli.group import orch, say
from orchestrator.errors import OrchError, UsageError


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

    from orchestrator.node.system.private import as_the_user
    from orchestrator.operations import init as initialise
    from orchestrator.runs.store import write_durably

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
        with as_the_user():
            path.parent.mkdir(exist_ok=True)
            write_durably(path, text.encode())
        say(f"wrote {path}")
    for note in notes:
        say(f"  note: {note}")
    return 0


def _sinfo() -> str:
    """Return what sinfo says of the partitions here."""
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
