"""The command `orch drill`: causes a fault in a run of a job that orch ships, and compares the run's end with the end
that orch promises.

Only processes of that run are killed or stopped. On the nodes, they are identified by the run's records and by the
variable ORCH_MARK in their environment.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.backends import backend_for
from orchestrator.errors import BackendError, OrchError, UsageError
from orchestrator.looking.run import POLL_SECONDS, states, wait
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import send_signal, wait_gone
from orchestrator.operations import runs
from orchestrator.operations.debugging.drill_promises import (
    Account,
    Promise,
    Where,
    account,
    differences,
    length_of,
    promise_of,
)
from orchestrator.operations.submission import submit
from orchestrator.outcome.verdict import NodeState
from orchestrator.prepare.prepare import Prepared, plan_for
from orchestrator.protocol.checkpoints.checkpoint_dir import newest
from orchestrator.protocol.debugging.fault import KILLS, Fault
from orchestrator.protocol.events import LeftBehind, of
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import archive_file
from orchestrator.runs.files.checkpoints import checkpoint_folder
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir, live_runs
from orchestrator.specs.documents.lookup import shipped
from orchestrator.specs.plan import LaunchPlan
from orchestrator.specs.profile import SshProfile
from orchestrator.specs.units import seconds as seconds_in
from orchestrator.supervisor.background import attend, supervisor_of
from orchestrator.transport.address import gateway_of

ANSWER_SECONDS: Final = 60.0  # the time in which a node must report the processes that it has killed or stopped
UNATTENDED_SECONDS: Final = 2.0  # the time for which the run continues without a supervisor
END_SECONDS: Final = 900.0  # the time after the fault in which the run must end
LONG: Final = 2.0  # a freeze of this many times limits.link is certainly noticed

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """An order to cause a fault. `target` is a host or the number of a node. The default is the last node."""

    fault: Fault
    target: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return a phrase for the fault, such as `kill of rank`."""
        if self.fault is Fault.FREEZE:
            return f"freeze of {self.target or 'the last node'} for {self.seconds:g} s"
        return f"kill of {self.fault}"


@dataclass(frozen=True)
class Injection:
    """A fault that was caused: its time, its hosts, and the processes that were killed or stopped."""

    at: float
    hosts: tuple[str, ...]
    processes: tuple[str, ...]
    rank: int | None = None


@dataclass(frozen=True)
class Report:
    """The result of a drill with one fault. If `differences` is empty, the run behaved as orch promises."""

    order: str
    run_id: str
    injection: Injection
    promise: Promise
    account: Account
    within: float
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return asdict(self)


# -- the faults


def job_file() -> Path:
    """Return the path of the job that orch ships for drills."""
    return shipped("jobs") / "drill.yaml"


def freeze_of(text: str) -> Order:
    """Return the order that `--freeze HOST:TIME` means. Raises UsageError if the text is not valid."""
    target, colon, time_ = text.rpartition(":")
    hint = "write HOST:TIME, as in --freeze n2:20s"
    if not (colon and target):
        raise UsageError(f"--freeze {text} needs a host and a time", hint)
    try:
        length = seconds_in(time_)
    except ValueError as error:
        raise UsageError(f"--freeze {text}: {error}", hint) from error
    if not length:
        raise UsageError(f"--freeze {text} needs a time longer than 0 s", hint)
    return Order(Fault.FREEZE, target, length)


def orders_for(root: Path, prepared: Prepared, tell: Tell) -> list[Order]:
    """Return orders for all faults that can be caused under this profile."""
    launch = plan_for(root, prepared)
    orders = [Order(fault) for fault in KILLS]
    if live_runs(root):
        tell("the supervisor is not killed, because it also supervises other runs")
        orders.remove(Order(Fault.SUPERVISOR))
    if launch.nnodes > 1:
        orders.append(Order(Fault.FREEZE, seconds=LONG * launch.tasks[0].link_timeout))
    return orders


def check(root: Path, prepared: Prepared, orders: list[Order]) -> None:
    """Raise UsageError if one of the faults can't be caused from this machine."""
    if prepared.is_delegated:
        assert isinstance(prepared.profile, SshProfile), "no other profile names a supervisor"
        host = prepared.profile.supervisor
        there = f"{gateway_of(host).ssh_command} orch drill"
        raise UsageError(f"{host} supervises the runs of this profile", f"run the drill on that machine: {there}")
    if any(order.fault is Fault.SUPERVISOR for order in orders):
        _check_alone(root)


