"""Another start of an SSH run: on which machines, which of them is node 0, and what each is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.backends.remote.given import newest_here, newest_there, with_given_checkpoint
from orchestrator.backends.remote.hosts import on_all
from orchestrator.backends.remote.transfer import Copy, update_all
from orchestrator.backends.settings import Host, SshSettings, profile_of, remote_folder
from orchestrator.backends.ssh.agents import start_agents
from orchestrator.backends.ssh.handle import SECRETS, read_handle
from orchestrator.backends.ssh.liveness import unreachable_nodes
from orchestrator.backends.ssh.ways import cut_off
from orchestrator.errors import BackendError
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.gpu_errors import Blame, gpu_error_of
from orchestrator.protocol.restart import Progress
from orchestrator.protocol.task import NodeTask, apart
from orchestrator.runs.restarts.relaunch import Relaunch, budget_left
from orchestrator.runs.state import Event
from orchestrator.runs.store import RunDir
from orchestrator.transport.credentials import credentials_for, entrusted
from orchestrator.transport.pool import ConnectionPool


def relaunch(run: RunDir, pool: ConnectionPool, again: Relaunch) -> bool:
    """Start the agents anew, where enough machines answer; BackendError names those that can't take part.

    False where machines are waited for.
    """
    settings = SshSettings.of(profile_of(run))
    by_plan_node = machines(run, pool, settings, again)
    if by_plan_node is None:
        return False
    order = in_order(by_plan_node, _newest_of_each(run, pool, settings, by_plan_node), newest_here(run))
    _bring_logs_of_renumbered(run, pool, settings, order)
    hosts = {node: by_plan_node[plan_node] for node, plan_node in enumerate(order)}
    start_agents(pool, run, settings, hosts, _tasks(run, settings, again, order, hosts), tuple(order))
    return True


def machines(run: RunDir, pool: ConnectionPool, settings: SshSettings, again: Relaunch) -> dict[int, Host] | None:
    """Return the machine of each of the plan's nodes that takes part in the next start; None while one is waited for.

    A spare takes the place of one that is out of reach, that the others can't reach, or whose GPU failed. Without a
    spare the start goes on with those that are there, if the profile's `min_nodes` lets it; one whose GPU failed is
    there. A machine that was left out before, and is back, takes part again.
    """
    handle = read_handle(run)
    assert handle is not None
    before = handle.by_plan_node
    hosts = {number: before.get(number, host) for number, host in enumerate(settings.hosts)}
    known = {handle.plan_nodes[node] for node in unreachable_nodes(run)}

    def ask(_: int, host: Host) -> Any:
        session = pool.session(host.address, settings.workdir)
        return session.call("hello", workdir=settings.workdir, shared_parent=settings.shared_parent)

    _, lost = on_all(ask, {number: host for number, host in hosts.items() if number not in known})
    lost |= {number: BackendError(f"{hosts[number].name}: out of reach", transient=True) for number in known}
    free = list(_free_spares(settings, hosts))
    failed = nodes_with_failed_gpus(run.events(), again) if handle.start < again.start else set()
    bad = {handle.plan_nodes[node] for node in failed} - set(lost)
    lost |= {number: BackendError(f"{hosts[number].name}: its GPU failed") for number in bad if free}

    def cut() -> dict[int, BackendError]:
        there = {number: host for number, host in hosts.items() if number not in lost}
        return cut_off(pool, settings, there, free)

    lost |= cut()
    replaced: dict[Any, Any] = {}
    if lost and free:
        replaced = {each.get("lost"): each.get("by") for each in _said(run, EventKind.REPLACED, again)}
    while lost and free:
        for number in sorted(lost):
            while number in lost and free:
                spare = free.pop(0)
                with contextlib.suppress(BackendError):
                    ask(number, spare)
                    _record_replaced(run, again, number, hosts[number], spare, replaced)
                    hosts[number] = spare
                    del lost[number]
        lost |= cut()
    lost = {number: error for number, error in lost.items() if number not in bad}
    if not lost:
        return hosts
    names = {hosts[number].name: error.message for number, error in lost.items()}
    left = len(hosts) - len(lost)
    if left >= (settings.min_nodes or len(hosts)):
        if [each.get("hosts") for each in _said(run, EventKind.GOING_ON_WITHOUT, again)[-1:]] != [sorted(names)]:
            run.append_event(
                EventKind.GOING_ON_WITHOUT, start=again.start, hosts=sorted(names), nodes=left, of=len(hosts)
            )
        return {number: host for number, host in hosts.items() if number not in lost}
    _wait_for(run, again, names, settings.node_wait)
    return None


def nodes_with_failed_gpus(events: Iterable[Event], again: Relaunch) -> set[int]:
    """Return the node, by its number then, whose GPU or driver ended the attempt before this start. Pure."""
    failed = [event for event in events if event["kind"] == EventKind.ATTEMPT_FAILED]
    culprits = [event["culprit"] for event in failed if event.get("attempt") == again.attempt - 1]
    found = ((culprit.get("node"), gpu_error_of(culprit)) for culprit in culprits if isinstance(culprit, Mapping))
    return {node for node, error in found if type(node) is int and error is not None and error.blame is Blame.MACHINE}


def _record_replaced(run: RunDir, again: Relaunch, number: int, host: Host, spare: Host, said: dict[Any, Any]) -> None:
    """Record it where that is not what has been `said` last of this node, which is known from then on."""
    if said.get(number) != spare.name:
        run.append_event(EventKind.REPLACED, start=again.start, lost=number, host=host.name, by=spare.name)
        said[number] = spare.name


def in_order(plan_nodes: Collection[int], newest: Mapping[int, Progress], here: Progress) -> list[int]:
    """Return the plan's nodes in the order of the next start: first the one whose machine has the newest checkpoint.

    In their own order where none has one, or where a newer one is `here`, from where node 0 is given it. Pure.
    """
    found = max(plan_nodes, key=lambda number: (newest.get(number, Progress()), -number))
    if newest.get(found, Progress()) < here or found not in newest or newest[found] == Progress():
        return sorted(plan_nodes)
    return [found, *sorted(number for number in plan_nodes if number != found)]


def _newest_of_each(
    run: RunDir, pool: ConnectionPool, settings: SshSettings, by_plan_node: Mapping[int, Host]
) -> dict[int, Progress]:
    """Return how far the newest checkpoint of the run is that each machine has."""
    found, _ = on_all(lambda _, host: newest_there(pool.session(host.address, settings.workdir), run), by_plan_node)
    return found


def _said(run: RunDir, kind: str, again: Relaunch) -> list[dict[str, Any]]:
    """Return what has been recorded of this kind for this start: nothing is said twice, however often it is tried."""
    return [each for each in run.events() if each["kind"] == kind and each.get("start") == again.start]


def _wait_for(run: RunDir, again: Relaunch, lost: Mapping[str, str], limit: float) -> None:
    """Say once who is waited for; end the run when that has lasted for the profile's node_wait."""
    said = _said(run, "waiting_for_hosts", again)
    if not said:
        run.append_event("waiting_for_hosts", start=again.start, hosts=sorted(lost), why=list(lost.values()))
    elif time.time() - said[0].get("time", 0.0) > limit:
        names, reasons = ", ".join(sorted(lost)), "; ".join(lost.values())
        why = f"{again.reason}; {names} did not come back within {limit:g} s ({reasons})"
        run.append_event("submit_failed", reason=why)


