"""Starts a run's agents again after a loss: chooses a machine for each node, and builds each node's task."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from orchestrator.backends.agents.handle import SECRETS, read_handle
from orchestrator.backends.agents.liveness import seen_now
from orchestrator.backends.agents.reachability import cut_off
from orchestrator.backends.agents.start import Start
from orchestrator.backends.hosts import MachinesError, all_of, on_all
from orchestrator.backends.mirror.given import newest_here, newest_there, with_given_checkpoint
from orchestrator.backends.mirror.growing import Copy, update_all
from orchestrator.backends.mirror.upload import SERVER_PYTHON, check_machine
from orchestrator.backends.settings import AgentsSettings, Host, remote_folder
from orchestrator.errors import BackendError
from orchestrator.outcome.machines import choose, nodes_to_avoid
from orchestrator.outcome.restart import Relaunch, budget_left
from orchestrator.protocol.events import GoingOnWithout, Replaced, SubmitFailed, WaitingForHosts, of
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.task import NodeTask, apart
from orchestrator.runs import claims
from orchestrator.runs.start_lock import being_started
from orchestrator.runs.store import RunDir
from orchestrator.transport.credentials import credentials_for, with_credentials
from orchestrator.transport.in_job import ended, is_over
from orchestrator.transport.machine import Machines

Said = TypeVar("Said", GoingOnWithout, Replaced, WaitingForHosts)


def relaunch(run: RunDir, pool: Machines, again: Relaunch) -> bool:
    """Start the agents again on enough machines. Return False while the run waits for machines, and after a cancel.

    A machine that refuses for any reason counts as lost, and the machines are chosen again without it. If the machines
    belonged to a scheduler's job that has ended, raises a BackendError that is not transient.
    """
    settings = AgentsSettings.of(run.record().profile)
    if (job := settings.hosts[0].address.job) and is_over(job):
        raise BackendError(f"{again.reason}; {ended(job)}")
    plan = run.read("plan.json") or {}
    planned = apart(plan.get("shared", {}), plan["tasks"])

    def check(number: int, host: Host) -> None:
        task = replace(planned[number], python=_python_of(host, settings))
        check_machine(pool.session(host.address, settings.workdir), run, task, settings.workdir)

    if run.is_cancelled:
        return False
    refused: dict[Host, BackendError] = {}
    while (by_plan_node := hosts_for_start(run, pool, settings, again, check, refused)) is not None:
        order = in_order(by_plan_node, _newest_of_each(run, pool, settings, by_plan_node), newest_here(run))
        _bring_logs_of_renumbered(run, pool, settings, order)
        hosts = {node: by_plan_node[plan_node] for node, plan_node in enumerate(order)}
        tasks = _tasks(run, planned, settings, again, order, hosts)
        try:
            with being_started(run):  # another machine may have taken the run, and started its agents
                now = read_handle(run)
                if not claims.is_ours(run) or (now and now.start >= again.start and now.state.final):
                    return False
                Start(pool, run, settings, hosts).begin(tasks, tuple(order))
        except MachinesError as error:
            refused |= {hosts[node]: each for node, each in error.by_number.items()}
        else:
            return True
    return False


def hosts_for_start(
    run: RunDir,
    pool: Machines,
    settings: AgentsSettings,
    again: Relaunch,
    check: Callable[[int, Host], object],
    refused: Mapping[Host, BackendError] = MappingProxyType({}),
) -> dict[int, Host] | None:
    """Return the machine of each of the plan's nodes for the next start; None while the run waits for a machine.

    A machine is lost if it is out of reach, if the others can't reach it, if `check` raises BackendError for it, or if
    it is in `refused`, because it refused this start. A free machine replaces each lost machine and each machine whose
    GPU failed. If no machine is free, the machine whose GPU failed is used again, and lost machines are left out if the
    profile's `min_nodes` allows that. A machine that an earlier start left out takes part again once it is reachable.
    """
    handle = read_handle(run)
    assert handle is not None
    hosts = handle.hosts_of_plan(settings)
    seen = {node: each for node, each in seen_now(run, handle).items() if each.by == claims.here()}
    known = {handle.plan_nodes[node] for node, each in seen.items() if each.unreachable_since is not None}
    lost = {number: BackendError(f"{hosts[number].name}: out of reach", transient=True) for number in known}
    lost |= {number: refused[host] for number, host in hosts.items() if host in refused}
    lost |= on_all(check, {number: host for number, host in hosts.items() if number not in lost})[1]
    free = [host for host in handle.free_hosts(settings) if host not in refused]
    failed = nodes_to_avoid(run.events(), again.attempt) if handle.start < again.start else set()
    bad = {handle.plan_nodes[node] for node in failed} - set(lost)
    has_spares = any(host not in handle.former for host in free)
    lost |= {number: BackendError(f"{hosts[number].name}: its GPU failed") for number in bad if has_spares}

    def cut() -> dict[int, BackendError]:
        there = {number: host for number, host in hosts.items() if number not in lost}
        return cut_off(pool, settings, there, free)

    lost |= cut()
    replaced = {each.lost: each.by for each in _said(run, Replaced, again)}
    while choice := choose(hosts, lost, free, settings.min_nodes).replaced:
        number, spare = next(iter(choice.items()))
        free.remove(spare)
        with contextlib.suppress(BackendError):
            check(number, spare)
            if replaced.get(number) != spare.name:  # otherwise an earlier try of this start has recorded it
                event = Replaced(again.start, number, hosts[number].name, by=spare.name, why=lost[number].message)
                run.append_event(event)
                replaced[number] = spare.name
            hosts[number] = spare
            del lost[number]
        if not (lost and free):
            lost |= cut()
    lost = {number: error for number, error in lost.items() if number not in bad}
    if not lost:
        return hosts
    names = {hosts[number].name: error.message for number, error in lost.items()}
    if choose(hosts, lost, (), settings.min_nodes).is_enough:
        left = len(hosts) - len(lost)
        if [each.hosts for each in _said(run, GoingOnWithout, again)[-1:]] != [tuple(sorted(names))]:
            reasons = tuple(names[name] for name in sorted(names))
            run.append_event(GoingOnWithout(again.start, tuple(sorted(names)), nodes=left, of=len(hosts), why=reasons))
        return {number: host for number, host in hosts.items() if number not in lost}
    is_blind = claims.is_away(run) and len(lost) == len(hosts)  # another machine may reach them
    _wait_for(run, again, names, math.inf if is_blind else settings.node_wait)
    return None


def in_order(plan_nodes: Collection[int], newest: Mapping[int, Progress], here: Progress) -> list[int]:
    """Return the plan's nodes in the order of the next start: the machine with the newest checkpoint comes first.

    Keep the plan's order if no machine has a checkpoint, or if the submitting machine has a newer checkpoint, which it
    then sends to node 0.
    """
    found = max(plan_nodes, key=lambda number: (newest.get(number, Progress()), -number))
    if newest.get(found, Progress()) < here or found not in newest or newest[found] == Progress():
        return sorted(plan_nodes)
    return [found, *sorted(number for number in plan_nodes if number != found)]


def _newest_of_each(
    run: RunDir, pool: Machines, settings: AgentsSettings, by_plan_node: Mapping[int, Host]
) -> dict[int, Progress]:
    """Return the progress of the run's newest checkpoint on each machine, such as its step, as a dict keyed by node
    number.
    """
    found, _ = on_all(lambda _, host: newest_there(pool.session(host.address, settings.workdir), run), by_plan_node)
    return found


def _said(run: RunDir, kind: type[Said], again: Relaunch) -> list[Said]:
    """Return the events of class `kind` that are already recorded for this start. If the start is tried again, these
    events are not recorded again.
    """
    return [each for each in of(run.events(), kind) if each.start == again.start]


def _wait_for(run: RunDir, again: Relaunch, lost: Mapping[str, str], limit: float) -> None:
    """Record which machines the run waits for and why, unless that is already recorded. Once the run has waited for the
    profile's `node_wait`, end it.
    """
    said, hosts = _said(run, WaitingForHosts, again), tuple(sorted(lost))
    why = tuple(lost[host] for host in hosts)
    if not any(each.hosts == hosts and _alike(each.why, why) for each in said):
        run.append_event(WaitingForHosts(again.start, hosts, why))
    if said and time.time() - said[0].time > limit:
        names, reasons = ", ".join(sorted(lost)), "; ".join(lost.values())
        reason = f"{again.reason}; {names} did not come back within {limit:g} s ({reasons})"
        run.append_event(SubmitFailed(reason))


def _alike(said: Sequence[str], why: Sequence[str]) -> bool:
    """Return True if the two lists of reasons are equal apart from numbers, such as the free disk space."""
    return [re.sub(r"\d+", "", each) for each in said] == [re.sub(r"\d+", "", each) for each in why]


def _bring_logs_of_renumbered(run: RunDir, pool: Machines, settings: AgentsSettings, order: list[int]) -> None:
    """Copy all logs of machines that get another node number in this start, because later only logs of the new number
    are copied.
    """
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

    failed = {node: error for node, error in on_all(bring, moved)[1].items() if error.transient}
    if failed:  # the start is tried again
        raise all_of(failed)


def _tasks(
    run: RunDir,
    planned: Sequence[NodeTask],
    settings: AgentsSettings,
    again: Relaunch,
    order: list[int],
    hosts: Mapping[int, Host],
) -> tuple[NodeTask, ...]:
    """Return the nodes' tasks, with the credentials of this start and the remaining retry budgets."""
    kept, taken = run.read(SECRETS) or {}, set(hosts.values())
    retry, has_spares = budget_left(planned[0].retry, run.events()), any(each not in taken for each in settings.spares)
    tasks = tuple(
        replace(
            planned[plan_node],
            node_rank=node,
            nnodes=len(order),
            python=_python_of(hosts[node], settings),
            start=again.start,
            attempt=again.attempt,
            retry=retry,
            has_spares=has_spares,
        )
        for node, plan_node in enumerate(order)
    )
    return with_given_checkpoint(
        with_credentials(tasks, credentials_of(run, kept, again, len(order)), kept.get("secrets", {}))
    )


def _python_of(host: Host, settings: AgentsSettings) -> str:
    return host.python or settings.python or SERVER_PYTHON


def credentials_of(run: RunDir, kept: Mapping[str, Any], again: Relaunch, nnodes: int) -> str:
    """Return the start's credentials. They are stored with the secrets, so that an interrupted start continues with the
    same credentials.
    """
    if kept.get("start") == again.start and bool(kept["credentials"]) == (nnodes > 1):
        return str(kept["credentials"])
    credentials = credentials_for(nnodes)
    run.write(SECRETS, {**kept, "start": again.start, "credentials": credentials}, private=True)
    return credentials
