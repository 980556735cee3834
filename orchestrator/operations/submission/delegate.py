"""Hands runs over to orch on another machine, and forwards commands about these runs, with the system's ssh.

The other machine must have orch, and connects to the nodes with its own keys. No key is copied to it. This machine
stores a pointer to the run.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final

from orchestrator.errors import BackendError, StoreError, UsageError
from orchestrator.node.system.private import make_private
from orchestrator.protocol.json_text import objects_in, parse_json
from orchestrator.runs.run_id import is_run_id, run_id_from, sweep_of
from orchestrator.runs.store import RunDir, check_own, newest_runs
from orchestrator.transport.address import NO_CONNECTION, gateway_of

if TYPE_CHECKING:
    from orchestrator.prepare.prepare import Prepared

FORMAT: Final = 1
WITH_POINTS: Final = 2  # the format of a sweep; an older orch refuses it, and so does not start a single run
FOLDER: Final = "elsewhere"
NO_PROGRAM: Final = (126, 127)


@dataclass(frozen=True)
class Pointer:
    """A run or sweep on another machine: its id, the machine, the path of orch on it, and the time of the hand-over."""

    run_id: str
    host: str
    orch: str
    time: float
    ssh_command: str = ""  # the command that logs in on that machine; empty if an older orch wrote the pointer


def hand_over(
    root: Path,
    prepared: Prepared,
    points: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Pointer:
    """Have the machine that the profile names as supervisor submit the run, or the sweep with these `points`. `tell`
    receives a note on files that were not sent.

    Raises BackendError, with the other machine's message, if that machine refuses and has started nothing.
    """
    import tempfile

    from orchestrator.prepare.prepare import plan_for
    from orchestrator.specs.profile import SshProfile

    check_own(root)
    profile = prepared.profile
    assert isinstance(profile, SshProfile), "no other profile names a supervisor"
    host, program = profile.supervisor, profile.supervisor_orch
    launch = plan_for(root, prepared)
    if prepared.repeats is not None or prepared.after or Path(launch.tasks[0].resume).is_absolute():
        raise UsageError(
            f"files of another run (--from, --resume, --after) can't be handed over to {host}",
            "submit on that machine, or use a profile with `supervisor: here`",
        )
    head = {
        "format": FORMAT if points is None else WITH_POINTS,
        "points": points,
        "job": replace(launch.job, code=replace(launch.job.code, dir="code")).to_json(),
        "profile": replace(profile, supervisor="here").to_json(),
        "given": [name.rstrip("=") for name in prepared.given],
        "shell": {**prepared.environment.env, **prepared.environment.secrets, **prepared.hidden},
        "waits": prepared.waits,
        "spawns": prepared.spawning is not None,
    }
    with tempfile.TemporaryDirectory(prefix="orch-") as folder:
        payload = json.dumps(head).encode() + b"\n" + _packed(prepared, Path(folder) / "code", tell)
    done = subprocess.run(_argv(host, [program, "accept"]), input=payload, capture_output=True, check=False)
    if done.returncode != 0:
        raise _refusal(host, program, done.returncode, done.stderr.decode("utf-8", "replace"))
    run_id = run_id_from(_answered_id(done.stdout), f"{host}, the supervisor of this profile,")
    pointer = Pointer(run_id, host, program, time.time(), gateway_of(host).ssh_command)
    make_private(str(root / FOLDER), exist_ok=True)
    RunDir(root / FOLDER).write(f"{pointer.run_id}.json", asdict(pointer))
    return pointer


def _answered_id(answer: bytes) -> object:
    """Return the run id in the other machine's answer, or None if the answer is not valid."""
    return next(objects_in([answer]), {}).get("run_id")


def _packed(prepared: Prepared, folder: Path, tell: Callable[[str], None]) -> bytes:
    import tarfile

    from orchestrator.prepare.prepare import files_to_send
    from orchestrator.runs.files.code_snapshot import take
    from orchestrator.runs.files.ignore_rules import left_out_words

    code = prepared.loaded.job.code
    taken = take(prepared.loaded.code_dir, folder, code.ignore, code.max_size, files_to_send(prepared))
    if note := left_out_words(asdict(taken.left_out)):
        tell(note)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, "code")
    return buffer.getvalue()


def _argv(host: str, command: list[str]) -> list[str]:
    from orchestrator.backends.hosts import connections
    from orchestrator.transport.openssh import ssh_argv

    address = gateway_of(host)
    connections().check_logins(address)
    return [*ssh_argv(address), "--", address.host, shlex.join(command)]


