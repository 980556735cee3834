"""Which machine looks after a run, if several machines share the state folder.

Each machine has at most one supervisor. A supervisor acts on a run only while its machine has the run's claim. A claim
is a numbered file. The greatest number counts, and only one process can create a number. All points of a sweep share
one claim, because the sweep limits how many of them run at a time.

A machine that can't do the work of a run says so in its claim. It goes on trying, but any other machine may now take
the claim. A machine whose supervisor has died or was stopped for CLAIM_SECONDS loses its claims too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StoreError
from orchestrator.protocol.files import write_json
from orchestrator.protocol.frozen import Value
from orchestrator.protocol.reading import MOST_RECORD, read_json
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.store import RunDir, names_in

CLAIM_SECONDS: Final = 30.0  # a supervisor that was not alive for so long has lost its claims
START_SECONDS: Final = 600.0  # in which only the machine of the submit takes a run, because a start may take long
AGAIN_SECONDS: Final = 60.0  # until a machine that could not do the work of a run takes the run again
AWAY_SECONDS: Final = 86400.0  # a machine whose supervisor was not alive for so long is gone, or has another name
MOST_DIGITS: Final = 18


class Claim(Value):
    """The machine that looks after a run. `unable` has the machines that could not: when that was, and why."""

    number: int = 0  # 0: no machine has taken the run yet
    host: str = ""
    unable: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    @property
    def why_unable(self) -> str:
        """Return why the machine can't do the work of the run; "" if it can."""
        return self.unable.get(self.host, (0.0, ""))[1]


@cache
def here() -> str:
    """Return the name of this machine, as it was at the first call: a laptop may get another name while it is on."""
    return os.uname().nodename


def record_name(host: str) -> str:
    """Return the name of the file in which the supervisor of a machine introduces itself. The file's time shows when
    the supervisor was last alive.
    """
    return f"supervisor.{host}.json"


def claim_of(run: RunDir) -> Claim:
    """Return the run's claim. As long as no machine has taken the run, it is the claim of the machine that submitted
    the run.
    """
    folder = _folder(run)
    while numbers := _numbers(folder):
        for number in numbers:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                data = read_json(folder / str(number), MOST_RECORD, folder)
                unable = {str(host): (float(at), str(why)) for host, (at, why) in data["unable"].items()}
                return Claim(number, str(data["host"]), unable)
        if numbers == _numbers(folder):  # a crash has left a damaged file, which the next claim replaces
            return Claim(numbers[0], home_of(run))
    return Claim(host=home_of(run))


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the files in a folder of claims, the greatest first."""
    found = [int(name) for name in names_in(folder) if name.isdecimal() and len(name) <= MOST_DIGITS]
    return sorted(found, reverse=True)


def now_of(root: Path) -> float:
    """Return the time of the file system that has the state folder. The clocks of the machines may differ."""
    try:
        (root / "clock").touch(mode=0o600)
        return os.stat(root / "clock").st_mtime
    except OSError:  # the disk is full
        return time.time()


def home_of(run: RunDir) -> str:
    """Return the machine that submitted the run; "" if that is not known."""
    try:
        return run.record().home
    except StoreError:
        return ""


def is_ours(run: RunDir) -> bool:
    """Return True if no other machine looks after the run."""
    return claim_of(run).host in ("", here())


def is_away(run: RunDir) -> bool:
    """Return True if another machine submitted the run, and was alive within the last day. In that case, no problem of
    this machine ends the run.
    """
    if (home := home_of(run)) in ("", here()):
        return False
    try:
        return now_of(run.root) - os.stat(run.root / record_name(home)).st_mtime < AWAY_SECONDS
    except OSError:
        return False


def may_take(run: RunDir, claim: Claim, now: float | None = None) -> bool:
    """Return True if the supervisor of this machine may look after the run. `now` is the time of the file system."""
    now = now_of(run.root) if now is None else now
    if claim.host in ("", here()):
        return True
    if claim.why_unable:
        tried = claim.unable.get(here())
        return tried is None or now - tried[0] > AGAIN_SECONDS
    if claim.number == 0 and now - run.record().created < START_SECONDS:
        return False  # its own machine may be starting it
    try:
        return now - os.stat(run.root / record_name(claim.host)).st_mtime > CLAIM_SECONDS
    except FileNotFoundError:
        return True


def take(run: RunDir, claim: Claim) -> bool:
    """Take the run from the machine that has `claim`. Return False if another machine was first."""
    if claim.number and claim.host == here():
        return True
    try:
        return _put(run, Claim(claim.number + 1, here(), _of_others(claim)))
    except OSError:  # the disk is full, so no other machine can take the run either, or the run was removed
        return claim.host in ("", here()) and run.path.exists()


def report(run: RunDir, why: str) -> bool:
    """Record why this machine can't do the work of the run; "" if it can. Return False, and record nothing, if another
    machine has taken the run.
    """
    claim = claim_of(run)
    if claim.host not in ("", here()):
        return False
    if bool(why) != bool(claim.why_unable):
        mine = {here(): (now_of(run.root), "; ".join(why.splitlines()))} if why else {}
        with contextlib.suppress(OSError):  # the disk is full, or the run was removed
            return _put(run, Claim(claim.number + 1, here(), {**_of_others(claim), **mine}))
    return True


def _of_others(claim: Claim) -> dict[str, tuple[float, str]]:
    return {host: said for host, said in claim.unable.items() if host != here()}


def _put(run: RunDir, claim: Claim) -> bool:
    folder = _folder(run)
    folder.mkdir(mode=0o700, exist_ok=True)  # raises OSError if the run was removed
    draft = folder / f".{here()}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    values: dict[str, Any] = {"host": claim.host, "unable": claim.unable}
    write_json(draft, values, durable=False)
    try:
        os.link(draft, folder / str(claim.number))
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    for name in names_in(folder):
        if name.isdecimal() and int(name) < claim.number:
            (folder / name).unlink(missing_ok=True)
    return True


def _folder(run: RunDir) -> Path:
    sweep = sweep_of(run.run_id)
    return (run.root / "sweeps" / sweep if sweep else run.path) / "claims"