def _check_alone(root: Path, own: RunDir | None = None) -> None:
    others = [run.run_id for run in live_runs(root) if own is None or run.run_id != own.run_id]
    if others:
        hint = "wait until they have ended, or use a separate state folder: ORCH_HOME=~/drill orch drill ..."
        raise UsageError(f"the supervisor is not killed, because it also supervises {', '.join(others[:3])}", hint)


# -- one fault


def drill(root: Path, prepared: Prepared, order: Order, tell: Tell) -> Report:
    """Submit a run, cause the fault, and wait for the run's end. If the run behaved as promised, it is removed.

    Raises BackendError if the run ends before the fault, or if its node can't cause the fault.
    """
    run = submit.submit(root, prepared)
    try:
        tell(f"{order}: {run.run_id} is submitted")
        state = _until_it_trains(run, tell)
        with _injected(root, run, state, order) as (injection, promise):
            tell(f"  {_in_words(order, injection)}")
            end = _until_the_end(root, run, order)
        return _judge(root, run, order, injection, promise, end)
    except BaseException:  # also Ctrl-C
        with contextlib.suppress(OrchError):
            runs.cancel(root, run, now=True)
            runs.remove(root, run)
        raise


def _until_it_trains(run: RunDir, tell: Tell) -> RunState:
    """Wait until the ranks train and this machine has a checkpoint. Before that, the run may be queued. Return the
    run's state.
    """
    last = ""
    for state in states(run):
        if state.is_final:
            reason = state.verdict.reason if state.verdict else ""
            raise BackendError(
                f"{run.run_id} {state.state} before the fault was injected{f': {reason}' if reason else ''}",
                f"submit the same job without a fault: orch submit {job_file().stem} --profile "
                f"{state.profile} --follow",
            )
        if state.state is RunStatus.RUNNING and newest(checkpoint_folder(run)) is not None:
            return state
        if state.state is RunStatus.PENDING and state.detail not in ("", last):
            last = state.detail
            tell(f"  {last}")
    raise AssertionError("states() continues until the run has ended")


def _until_the_end(root: Path, run: RunDir, order: Order) -> RunState:
    if order.fault is Fault.SUPERVISOR:
        time.sleep(UNATTENDED_SECONDS)  # the run must continue while no supervisor runs
        attend(root)
    stop = time.monotonic() + END_SECONDS
    state = wait(run, timeout=END_SECONDS)
    # The supervisor ends the remaining processes, and copies everything to this machine, before it records the verdict.
    while run.ending() is None and time.monotonic() < stop:
        time.sleep(POLL_SECONDS)  # the verdict is a file, and a network file system may send no event about it
    return state_of(run) if state.is_final else state


@contextlib.contextmanager
def _injected(root: Path, run: RunDir, state: RunState, order: Order) -> Iterator[tuple[Injection, Promise]]:
    """Cause the fault. Yield what was done, and how the run should end. After the block, processes that are still
    stopped continue.
    """
    launch, record = LaunchPlan.from_json(run.read("plan.json") or {}), run.record()
    where = Where.SCHEDULER if record.scheduler else Where(record.kind)
    if order.fault is Fault.SUPERVISOR:
        yield _kill_supervisor(root, run), promise_of(order.fault, where)
        return
    nodes, freeze = _nodes(state, order), None
    if order.fault is Fault.FREEZE:
        link = launch.tasks[0].link_timeout
        freeze = length_of(order.seconds, link, is_everything=len(nodes) == len(state.nodes))
        if freeze is None:
            hint = f"freeze the host for {link / 2:g} s at most, or for {link + 5:g} s at least"
            raise UsageError(
                f"a freeze of {order.seconds:g} s is too close to limits.link ({link:g} s), after which a node is lost",
                hint,
            )
    promise = promise_of(order.fault, where, freeze, alone=len(state.nodes) == 1)
    with ExitStack() as going_on:
        injections = [going_on.enter_context(_injected_on(run, node, launch, order)) for node in nodes]
        hosts = tuple(each.hosts[0] for each in injections)
        processes = tuple(process for each in injections for process in each.processes)
        yield Injection(injections[0].at, hosts, processes, injections[0].rank), promise


def _nodes(state: RunState, order: Order) -> list[NodeState]:
    """Return the nodes to which the fault applies. Raises UsageError if the run has no such node."""
    if not order.target:
        return [state.nodes[-1]]
    found = [node for node in state.nodes if order.target in (node.host, str(node.node))]
    if not found:
        known = ", ".join(dict.fromkeys(node.host for node in state.nodes))
        raise UsageError(f"{order.target} is not a host of the run", f"the run's hosts are {known}")
    return found


