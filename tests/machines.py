"""Machines for tests: each answers from a dictionary, refuses, is slow or unresponsive, has a full disk, or is dead."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address
from orchestrator.transport.machine import CALL_SECONDS, LocalMachine, Machine, Reply

Said = Mapping[str, Any] | tuple[Mapping[str, Any], bytes] | Exception
Told = Said | Callable[..., Said]
"""An answer, an error to raise, or a function of the request's values that returns either."""


class Health(StrEnum):
    """How a machine carries out its requests."""

    WELL = "well"
    DEAD = "dead"  # its connection breaks at the next request
    HUNG = "hung"  # it carries out nothing, and every request reaches its time limit
    FULL = "full"  # it refuses each request that writes a file
    SLOW = "slow"  # it carries out each request, but its answer comes after the request's time limit


WRITES = frozenset({
    "write_file", "begin_file", "write_piece", "commit_files", "unpack", "prepare_array_run", "start_agent",
    "install_environment", "take_ticket", "cancel",
})  # fmt: skip


@dataclass
class FakeMachine(Machine):
    """A machine with these answers, by verb. Without an answer of its own a verb is carried out by this process."""

    name: str = "n1"
    answers: dict[str, Told] = field(default_factory=dict)
    health: Health = Health.WELL
    since: str = ""  # verbs; the first request of such a verb begins this health; "": it has begun
    left: int | None = None  # requests until the connection breaks; None: it does not
    left_bytes: int | None = None  # bytes of answers until it breaks, also in the middle of a file
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def ask(self, verb: str, payload: bytes = b"", *, sink: Any = None, most: int = 0, **values: Any) -> Reply:
        self.asked.append((verb, values))
        return Asked(self, verb, payload, sink, values)

    def verbs(self) -> list[str]:
        """Return the verbs of all requests, in their order."""
        return [verb for verb, _ in self.asked]

    def carry_out(self, verb: str, payload: bytes, values: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Carry out a request in this process. The answer has been JSON, as over a connection."""
        here = LocalMachine()
        here.name = self.name
        reply, data = here.call(verb, payload, **values)
        return json.loads(json.dumps(reply)), data

    def health_at(self, verb: str) -> Health:
        """Return the health of the machine at a request."""
        if verb in self.since.split():
            self.since = ""
        return Health.WELL if self.since else self.health


@dataclass
class Asked:
    """A request that is carried out when somebody waits for its answer."""

    machine: FakeMachine
    verb: str
    payload: bytes
    sink: Any
    values: dict[str, Any]

    def wait(self, timeout: float | None = CALL_SECONDS) -> tuple[dict[str, Any], bytes]:
        machine = self.machine
        health = machine.health_at(self.verb)
        if machine.left is not None:
            machine.left -= 1
        is_cut = machine.left is not None and machine.left < 0
        if health is Health.DEAD or is_cut or (health is Health.HUNG and timeout is None):
            raise BackendError(f"{machine.name}: the connection was closed", transient=True)
        if health is Health.SLOW and timeout is not None:
            with contextlib.suppress(BackendError):
                self.answer()
        if health in (Health.HUNG, Health.SLOW) and timeout is not None:
            raise BackendError(f"{machine.name}: no answer within {timeout:g} s", transient=True)
        if health is Health.FULL and self.verb in WRITES:
            raise BackendError(f"{machine.name}: {os.strerror(errno.ENOSPC)}")
        values, data = self.answer()
        arrives = len(data) if machine.left_bytes is None else min(len(data), machine.left_bytes)
        if machine.left_bytes is not None:
            machine.left_bytes -= len(json.dumps(values)) + len(data)
        try:
            if self.sink is not None:
                self.sink(values, io.BytesIO(data[:arrives]), len(data))
                data = b""
            if machine.left_bytes is not None and machine.left_bytes < 0:
                raise EOFError
        except EOFError as error:
            machine.health = Health.DEAD
            raise BackendError(f"{machine.name}: the connection was closed", transient=True) from error
        return values, data

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """Return the answer as the machine sends it."""
        told = self.machine.answers.get(self.verb)
        if told is None:
            return self.machine.carry_out(self.verb, self.payload, self.values)
        said = told(**self.values) if callable(told) else told
        if isinstance(said, Exception):
            raise said
        values, data = said if isinstance(said, tuple) else (said, b"")
        return dict(values), data


class FakePool:
    """A connection pool with these machines; every other machine can't be reached."""

    def __init__(self, *machines: Machine) -> None:
        self.machines = {each.name: each for each in machines}
        self.opening: set[str] = set()

    def session(self, address: Address, workdir: str) -> Machine:
        if address.host not in self.machines:
            raise BackendError(f"{address.host}: timed out", f"try: {address.ssh_command}", transient=True)
        return self.machines[address.host]