def _refusal(host: str, program: str, code: int, said: str) -> BackendError:
    words = said.strip()
    if code == NO_CONNECTION:
        from orchestrator.backends.hosts import connections
        from orchestrator.transport.openssh import LoginRefusedError, hops_to, in_words

        error = in_words(hops_to(gateway_of(host)), words)
        if isinstance(error, LoginRefusedError):
            connections().logins.refuse(error)
            return error
        said = f"{host}, the supervisor of this profile, can't be reached: {words}"
        return BackendError(said, f"try: {gateway_of(host).ssh_command}")
    if code in NO_PROGRAM or "No such command 'accept'" in words:
        return BackendError(
            f"{host} is the supervisor of this profile, but its {program} can't take the run over: {words}",
            "install this version of orch on that machine, or set `supervisor_orch` in the profile to its path",
        )
    return BackendError(f"{host}, the supervisor of this profile, refused the run: {words.removeprefix('orch: ')}")


def accept(root: Path, stream: IO[bytes]) -> str:
    """Submit the run or sweep that another machine's `hand_over` sends, and return its id."""
    import tempfile

    from orchestrator.operations.submission import submit
    from orchestrator.prepare import prepare

    try:
        head = parse_json(stream.readline())
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") not in (FORMAT, WITH_POINTS):
        raise UsageError(
            "the run was sent by another version of orch, and can't be taken over",
            "install the same version of orch on both machines",
        )
    os.environ.update(head["shell"])
    with tempfile.TemporaryDirectory(prefix="orch-") as folder:
        _unpack(stream, Path(folder).resolve())
        paths = {}
        for what in ("job", "profile"):
            paths[what] = Path(folder) / f"{what}.yaml"
            paths[what].write_text(json.dumps(head[what]))  # JSON is YAML
        request = prepare.Request(
            str(paths["job"]), str(paths["profile"]), env=tuple(head["given"]), waits=head["waits"],
            flags={"profile.nodes": head["profile"].get("nodes")}, keeps_ranks=not head.get("spawns"),
        )  # fmt: skip
        if head["format"] == FORMAT:
            return submit.submit(root, prepare.prepare(root, request)).run_id
        from orchestrator.operations.submission import sweep

        return str(sweep_of(sweep.submit_sweep(root, sweep.prepare_asked(root, request, head["points"]))[0].run_id))


def _unpack(stream: IO[bytes], folder: Path) -> None:
    """Unpack the code that was sent. Raises UsageError if a file or a link in it leads out of the folder."""
    import tarfile

    try:
        with tarfile.open(fileobj=stream, mode="r|gz") as tar:
            for member in tar:
                path, target = PurePosixPath(member.name), folder / member.name
                is_plain = member.isfile() or member.isdir() or member.issym()
                is_inside = ".." not in path.parts and target.parent.resolve().is_relative_to(folder)
                if not is_plain or not is_inside or target.is_symlink():
                    raise UsageError(
                        f"the code that was sent contains {member.name}, which leads out of the code folder"
                    )
                tar.extract(member, folder)
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"the code that was sent is incomplete: {error}", "submit again") from error


def pointers(root: Path) -> list[Pointer]:
    """Return the pointers to all handed-over runs, the newest last.

    A pointer names a program that orch runs. So all pointers are ignored if other users may write into their folder.
    """
    found: list[Pointer] = []
    try:
        check_own(root)
    except StoreError:
        return found
    for path in (root / FOLDER).glob("*.json"):
        try:
            kept = RunDir(root / FOLDER).read(path.name)
            pointer = Pointer(**kept) if kept is not None else None
        except (StoreError, TypeError):  # the pointer is damaged, which does not affect the run itself
            continue
        if pointer is not None and is_run_id(pointer.run_id):
            found.append(pointer)
    return sorted(found, key=lambda pointer: pointer.time)


def find_pointer(root: Path, reference: str) -> Pointer | None:
    """Return the pointer to the handed-over run with this id or unique prefix, or to the `last` run; None for a run of
    this machine.

    The id of a sweep's point means the whole sweep.
    """
    known = pointers(root)
    if reference == "last" and known:
        newest = next(iter(newest_runs(root, 1)), None)
        created = newest.record().created if newest is not None else 0.0
        return known[-1] if known[-1].time > created else None
    found = [each for each in known if each.run_id in (reference, sweep_of(reference))] or [
        each for each in known if reference and each.run_id.startswith(reference)
    ]
    return found[0] if len(found) == 1 and not (root / "runs" / reference).exists() else None


def reach(pointer: Pointer, reference: str, words: list[str]) -> int:
    """Run this orch command on the machine that supervises the run, and return the command's exit code."""
    name = reference if sweep_of(reference) == pointer.run_id else pointer.run_id
    argv = [pointer.orch, *(name if word == reference else word for word in words)]
    code = subprocess.run(_argv(pointer.host, argv), stdin=subprocess.DEVNULL, check=False).returncode
    if code == NO_CONNECTION:
        raise BackendError(
            f"{pointer.host} supervises run {pointer.run_id} and can't be reached; the run continues",
            f"try: {gateway_of(pointer.host).ssh_command}", transient=True,
        )  # fmt: skip
    return code
