"""The GPUs and slots of one start over SSH: held on every host before any agent is started, or on none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.backends.settings import Host, SshSettings
from orchestrator.errors import BackendError
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.store import RunDir
from orchestrator.transport.pool import ConnectionPool

LOOK_SECONDS: Final = 20.0  # for so long one host waits, before those that hold something already are looked at
HINT: Final = "orch nodes shows who; --wait-for-gpus waits; leases: false in the profile takes any"


@contextlib.contextmanager
def leased(
    pool: ConnectionPool,
    run: RunDir,
    settings: SshSettings,
    hosts: Mapping[int, Host],
    tasks: tuple[NodeTask, ...],
    hellos: Mapping[int, Mapping[str, Any]],
) -> Iterator[dict[int, list[str]]]:
    """Yield what is held for every node's agent; what no agent has taken over is let go of when anything fails."""
    counts = {node: places_needed(tasks[node], hellos[node]["gpus"], settings) for node in hosts}
    # In the order of the hosts' names, so that two that need the same hosts can't block each other.
    order = sorted((node for node in hosts if counts[node]), key=lambda node: (hosts[node].name, node))
    sessions = {node: _Host(pool, run, settings, hosts[node]) for node in order}
    try:
        places = _take_all(sessions, counts, waits=tasks[0].start > 0 or run.record().waits)
        yield {node: places.get(node, []) for node in hosts}
    except BaseException:
        for each in sessions.values():
            each.release()
        raise


def _take_all(hosts: Mapping[int, _Host], counts: Mapping[int, int], *, waits: bool) -> dict[int, list[str]]:
    """Take the places of all nodes, one after the other; BackendError where they are not free, unless it `waits`.

    A host holds them as long as its connection lasts. One that was lost while another was waited for has let go, so
    all begin again.
    """
    places: dict[int, list[str]] = {}
    while (node := next((node for node in hosts if node not in places), None)) is not None:
        taken, why = hosts[node].take(counts[node], LOOK_SECONDS if waits else 0.0)
        if taken is not None:
            places[node] = taken
        elif not waits:
            raise BackendError(f"{hosts[node].host.name}: {why}", HINT)
        elif any(hosts[each].held() != theirs for each, theirs in places.items()):
            for each in places:
                hosts[each].release()
            places = {}
    return places


@dataclass(frozen=True)
class _Host:
    """What is held for one run on one host."""

    pool: ConnectionPool
    run: RunDir
    settings: SshSettings
    host: Host

    def take(self, count: int, wait: float) -> tuple[list[str] | None, str]:
        """Return what was taken within `wait` seconds; None, and who holds it, where it is not free."""
        reply = self._call("lease", count=count, slots=self.settings.slots, wait=wait)
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
        return session.call(do, run_id=self.run.run_id, **values)[0]


def places_needed(task: NodeTask, gpus: int, settings: SshSettings) -> int:
    """Return how many GPUs or slots a node's ranks hold; ranks that train on the CPU beside GPUs hold none."""
    if not settings.leases:
        return 0
    if gpus:
        nproc = task.nproc or gpus
        return nproc if task.backend != "gloo" and nproc <= gpus else 0
    return (task.nproc or settings.slots) if settings.slots else 0


def visible(places: list[str]) -> dict[str, str]:
    """Return what the ranks are shown of the GPUs that they hold."""
    numbers = [name.removeprefix("gpu-") for name in places if name.startswith("gpu-")]
    return {"CUDA_VISIBLE_DEVICES": ",".join(numbers)} if numbers else {}
