"""Another start of an SSH run: on which machines, which of them is node 0, and what each is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.backends.remote.checkpoints import remote_checkpoints, with_given_checkpoint
from orchestrator.backends.remote.hosts import on_all
from orchestrator.backends.remote.transfer import Copy, sole_writer, update_all
from orchestrator.backends.settings import Host, SshSettings, profile_of, remote_folder
from orchestrator.backends.ssh.agents import start_agents
from orchestrator.backends.ssh.handle import SECRETS, read_handle
from orchestrator.backends.ssh.liveness import unreachable_nodes
from orchestrator.errors import BackendError
from orchestrator.protocol.checkpoint_dir import newest_step, step_of
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.relaunch import Relaunch, budget_left
from orchestrator.runs.store import RunDir
from orchestrator.transport.credentials import credentials_for, entrusted
from orchestrator.transport.pool import ConnectionPool


def relaunch(run: RunDir, pool: ConnectionPool, again: Relaunch) -> None:
    """Start the agents anew, where enough machines answer; BackendError names those that can't take part."""
    settings = SshSettings.of(profile_of(run))
    by_plan_node = machines(run, pool, settings, again)
    if by_plan_node is None:
        return
    order = in_order(by_plan_node, _newest_steps(run, pool, settings, by_plan_node), _newest_here(run))
    _bring_logs_of_renumbered(run, pool, settings, order)
    hosts = {node: by_plan_node[plan_node] for node, plan_node in enumerate(order)}
    start_agents(pool, run, settings, hosts, _tasks(run, settings, again, order, hosts), tuple(order))


def machines(run: RunDir, pool: ConnectionPool, settings: SshSettings, again: Relaunch) -> dict[int, Host] | None:
    """Return the machine of each of the plan's nodes that takes part in the next start; None while one is waited for.

    A spare takes the place of one that is out of reach. Without a spare the start goes on with those that are there,
    if the profile's `min_nodes` lets it. A machine that was left out before, and is back, takes part again.
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
    free = [spare for spare in settings.spares if spare not in hosts.values()]
    for number in sorted(lost):
        while number in lost and free:
            spare = free.pop(0)
            with contextlib.suppress(BackendError):
                ask(number, spare)
                said = [each.get("by") for each in _said(run, EventKind.REPLACED, again) if each.get("lost") == number]
                if said[-1:] != [spare.name]:
                    words = {"lost": number, "host": hosts[number].name, "by": spare.name}
                    run.append_event(EventKind.REPLACED, start=again.start, **words)
                hosts[number] = spare
                del lost[number]
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


def in_order(plan_nodes: Collection[int], steps: Mapping[int, int], here: int) -> list[int]:
    """Return the plan's nodes in the order of the next start: first the one whose machine has the newest checkpoint.

    In their own order where none has one, or where a newer one is `here`, from where node 0 is given it. Pure.
    """
    found = max(plan_nodes, key=lambda number: (steps.get(number, -1), -number))
    if steps.get(found, -1) < max(here, 0):
        return sorted(plan_nodes)
    return [found, *sorted(number for number in plan_nodes if number != found)]


def _newest_steps(
    run: RunDir, pool: ConnectionPool, settings: SshSettings, by_plan_node: Mapping[int, Host]
) -> dict[int, int]:
    """Return the step of the newest checkpoint that each machine has in the run's folder of checkpoints."""
    folder = remote_checkpoints(run)

    def ask(_: int, host: Host) -> int:
        names = pool.session(host.address, settings.workdir).call("steps", folder=folder)[0]["steps"]
        return max((step for name in names if (step := step_of(name)) is not None), default=-1)

    found, _ = on_all(ask, by_plan_node)
    return found


def _newest_here(run: RunDir) -> int:
    step = newest_step(run.path / "checkpoints")
    return -1 if step is None else step


def _said(run: RunDir, kind: str, again: Relaunch) -> list[dict[str, Any]]:
    """Return what has been recorded of this kind for this start: nothing is said twice, however often it is tried."""
    return [each for each in run.events() if each["kind"] == kind and each.get("start") == again.start]


def _wait_for(run: RunDir, again: Relaunch, lost: Mapping[str, str], limit: float) -> None:
    """Say once who is waited for; end the run when that has lasted for the profile's node_wait."""
    said = _said(run, "waiting_for_hosts", again)
    if not said:
        run.append_event("waiting_for_hosts", start=again.start, hosts=sorted(lost), why=list(lost.values()))
    elif time.time() - said[0].get("time", 0.0) > limit:
        why = f"{again.reason}; {', '.join(sorted(lost))} did not come back within {limit:g} s"
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

    with sole_writer(run.path, "logs.lock"):
        on_all(bring, moved)  # one that is lost meanwhile is missed when its agent is started


def _tasks(
    run: RunDir, settings: SshSettings, again: Relaunch, order: list[int], hosts: Mapping[int, Host]
) -> tuple[NodeTask, ...]:
    """Return what the nodes are told now: with credentials of this start, and what is left of the budgets."""
    plan, kept = run.read("plan.json") or {}, run.read(SECRETS) or {}
    planned = [NodeTask.from_json(task) for task in plan["tasks"]]
    retry = budget_left(planned[0].retry, run.events())
    tasks = tuple(
        replace(
            planned[plan_node],
            node_rank=node,
            nnodes=len(order),
            python=hosts[node].python or settings.python or "python3",
            start=again.start,
            attempt=again.attempt,
            retry=retry,
        )
        for node, plan_node in enumerate(order)
    )
    return with_given_checkpoint(
        entrusted(tasks, credentials_of(run, kept, again, len(order)), kept.get("secrets", {}))
    )


def credentials_of(run: RunDir, kept: Mapping[str, Any], again: Relaunch, nnodes: int) -> str:
    """Return the start's credentials, kept with the secrets: a start that was cut off goes on with the same ones."""
    if kept.get("start") == again.start and bool(kept["credentials"]) == (nnodes > 1):
        return str(kept["credentials"])
    credentials = credentials_for(nnodes)
    run.write(SECRETS, {**kept, "start": again.start, "credentials": credentials}, private=True)
    return credentials
