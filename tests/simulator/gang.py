"""A gang of simulated nodes: each is a real Agent, node 0's with the real leader, listener and members."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.node.agent.agent import Agent
from orchestrator.protocol.events import AgentStarted
from orchestrator.protocol.task import NodeTask, Program
from tests.simulator.clock import run_virtually
from tests.simulator.machines import BROKEN, VICTIM, MemoryLog, Message, SimulatedLauncher, simulated
from tests.simulator.network import Machine, Network, SimulatedLoop, Weather, here

KILLED = {"code": None, "signal": "SIGKILL", "error": None, "tail": []}
OWN = {"code": 1, "signal": None, "error": {"type": "ValueError", "message": "boom"}, "tail": []}


class SimulatedAgent(Agent):
    """An agent that takes no signals, and writes no file but its record."""

    def _introduce_to_record(self) -> None:
        self.events.write(AgentStarted(here.get().name))

    def _listen_for_signals(self) -> None:
        pass


class Gang:
    """The nodes of one run, from the start of their agents to the end of the last one."""

    def __init__(
        self, folder: Path, nodes: int, seed: str, *, nproc: int = 1, weather: Weather | None = None,
        spread: float = 2.0, **values: Any,
    ) -> None:  # fmt: skip
        """`spread`: within how many seconds all agents have been started."""
        self.nodes, self.nproc = nodes, nproc
        self.chance = random.Random(f"{seed} gang")
        self.network = Network(nodes, seed, weather or Weather())
        self.machines = self.network.machines
        for machine in self.machines:
            machine.start_after = machine.chance.uniform(0.0, spread)
            slower = 1.0 if machine.factor == 1.0 else 3.0
            machine.import_seconds = machine.chance.uniform(0.5, 3.0) * slower
        self.agents: dict[int, SimulatedAgent] = {}
        self.running: dict[int, asyncio.Task[None]] = {}
        self.ended: dict[int, float] = {}  # when each agent has left
        self.gone: set[int] = set()  # nodes that have lost power, or whose agent was killed
        self.awaited: list[tuple[Callable[[int, Message], bool], asyncio.Future[Message]]] = []
        (folder / "code").mkdir()
        hosts = tuple(machine.name for machine in self.machines)
        code = str(folder / "code")
        values = {"retry": {"user_error": 0, "infra": 3}, "credentials": "secret", **values}
        self.tasks = [
            NodeTask(
                "r-1", node, nodes, hosts if node == 0 else (hosts[0], hosts[node]), nproc, str(folder), code,
                Program("script", "t.py"), "fork", "gloo", "python3", (self.machines[0].addr,), (20000, 20015),
                sampling=False, uses_gpus=False, **values,
            )
            for node in range(nodes)
        ]  # fmt: skip

    def run(self, story: Callable[[Gang], Awaitable[None]]) -> Gang:
        """Start all agents, have the story happen, and wait until everybody who can has left."""

        async def main() -> None:
            self.began = asyncio.get_running_loop().time()
            telling = asyncio.ensure_future(story(self))
            await asyncio.sleep(0)  # it may say how the machines are before they are started
            for machine in (each for each in self.machines if each.number not in self.gone):
                context = contextvars.copy_context()
                context.run(here.set, machine)
                task = asyncio.get_running_loop().create_task(self._live(machine), context=context)
                self.running[machine.number] = task
            await asyncio.gather(telling, *self.running.values())

        gc.disable()  # it would look at all nodes again and again
        try:
            with simulated(self.network, self._hear):
                run_virtually(main, SimulatedLoop)
        finally:
            gc.enable()
        return self

    async def _live(self, machine: Machine) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # it was killed, or its machine lost power
            await asyncio.sleep(machine.start_after)
            agent = self.agents[machine.number] = SimulatedAgent(self.tasks[machine.number])
            await agent.run()
            self.ended[machine.number] = asyncio.get_running_loop().time()

    # -- what happens

    def _hear(self, node: int, event: Message) -> None:
        for each in [each for each in self.awaited if each[0](node, event)]:
            self.awaited.remove(each)
            each[1].set_result(event)

    async def until(self, kind: str, node: int = 0, **values: Any) -> Message:
        """Return the next event of this kind and with these values in a node's record."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        wanted = {"kind": kind, **values}
        self.awaited.append((lambda who, event: who == node and wanted.items() <= event.items(), future))
        return await future

    async def until_joined(self, count: int) -> None:
        """Return as soon as so many nodes have joined."""
        while sum(event["kind"] == "joined" for event in self.events(0)) < count:
            await self.until("joined")

    def launcher(self, node: int) -> SimulatedLauncher:
        """Return a node's launcher."""
        return SimulatedLauncher.of[self.machines[node]]

    def fail(self, rank: int, how: Mapping[str, Any] = KILLED) -> None:
        """Have a rank fail by itself; the others hear it from their connections, some sooner than node 0 does."""
        culprit = self.launcher(rank // self.nproc)
        culprit.end_ranks(culprit.attempt, how, (rank,))
        self._collective_breaks(culprit.attempt, 0.0, 1.0)

    def kill_launcher(self, node: int) -> None:
        """Have a node's launcher be killed with its ranks. The other ranks lose their connections to them, and some of
        these ends are reported before this node's agent hears of its launcher.
        """
        killed, loop = self.launcher(node), asyncio.get_running_loop()
        attempt = killed.attempt
        killed.be_killed(self.chance.uniform(0.0, 1.0))
        for other in set(self.live) - {node}:
            how = self.chance.choice(BROKEN)
            loop.call_later(self.chance.uniform(0.0, 1.0), self.launcher(other).end_ranks, attempt, how)

    def _collective_breaks(self, attempt: int, least: float, most: float) -> None:
        loop = asyncio.get_running_loop()
        for node in range(self.nodes):
            if node not in self.gone:
                loop.call_later(self.chance.uniform(least, most), self.launcher(node).end_ranks, attempt, VICTIM)

    def lose_power(self, nodes: Iterable[int]) -> None:
        """Have nodes lose power at once: not a word from them. The others' ranks notice, sooner or later."""
        for node in nodes:
            self.machines[node].lose_power()
            self._end_agent(node)
        if self.launcher_attempt >= 0:
            self._collective_breaks(self.launcher_attempt, 3.0, 60.0)

    def kill_agent(self, node: int) -> None:
        """Have a node's agent killed: its system closes its connections."""
        self._end_agent(node)
        for end in list(self.machines[node].ends):
            end.close()

    def _end_agent(self, node: int) -> None:
        self.gone.add(node)
        if node in self.running:
            self.running[node].cancel()
        if node in self.agents:
            for task in self.agents[node].tasks:
                task.cancel()
            self.launcher(node).kill()

    @property
    def launcher_attempt(self) -> int:
        """Return the attempt whose ranks run; -1 before the first."""
        return max((launcher.attempt for launcher in SimulatedLauncher.of.values() if launcher.running), default=-1)

    def cut_off(self, machines: Iterable[Machine], seconds: float) -> None:
        """Have nothing get to machines or away from them for so long: their switch starts again."""
        for machine in machines:
            machine.cut_until = asyncio.get_running_loop().time() + seconds

    def finish(self) -> None:
        """Have all ranks end well, within two seconds."""
        for node in self.live:
            self.launcher(node).end_well(self.chance.uniform(0.0, 2.0))

    # -- what came of it

    def events(self, node: int, *kinds: str) -> list[Message]:
        """Return what a node has recorded."""
        log: Any = self.agents[node].events if node in self.agents else MemoryLog("", node)
        return [event for event in log.events if not kinds or event["kind"] in kinds]

    def at(self, kind: str, node: int = 0) -> float:
        """Return when a node has recorded this, the last time."""
        return float(self.events(node, kind)[-1]["mono"])

    @property
    def end(self) -> Message:
        """Return how the gang has ended."""
        (event,) = self.events(0, "gang_ended")
        return event

    @property
    def live(self) -> list[int]:
        """Return the nodes that neither lost power nor their agent."""
        return [node for node in range(self.nodes) if node not in self.gone]
