"""Another start of an SSH run: on which machines, which of them is node 0, and what each is told."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.backends.copies import Copy, sole_writer
from orchestrator.backends.hosts import Host, hosts_of, newest_checkpoint, on_all, read_handle, workdir_of
from orchestrator.backends.sending import remote_checkpoints, with_given_checkpoint
from orchestrator.errors import BackendError
from orchestrator.starts import WITHOUT, Again, budget_left
from orchestrator.store import RunDir
from orchestrator.wire import NodeTask

if TYPE_CHECKING:
    from orchestrator.backends.ssh import SshBackend

# A node of the plan keeps its number, its seat, through all starts. A start's own nodes are numbered anew: without
# those that are lost, and with the machine first that has the newest checkpoint.


def begin_again(run: RunDir, backend: SshBackend, again: Again) -> None:
    """Start the agents anew, where enough machines answer; BackendError names those that can't take part."""
    profile = (run.read("run.json") or {}).get("profile") or {}
    seated = machines(run, backend, profile, again)
    if seated is None:
        return
    order = in_order(seated, _newest_steps(run, backend, profile, seated), _newest_here(run))
    _bring_logs_of_renumbered(run, backend, profile, order)
    hosts = {node: seated[seat] for node, seat in enumerate(order)}
    backend.start_all(run, profile, hosts, _tasks(run, profile, again, order, hosts), again.start, tuple(order))


def machines(run: RunDir, backend: SshBackend, profile: Mapping[str, Any], again: Again) -> dict[int, Host] | None:
    """The machine of each seat that takes part in the next start; None while one is waited for.

    A spare takes the place of one that is away. Without a spare the start goes on with those that are there, if the
    profile's `min_nodes` lets it. A machine that was left out before, and is back, takes part again.
    """
    handle = read_handle(run)
    assert handle is not None
    own, spares = hosts_of(profile)
    hosts = {seat: handle.seated.get(seat, host) for seat, host in enumerate(own)}
    workdir = workdir_of(profile)
    known = {handle.seats[node] for node in backend.away(run)}

    def ask(_: int, host: Host) -> Any:
        return backend.session(host, workdir).call("hello", workdir=workdir)

    _, away = on_all(ask, {seat: host for seat, host in hosts.items() if seat not in known})
    away |= {seat: BackendError(f"{hosts[seat].name}: out of reach", transient=True) for seat in known}
    free = [spare for spare in spares if spare not in hosts.values()]
    for seat in sorted(away):
        while seat in away and free:
            spare = free.pop(0)
            with contextlib.suppress(BackendError):
                ask(seat, spare)
                run.append_event("replaced", lost=seat, host=hosts[seat].name, by=spare.name)
                hosts[seat] = spare
                del away[seat]
    names = {hosts[seat].name: error.message for seat, error in away.items()}
    if not away:
        return hosts
    if len(hosts) - len(away) >= (profile.get("min_nodes") or len(hosts)):
        if [each.get("hosts") for each in _said(run, WITHOUT, again)[-1:]] != [sorted(names)]:
            left = len(hosts) - len(away)
            run.append_event(WITHOUT, start=again.start, hosts=sorted(names), nodes=left, of=len(hosts))
        return {seat: host for seat, host in hosts.items() if seat not in away}
    _wait_for(run, again, names, float(profile.get("node_wait") or 0))
    return None


def in_order(seats: Collection[int], steps: Mapping[int, int], here: int) -> list[int]:
    """The seats in the order of the next start: first the one whose machine has the newest checkpoint.

    In their own order where none has one, or where a newer one is `here`, from where node 0 is given it. Pure.
    """
    found = max(seats, key=lambda seat: (steps.get(seat, -1), -seat))
    if steps.get(found, -1) < max(here, 0):
        return sorted(seats)
    return [found, *sorted(seat for seat in seats if seat != found)]


def _newest_steps(
    run: RunDir, backend: SshBackend, profile: Mapping[str, Any], seated: Mapping[int, Host]
) -> dict[int, int]:
    """The step of the newest checkpoint that each machine has in the run's folder of checkpoints."""
    workdir, folder = workdir_of(profile), remote_checkpoints(run)

    def ask(_: int, host: Host) -> int:
        names = backend.session(host, workdir).call("steps", folder=folder)[0]["steps"]
        return max((int(name[5:]) for name in names if name[5:].isdigit()), default=-1)

    found, _ = on_all(ask, seated)
    return found


def _newest_here(run: RunDir) -> int:
    found = newest_checkpoint(run.path / "checkpoints")
    return int(found.name[5:]) if found else -1


def _said(run: RunDir, kind: str, again: Again) -> list[dict[str, Any]]:
    """What has been recorded of this kind for this start: nothing is said twice, however often it is tried."""
    return [each for each in run.events() if each["kind"] == kind and each.get("start") == again.start]


def _wait_for(run: RunDir, again: Again, away: Mapping[str, str], limit: float) -> None:
    """Say once who is waited for; end the run when that has lasted for the profile's node_wait."""
    said = _said(run, "waiting_for_hosts", again)
    if not said:
        run.append_event("waiting_for_hosts", start=again.start, hosts=sorted(away), why=list(away.values()))
    elif time.time() - said[0].get("time", 0.0) > limit:
        why = f"{again.reason}; {', '.join(sorted(away))} did not come back within {limit:g} s"
        run.append_event("submit_failed", reason=why)


def _bring_logs_of_renumbered(run: RunDir, backend: SshBackend, profile: Mapping[str, Any], order: list[int]) -> None:
    """Bring all logs of machines that get another number: afterwards only those of the new number are looked for."""
    handle = read_handle(run)
    assert handle is not None
    workdir = workdir_of(profile)
    numbers = {seat: node for node, seat in enumerate(order)}
    moved = {
        node: handle.hosts[node]
        for node, seat in enumerate(handle.seats)
        if seat in numbers and numbers[seat] != node and (run.node(node) / "events.jsonl").exists()
    }

    def bring(node: int, host: Host) -> None:
        copy = Copy(run, node, f"{workdir}/runs/{run.run_id}", "", None)
        while copy.look(backend.session(host, workdir), 0.0, only_logs=True):
            pass

    with sole_writer(run.path, "logs.lock"):
        on_all(bring, moved)  # one that is lost meanwhile is missed when its agent is started


def _tasks(
    run: RunDir, profile: Mapping[str, Any], again: Again, order: list[int], hosts: Mapping[int, Host]
) -> tuple[NodeTask, ...]:
    """What the nodes are told now: with a token of their own, and what is left of the budgets."""
    plan, kept = run.read("plan.json") or {}, run.read("secrets.json") or {}
    planned = [NodeTask.from_json(task) for task in plan["tasks"]]
    token, secret_values = secrets.token_hex(32), kept.get("secrets", {})
    retry = budget_left(planned[0].retry, run.events())
    tasks = tuple(
        replace(
            planned[seat],
            node_rank=node,
            nnodes=len(order),
            python=hosts[node].python or profile.get("python") or "python3",
            start=again.start,
            attempt=again.attempt,
            retry=retry,
            token=token,
            secrets=secret_values,
        )
        for node, seat in enumerate(order)
    )
    return with_given_checkpoint(tasks)
