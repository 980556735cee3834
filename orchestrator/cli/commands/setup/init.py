"""orch init: write a first job and profile from a launch line."""

from __future__ import annotations

import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from orchestrator.cli.group import orch, say
from orchestrator.errors import OrchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.operations.submission.init import Draft


class BeforeLaunchLine(click.Command):
    """The class of a command that takes options, a name and a launch line, which may have options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options and the name. The words after the name are the launch line."""
        takes_value = {option for each in self.params if not getattr(each, "is_flag", True) for option in each.opts}
        options, names, rest = list[str](), list[str](), list(args)
        while rest and rest[0] != "--" and (rest[0].startswith("-") or not names):
            word = rest.pop(0)
            (options if word.startswith("-") else names).append(word)
            if word in takes_value and rest:
                options.append(rest.pop(0))
        return super().parse_args(ctx, [*options, "--", *names, *rest[rest[:1] == ["--"] :]])


@orch.command(
    cls=BeforeLaunchLine,
    context_settings={"allow_interspersed_args": False},
    epilog="Example: orch init train torchrun --nproc_per_node 4 train.py",
)
@click.option(
    "--host", "hosts", multiple=True, metavar="USER@HOST", help="Write an ssh profile for a host, or for hosts n[1-3]."
)
@click.option("--slurm", is_flag=True, help="Write a slurm profile from the output of sinfo.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def init(hosts: tuple[str, ...], slurm: bool, force: bool, name: str, command: tuple[str, ...]) -> int:
    """Write a job or profile from a command, script or hosts.

    A launch line (torchrun, srun, accelerate, deepspeed, python) or a batch script with #SBATCH lines becomes the job
    NAME.yaml and, if it names nodes or ranks, the profile cluster_profiles/NAME.yaml. --host and --slurm write only the
    profile.
    """
    from pathlib import Path

    from orchestrator.node.system.private import as_the_user
    from orchestrator.operations.submission import init as initialise
    from orchestrator.runs.store import deliver

    if not (hosts or slurm or command) and initialise.script_in((name,)):  # as in: orch init train.sh
        name, command = Path(name).stem, (name,)
    if bool(hosts) + slurm + bool(command) != 1:
        raise UsageError(
            "there is nothing to write a job or profile from: give a launch line, a script, --host or --slurm",
            "orch init --host me@n[1-3] lab, orch init --slurm big, or orch init mine torchrun train.py",
        )
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(f"'{name}' can't be the name of a job or profile", "use letters, digits, '_', '.' and '-'")
    profile = Path("cluster_profiles") / f"{name}.yaml"
    files: dict[Path, str] = {}
    notes: tuple[str, ...] = ()
    if command:
        draft = _draft(command, name)
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
            written = deliver(path, text.encode(), make=True)
        say(f"wrote {written}")
    for note in notes:
        say(f"  note: {note}")
    where = f" -p {name}" if profile in files else ""
    say(f"next: orch submit {name}.yaml{where} -f" if command else f"next: orch doctor{where}")
    return 0


def _draft(command: tuple[str, ...], name: str) -> Draft:
    """Return the draft of a job and a profile for a launch line. If the line names a batch or shell script, the draft
    is made from the script.
    """
    import os
    from pathlib import Path

    from orchestrator.operations.submission import init as initialise
    from orchestrator.operations.submission.batch_script import NoTrainingError
    from orchestrator.operations.submission.launcher_files import MOST_SCRIPT
    from orchestrator.protocol.reading import read_regular
    from orchestrator.specs.batch_header import NotConvertibleError

    line = shlex.join(command) if len(command) > 1 else command[0]
    if (script := initialise.script_in(command)) is None:
        draft = initialise.job_from_command(line, name)
        if draft.script and not Path(draft.script).exists():
            near = get_close_matches(draft.script, [str(path) for path in Path().glob("*.py")], n=1)
            hint = f"did you mean {near[0]}?" if near else "start orch init in the folder of the script"
            raise UsageError(f"{draft.script}: there is no such file in this folder", hint)
        return draft
    try:
        text = read_regular(os.path.realpath(script), MOST_SCRIPT).decode(errors="replace")
    except OSError as error:
        raise UsageError(
            f"{script} can't be read: {error.strerror}", "name the script that starts the training"
        ) from error
    try:
        return initialise.job_from_script(text, name)
    except NotConvertibleError as error:
        raise NotConvertibleError(
            f"{script}, {error.message}", error.hint.replace("submit FILE", f"submit {script}")
        ) from None
    except NoTrainingError:
        if command[0] not in ("bash", "sh") or "#SBATCH" in text:
            raise
        # no line of the script starts a training, so the job runs the script unchanged
        return initialise.job_from_command(line, name)


def _sinfo() -> str:
    """Return sinfo's table of the partitions. Raises UsageError or OrchError if sinfo is missing or fails."""
    import subprocess

    from orchestrator.backends.slurm.partitions import SINFO_FORMAT

    try:
        done = subprocess.run(
            ["sinfo", "-h", "-o", SINFO_FORMAT], capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError as error:
        raise UsageError("sinfo is not on this machine's PATH", "run this on a login node of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise OrchError("sinfo did not answer for 30 s", "see whether Slurm is up: scontrol ping") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise OrchError(f"sinfo failed: {said.removeprefix('sinfo: ')}", "run this on a login node of the cluster")
    return done.stdout