def _kill_supervisor(root: Path, run: RunDir) -> Injection:
    _check_alone(root, run)
    process = supervisor_of(root)
    if process is None or not send_signal(process, signal.SIGKILL) or wait_gone([process], ANSWER_SECONDS):
        raise BackendError(
            "no supervisor is running on this machine", "orch status starts a supervisor; then try again"
        )
    return Injection(time.time(), ("this machine",), (f"{process.pid} ({process.command})",))


@contextlib.contextmanager
def _injected_on(run: RunDir, node: NodeState, launch: LaunchPlan, order: Order) -> Iterator[Injection]:
    """Let a node cause the fault in its ranks of the run, and yield the node's report.

    Raises BackendError, with the node's message, if the node can't cause the fault.
    """
    task = launch.tasks[0]
    python = launch.commands[0][0].removeprefix("~/")
    archive = archive_file(task.run_dir).removeprefix("~/")  # a command on a node starts in the home folder
    words = [python, "-I", "-S", archive, "fault", task.run_dir, str(node.node), str(order.fault), str(order.seconds)]
    argv = backend_for(run.record().kind).reach(run, node.node, words, terminal=False)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,  # Ctrl-C at the terminal is for this process, which ends the run
        )  # fmt: skip
        try:
            answer, at = _answer(process), time.time()
            if (why := answer.get("error")) is not None or not answer:
                errors.seek(0)
                last = errors.read(4096).decode("utf-8", "replace").strip().splitlines()[-1:]
                raise BackendError(f"{node.host}: the fault could not be injected on this host: {why or ''.join(last)}")
            yield Injection(at, (node.host,), tuple(map(str, answer["processes"])), answer.get("rank"))
            with contextlib.suppress(subprocess.TimeoutExpired):
                # before this process ends, it lets the stopped processes on the node continue
                process.wait(order.seconds + ANSWER_SECONDS)
        finally:
            process.terminate()
            process.wait()


def _answer(process: subprocess.Popen[bytes]) -> Mapping[str, Any]:
    """Return the node's answer, or {} if it does not answer in time. Output of a shell's start-up files is skipped."""
    assert process.stdout is not None
    end, data, stream = time.monotonic() + ANSWER_SECONDS, b"", process.stdout.fileno()
    while (left := end - time.monotonic()) > 0 and select.select([stream], [], [], left)[0]:
        data += (part := os.read(stream, 1 << 16))
        for line in data.split(b"\n")[:-1]:
            with contextlib.suppress(ValueError):
                if isinstance(answer := parse_json(line), dict) and answer.keys() & {"processes", "error"}:
                    return answer
        if not part:
            break
    return {}


# -- the outcome


def _judge(root: Path, run: RunDir, order: Order, injection: Injection, promise: Promise, end: RunState) -> Report:
    """Compare how the run ended with how it should end, and return the report. If they agree, the run is removed."""
    launch = LaunchPlan.from_json(run.read("plan.json") or {})
    link = launch.tasks[0].link_timeout
    if not end.is_final:
        runs.cancel(root, run, now=True)
    left = _left(run)
    seen = account(end, run.events(), result_of(run), injection.at, time.time(), left)
    wrong = differences(promise, seen, link)
    if not wrong:
        runs.remove(root, run)
    return Report(str(order), run.run_id, injection, promise, seen, promise.seconds(link), tuple(wrong))


def _left(run: RunDir) -> tuple[str, ...]:
    """Check the nodes of an ended run. Return a phrase for each process or folder that is left on them."""
    backend = backend_for(run.record().kind)
    found = []
    for proof in backend.clean_up(run):
        found += [f"{name} on {proof.host}" for name in proof.survivors]
        if proof.is_unreachable:
            found.append(f"{proof.host} is out of reach")
        elif proof.ended and backend.look(run).scheduler is None:  # a scheduler's `ended` counts killed agents too
            found.append(f"{proof.ended} processes on {proof.host}, which were killed now")
    there = {each.host for each in left_outputs(run.events())}
    left = [event for event in of(run.events(), LeftBehind) if event.files == 0 or event.host in there]
    return (*found, *(f"the run's folder on {event.host}" for event in left))


def _in_words(order: Order, injection: Injection) -> str:
    done = "stopped" if order.fault is Fault.FREEZE else "killed"
    where = " and ".join(dict.fromkeys(injection.hosts))
    rank = "" if injection.rank is None else f"rank {injection.rank}, "
    return f"{done} on {where}: {rank}process{'es' * (len(injection.processes) > 1)} {', '.join(injection.processes)}"
