"""Samples a node every 2 s, writes the samples to a file, and checks whether the node is idle. The sampling runs as a
task beside the agent's other work.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from typing import Callable

from orchestrator.node.agent.sampling.counters import CounterReader
from orchestrator.node.agent.sampling.gpus import gpu_samples
from orchestrator.node.agent.sampling.idle import IdleWatch
from orchestrator.node.agent.sampling.ring_file import SampleFile
from orchestrator.node.agent.sampling.sampler import Moment, Sampler
from orchestrator.node.agent.sampling.trees import RankTrees, on_host
from orchestrator.node.agent.stall_detector import read_heartbeat
from orchestrator.node.system.processes import marked
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.events import Event, SamplingFailed
from orchestrator.protocol.layout import attempt_folder, node_folder, samples_file
from orchestrator.protocol.messages import Report, Unused, Used
from orchestrator.protocol.places.devices import GIVEN, words_of
from orchestrator.protocol.samples import FINE_SECONDS, Sample, merged, seconds_per_line
from orchestrator.protocol.task import NodeTask


@dataclass(frozen=True)
class Started:
    """The ranks of the running attempt, and the processes that the launcher has started for these ranks."""

    attempt: int = 0
    pids: dict[int, int] = field(default_factory=dict)  # rank -> the pid that the launcher sees
    since: float = 0.0  # the time at which the agent ordered the launcher to start the ranks

    def without(self, rank: int) -> Started:
        """Return a copy without a rank that has ended."""
        return replace(self, pids={each: pid for each, pid in self.pids.items() if each != rank})


class Sampling:
    """The sampling of one node from the agent's start to the agent's end.

    `started` returns the ranks, `tell` sends reports to the leader, `record` writes an event, and `watch` receives each
    sample.
    """

    def __init__(
        self,
        task: NodeTask,
        started: Callable[[], Started],
        tell: Callable[[Report], None],
        record: Callable[[Event], None],
        watch: Callable[[Sample], None] = lambda _: None,
    ) -> None:
        self.task, self.started, self.tell, self.record, self.watch = task, started, tell, record, watch
        self.node_dir = node_folder(task.run_dir, task.node_rank)
        self.file = SampleFile(samples_file(self.node_dir))
        given = words_of(task.env.get(GIVEN, ""))
        self.sampler = Sampler(CounterReader(), os.cpu_count() or 1, lambda: gpu_samples(given))
        self.trees = RankTrees()
        self.pending: list[Sample] = []
        self.begun = time.monotonic()
        self.seen = Started()  # the ranks at the last sample
        self.hosts: dict[int, int] = {}  # rank -> the pid on this machine
        self.idle = IdleWatch.of(task.idle)
        self.idle_attempt, self.is_idle = task.attempt, False
        self.problem = ""

    async def run(self) -> None:
        """Take samples until the agent ends. If a disk hangs, only this loop waits for the disk."""
        while True:
            started = self.started()
            try:
                sample = await in_thread(self.look, started)
            # The disk is full or the folder was removed; the training does not need the samples.
            except (OSError, ValueError) as error:
                sample = None
                self._complain(error)
            if sample is not None:
                self.watch(sample)
                if self.idle is not None:
                    self._watch(self.idle, sample)
            await asyncio.sleep(FINE_SECONDS)

    def look(self, started: Started) -> Sample | None:
        """Take a sample. If the next line of the file is due, write it. Raises OSError if the line can't be written."""
        if started != self.seen:
            self.seen, self.hosts = started, self._on_this_machine(started)
        trees = self.trees.of(self.hosts, ask_for_rank=self.task.launcher in ("torchrun", "accelerate"))
        folder = attempt_folder(self.node_dir, started.attempt)
        beats = {rank: read_heartbeat(f"{folder}/beat_{rank}") for rank in trees}
        moment = Moment(time.monotonic(), time.time(), self.task.start, started.attempt)
        sample = self.sampler.take(moment, trees, beats)
        if sample is not None:
            self.pending.append(sample)
            due = seconds_per_line(moment.now - self.begun) - FINE_SECONDS / 2
            if sum(each.seconds for each in self.pending) >= due:
                self.flush()
        return sample

    def _on_this_machine(self, started: Started) -> dict[int, int]:
        if self.task.container is None:
            return started.pids
        return on_host(started.pids, (each.pid for each in marked(self.task.run_id, self.task.node_rank)))

    def flush(self) -> None:
        """Combine the samples since the last line, and write them as one line. Raises OSError if the line can't be
        written.
        """
        pending, self.pending = self.pending, []  # a sample may still be taken in a thread while the agent ends
        if pending:
            self.file.append(merged(pending))

    def end(self) -> float | None:
        """Write the last line. Return the joules that the GPUs have used; None if no GPU reports its power."""
        try:
            self.flush()
        except OSError as error:
            self._complain(error)
        return self.sampler.joules

    def _complain(self, error: Exception) -> None:
        if str(error) != self.problem:
            self.problem = str(error)
            self.record(SamplingFailed(self.problem))

    def _watch(self, idle: IdleWatch, sample: Sample) -> None:
        if sample.attempt != self.idle_attempt:  # the leader has dropped this node's report about the previous attempt
            idle.reset()
            self.idle_attempt, self.is_idle = sample.attempt, False
        is_idle = idle.add(sample)
        if is_idle != self.is_idle:
            self.is_idle = is_idle
            self.tell(Unused(sample.attempt, round(idle.seconds), idle.what) if is_idle else Used())
