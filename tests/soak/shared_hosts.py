"""Hosts that two users share, in memory: what their servers answer, cut cables, and processes that are killed.

The commands are orch's own: each is a thread that stops before each request and each record it writes, and goes on when
it is told to, so that any interleaving can be had, and had again by its seed. The kernel's part is that of names: a
place is held by one at a time, and free when its holder is gone. Time passes when it is told to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import BackendError
from orchestrator.node.server.leases import PROMISE_SECONDS
from orchestrator.protocol.task import NodeTask
from orchestrator.transport.address import Address
from orchestrator.transport.machine import Machine
from tests.machines import FakeMachine

SECOND = 10**9
Agent = tuple[str, int]  # run, uid


class KilledError(BaseException):
    """The process is gone."""


@dataclass
class Server:
    """One process of orch's on a host, at the other end of one connection."""

    uid: int
    held: dict[str, list[str]] = field(default_factory=dict)
    is_cut: float | None = None  # since when nobody is at the other end, and it does not know


@dataclass
class Host:
    """One machine: who holds its places, which agents live there, whose tickets lie there."""

    name: str
    places: dict[str, Server | Agent | None]
    tickets: list[dict[str, Any]] = field(default_factory=list)
    agents: dict[Agent, list[str]] = field(default_factory=dict)
    begun: set[Agent] = field(default_factory=set)  # the markers of starts
    servers: list[Server] = field(default_factory=list)

    def free(self, holder: object) -> None:
        for name, each in self.places.items():
            if each is holder or each == holder:
                self.places[name] = None