def _bring_logs_of_renumbered(run: RunDir, pool: ConnectionPool, settings: SshSettings, order: list[int]) -> None:
    """Bring all logs of machines that get another number: afterwards only those of the new number are looked for."""
    handle = read_handle(run)
    assert handle is not None
    numbers = {plan_node: node for node, plan_node in enumerate(order)}
    moved = {
        node: handle.hosts[node]
        for node, plan_node in enumerate(handle.plan_nodes)
        if numbers.get(plan_node, node) != node and (run.node(node) / "events.jsonl").exists()
    }

    def bring(node: int, host: Host) -> None:
        copy = Copy(run, node, remote_folder(run), "", None)
        update_all([copy], pool.session(host.address, settings.workdir), only_logs=True)

    on_all(bring, moved)  # one that is lost meanwhile is missed when its agent is started


def _tasks(
    run: RunDir, settings: SshSettings, again: Relaunch, order: list[int], hosts: Mapping[int, Host]
) -> tuple[NodeTask, ...]:
    """Return what the nodes are told now: with credentials of this start, and what is left of the budgets."""
    plan, kept = run.read("plan.json") or {}, run.read(SECRETS) or {}
    planned = apart(plan.get("shared", {}), plan["tasks"])
    retry, has_spares = budget_left(planned[0].retry, run.events()), bool(_free_spares(settings, hosts))
    tasks = tuple(
        replace(
            planned[plan_node],
            node_rank=node,
            nnodes=len(order),
            python=hosts[node].python or settings.python or "python3",
            start=again.start,
            attempt=again.attempt,
            retry=retry,
            has_spares=has_spares,
        )
        for node, plan_node in enumerate(order)
    )
    return with_given_checkpoint(
        entrusted(tasks, credentials_of(run, kept, again, len(order)), kept.get("secrets", {}))
    )


def _free_spares(settings: SshSettings, hosts: Mapping[int, Host]) -> tuple[Host, ...]:
    """Return the spares that are no node's machine."""
    taken = set(hosts.values())
    return tuple(spare for spare in settings.spares if spare not in taken)


def credentials_of(run: RunDir, kept: Mapping[str, Any], again: Relaunch, nnodes: int) -> str:
    """Return the start's credentials, kept with the secrets: a start that was cut off goes on with the same ones."""
    if kept.get("start") == again.start and bool(kept["credentials"]) == (nnodes > 1):
        return str(kept["credentials"])
    credentials = credentials_for(nnodes)
    run.write(SECRETS, {**kept, "start": again.start, "credentials": credentials}, private=True)
    return credentials
