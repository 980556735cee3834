"""The GPUs and slots of one start: held on every host before any agent is started, or on none."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.backends.places.waiting import Need, Waiting
from orchestrator.backends.remote.hosts import all_of
from orchestrator.backends.settings import Host, SshSettings, remote_folder
from orchestrator.errors import BackendError, PlacesTakenError
from orchestrator.protocol.places.devices import VISIBLE, Device, named_by, why_not
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.store import RunDir
from orchestrator.transport.pool import ConnectionPool

LOOK_SECONDS: Final = 20.0  # for so long one host waits, before those that hold something already are looked at
VISIBLE_HINT: Final = f"change {VISIBLE} in the job's env, or leave it out"
HINT: Final = "orch nodes shows who holds them; without --no-wait the run waits; with leases: false it uses any"


@contextlib.contextmanager
def leased(
    pool: ConnectionPool,
    run: RunDir,
    settings: SshSettings,
    hosts: Mapping[int, Host],
    start: int,
    needs: Mapping[int, Need],
    *,
    began: bool,
) -> Iterator[dict[int, list[str]]]:
    """Yield what is held for every node's agent; what no agent has taken over is let go of when anything fails.

    A run that is not to begin yet is put into the queue: PlacesTakenError. One that is started again has had its turn:
    it takes what becomes free. began: a start was cut off, whose agents may hold theirs already.
    """
    # In the order of the hosts' names, so that two that need the same hosts can't block each other.
    order = sorted((node for node in hosts if needs[node].count), key=lambda node: (hosts[node].name, node))
    sessions = {node: _Host(pool, run, settings, node, hosts[node], start) for node in order}
    try:
        waiting = Waiting(pool, run, settings, {node: needs[node] for node in order})
        places = _take_in_turn(sessions, needs, waiting, began=began) if start == 0 else _take_all(sessions, needs)
        yield {node: places.get(node, []) for node in hosts}
    except BaseException:
        for each in sessions.values():
            each.release()
        raise


def _take_in_turn(
    hosts: Mapping[int, _Host], needs: Mapping[int, Need], waiting: Waiting, *, began: bool
) -> dict[int, list[str]]:
    """Take the places of all nodes, where it is the run's turn; else nothing, and PlacesTakenError once it is queued.

    BackendError instead where it was not to wait.
    """
    places: dict[int, list[str]] = {}
    why = "" if began else waiting.obstacle()
    for node in hosts if not why else ():
        taken, said = hosts[node].take(needs[node], 0.0)
        if taken is None:
            why = f"{hosts[node].host.name}: {said}"
            break
        places[node] = taken
    if not why:
        return places
    for node in places:
        hosts[node].release()
    if not waiting.run.record().waits:
        raise BackendError(why, HINT)
    waiting.join()
    raise PlacesTakenError(why, HINT)


def _take_all(hosts: Mapping[int, _Host], needs: Mapping[int, Need]) -> dict[int, list[str]]:
    """Take the places of all nodes, one after the other, as they become free.

    A host holds them as long as its connection lasts. One that was lost while another was waited for has let go, so
    all begin again.
    """
    places: dict[int, list[str]] = {}
    left = deque(hosts)
    while left:
        taken, _ = hosts[left[0]].take(needs[left[0]], LOOK_SECONDS)
        if taken is not None:
            places[left.popleft()] = taken
        elif any(hosts[each].held() != theirs for each, theirs in places.items()):
            for each in places:
                hosts[each].release()
            places, left = {}, deque(hosts)
    return places


@dataclass(frozen=True)
class _Host:
    """What is held for one run on one host."""

    pool: ConnectionPool
    run: RunDir
    settings: SshSettings
    node: int
    host: Host
    start: int

    def take(self, need: Need, wait: float) -> tuple[list[str] | None, str]:
        """Return what was taken within `wait` seconds; None, and who holds it, where it is not free."""
        where = {"run_dir": remote_folder(self.run), "node": self.node, "start": self.start}
        reply = self._call("lease", count=need.count, among=need.among, slots=self.settings.slots, wait=wait, **where)
        return reply["places"], reply.get("why", "")

    def held(self) -> list[str]:
        """Return what the server there holds for the run; nothing where it is another one since a moment ago."""
        places: list[str] = self._call("still_held")["places"]
        return places

    def release(self) -> None:
        """Let go of it; a host that is out of reach does by itself."""
        with contextlib.suppress(BackendError):
            self._call("release")

    def _call(self, do: str, **values: Any) -> dict[str, Any]:
        session = self.pool.session(self.host.address, self.settings.workdir)
        answer: dict[str, Any] = session.call(do, run_id=self.run.run_id, **values)[0]
        return answer


def needs_of(
    settings: SshSettings,
    hosts: Mapping[int, Host],
    tasks: tuple[NodeTask, ...],
    hellos: Mapping[int, Mapping[str, Any]],
) -> dict[int, Need]:
    """Return what each node's ranks hold of its machine. Raises MachinesError if it can't be what the job says."""
    found = {}
    for node, host in hosts.items():
        try:
            found[node] = need_of(tasks[node], hellos[node], settings.slots) if settings.leases else Need()
        except ValueError as error:
            raise all_of({node: BackendError(f"{host.name}: {error}", VISIBLE_HINT)}) from error
    return found


def need_of(task: NodeTask, hello: Mapping[str, Any], slots: int | None) -> Need:
    """Return how many GPUs or slots a node's ranks hold, and of which; ValueError in a sentence for a contradiction.

    Ranks that train on the CPU beside GPUs hold none.
    """
    devices = [Device(**each) for each in hello["devices"]]
    if not devices:
        return Need((task.nproc or slots) if slots else 0)
    asked = task.env.get(VISIBLE)
    if why := why_not(asked, hello["visible"], devices):
        raise ValueError(why)
    usable = named_by(hello["visible"] if asked is None else asked, devices)
    nproc = task.nproc or len(usable)
    count = task.gpus or (len(usable) if task.all_gpus else nproc)
    if task.gpus is not None and asked is not None and usable and task.gpus > len(usable):
        raise ValueError(f"the job asks for {task.gpus} GPUs, and its {VISIBLE}={asked} names {len(usable)}")
    fits = task.uses_gpus and count <= len(usable)
    return Need(count if fits else 0, tuple(each.name for each in usable) if asked is not None else None)