class World:
    """All hosts, and the time."""

    def __init__(self, slots: dict[str, int]) -> None:
        self.now = 1_700_000_000.0
        self.hosts = {name: Host(name, {f"slot-{n}": None for n in range(count)}) for name, count in slots.items()}
        self.tick = 0  # of the kernel's clock: no two folders are made at once

    def pass_time(self, seconds: float) -> None:
        """Let it pass; servers whose connection is gone let go of what nobody asks about."""
        self.now += seconds
        for host in self.hosts.values():
            for server in host.servers:
                if server.is_cut is not None and self.now - server.is_cut > PROMISE_SECONDS:
                    host.free(server)

    def stamp(self) -> int:
        self.tick += 1
        return int(self.now * SECOND) + self.tick

    def has_begun(self, run: str) -> bool:
        """Tell whether an agent of the run was started anywhere."""
        return any(name == run for host in self.hosts.values() for name, _ in host.begun)

    def end_run(self, run: str, uid: int) -> None:
        """All agents of a run end."""
        for host in self.hosts.values():
            if host.agents.pop((run, uid), None) is not None:
                host.free((run, uid))

    def answer(self, host: Host, server: Server, do: str, values: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """What orch's server answers; see orchestrator.node.server."""
        return getattr(self, f"_{do}")(host, server, payload, **values)  # type: ignore[no-any-return]

    def _look_at_queue(self, host: Host, server: Server, _: bytes, **__: Any) -> dict[str, Any]:
        def holder(each: Server | Agent | None, name: str) -> dict[str, Any] | None:
            if each is None:
                return None
            run, uid = each if isinstance(each, tuple) else (_of(each, name), each.uid)
            return {"uid": uid, "user": f"u{uid}", "run": run, "since": 1}

        shown = [{**each, "user": f"u{each['uid']}", "age": self.now - each["renewed"]} for each in host.tickets]
        places = {name: holder(each, name) for name, each in host.places.items()}
        return {"places": places, "tickets": shown, "uid": server.uid, "now": self.stamp()}

    def _take_ticket(
        self, host: Host, server: Server, _: bytes, run_id: str, count: int, number: int
    ) -> dict[str, Any]:
        self._drop_ticket(host, server, b"", run_id)
        host.tickets.append({"uid": server.uid, "run": run_id, "needs": count, "number": number, "made": self.stamp(),
                             "renewed": self.now})  # fmt: skip
        return {"taken": True}

    def _renew_ticket(self, host: Host, server: Server, _: bytes, run_id: str) -> dict[str, Any]:
        mine = [each for each in host.tickets if (each["run"], each["uid"]) == (run_id, server.uid)]
        for each in mine:
            each["renewed"] = self.now
        return {"renewed": bool(mine)}

    def _drop_ticket(self, host: Host, server: Server, _: bytes, run_id: str) -> dict[str, Any]:
        host.tickets = [each for each in host.tickets if (each["run"], each["uid"]) != (run_id, server.uid)]
        return {"dropped": 1}

    def _lease(self, host: Host, server: Server, _: bytes, run_id: str, count: int, **__: Any) -> dict[str, Any]:
        self._release(host, server, b"", run_id)
        agent = (run_id, server.uid)
        if agent in host.begun:
            return {"places": [name for name, each in host.places.items() if each == agent]}
        free = [name for name, each in host.places.items() if each is None][:count]
        if len(free) < count:
            return {"places": None, "why": "not enough are free"}
        for name in free:
            host.places[name] = server
        server.held[run_id] = free
        return {"places": free}

    def _release(self, host: Host, server: Server, _: bytes, run_id: str) -> dict[str, Any]:
        for name in server.held.pop(run_id, []):
            host.places[name] = None
        return {"released": 0}

    def _still_held(self, _: Host, server: Server, __: bytes, run_id: str) -> dict[str, Any]:
        return {"places": server.held.get(run_id, [])}

    def _start_agent(self, host: Host, server: Server, payload: bytes, places: list[str], **_: Any) -> dict[str, Any]:
        agent = (NodeTask.from_json(json.loads(payload)).run_id, server.uid)
        if agent not in host.begun:
            if server.held.pop(agent[0], []) != places:
                raise BackendError(f"{host.name}: it is held no longer", transient=True)
            host.begun.add(agent)
            host.agents[agent] = places
            for name in places:
                host.places[name] = agent
        return {"pid": 1, "started": 1}

    def _clean_up(self, host: Host, server: Server, _: bytes, run_id: str, **__: Any) -> dict[str, Any]:
        if host.agents.pop((run_id, server.uid), None) is not None:
            host.free((run_id, server.uid))
        return {"host": host.name, "ended": 1, "survivors": []}

    def _remove(self, host: Host, server: Server, _: bytes, run_id: str, **__: Any) -> dict[str, Any]:
        host.begun.discard((run_id, server.uid))
        return {"removed": True}


def _of(server: Server, place: str) -> str | None:
    return next((run for run, names in server.held.items() if place in names), None)


class Process:
    """A command of a user's: a thread that waits before each step for its turn."""

    def __init__(self, world: World, uid: int, work: Callable[[], Any]) -> None:
        self.world, self.uid = world, uid
        self.servers: dict[str, Server] = {}
        self.cut: set[str] = set()  # of these hosts, what is on its way is lost
        self.seen: dict[str, dict[str, Any]] = {}  # what each host has answered to its last look
        self.is_killed = self.is_over = False
        self.problem: BaseException | None = None
        self._may, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        self._stands.acquire()

    def _run(self, work: Callable[[], Any]) -> None:
        CURRENT.process = self
        try:
            self.step()
            work()
        except (KilledError, BackendError):
            pass
        except BaseException as error:  # noqa: BLE001 (the test says it)
            self.problem = error
        self.is_over = True
        for name, server in self.servers.items():  # its connections are closed
            if server.is_cut is None:
                self.world.hosts[name].free(server)
        self._stands.release()

    def step(self) -> None:
        """Wait for the next turn; KilledError where there is none any more."""
        if self.is_killed:
            raise KilledError
        self._stands.release()
        self._may.acquire()
        if self.is_killed:
            raise KilledError

    def go_on(self) -> None:
        """Let it take its next step."""
        self._may.release()
        self._stands.acquire()

    def kill(self) -> None:
        """kill -9: nothing of it follows, not even what it would clean up."""
        self.is_killed = True
        self.go_on()

    def lose_if_cut(self, host: str) -> None:
        """Lose the connection to a host, where its cable was cut: its server there does not know."""
        if host in self.cut:
            self.cut.discard(host)
            if server := self.servers.pop(host, None):
                server.is_cut = self.world.now
            raise BackendError(f"{host}: the connection was closed", transient=True)


CURRENT = threading.local()


class Pool:
    """The connections of the process in which a thread runs."""

    def session(self, address: Address, workdir: str) -> Machine:
        process: Process = CURRENT.process
        return Connected(address.host, process=process)


@dataclass
class Connected(FakeMachine):
    """A host as one process reaches it: each request is two steps of the process, before and after the answer."""

    process: Process = field(kw_only=True)

    def carry_out(self, verb: str, payload: bytes, values: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        process, host = self.process, self.process.world.hosts[self.name]
        process.step()
        process.lose_if_cut(host.name)
        if host.name not in process.servers:
            process.servers[host.name] = Server(process.uid)
            host.servers.append(process.servers[host.name])
        server = process.servers[host.name]
        if verb == "lease" and host.name not in process.seen and not process.world.has_begun(values["run_id"]):
            process.seen[host.name] = process.world.answer(host, server, "look_at_queue", {}, b"")
        reply = process.world.answer(host, server, verb, values, payload)
        if verb == "look_at_queue":
            process.seen[host.name] = reply
        process.step()
        process.lose_if_cut(host.name)
        return reply, b""
