"""Lists the runs that hold the GPUs or slots of an ssh profile's machines (spares included), and removes the remains of
ended runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.backends.base import Finding, Judge, Ruling
from orchestrator.backends.environments import tidy_cache
from orchestrator.backends.hosts import on_all
from orchestrator.backends.mirror.output_record import record_removed
from orchestrator.backends.mirror.outputs import left_on
from orchestrator.backends.settings import AgentsSettings, Host, run_folder
from orchestrator.runs.run_id import run_id_from
from orchestrator.transport.machine import Machines

if TYPE_CHECKING:  # loads fabric
    from orchestrator.transport.machine import Machine


def holdings(settings: AgentsSettings, pool: Machines) -> list[dict[str, Any]]:
    """List every machine's cores, GPUs and free space, and the run that holds each place (GPU or slot). For a machine
    that did not answer, list the error message.
    """
    machines, nodes = settings.all_hosts, len(settings.hosts)

    def one(number: int, host: Host) -> dict[str, Any]:
        session = pool.session(host.address, settings.workdir)
        hello = session.hello(settings.workdir, shared_parent=settings.shared_parent)
        seen = session.call("look_at_queue", slots=settings.slots)[0]
        shown = {name: hello[name] for name in ("cores", "gpus", "free", "python")}
        return {"host": host.name, "spare": number >= nodes, **shown, **seen}

    found, failed = on_all(one, machines)
    for number, problem in failed.items():
        found[number] = {"host": machines[number].name, "spare": number >= nodes, "problem": problem.message}
    return [found[number] for number in sorted(found)]


def collect_garbage(settings: AgentsSettings, pool: Machines, judge: Judge, *, dry_run: bool) -> list[Finding]:
    """List the remains of ended runs on every machine, and the unreachable machines. Unless `dry_run` is True, remove a
    run's remains if `judge` permits it.
    """
    machines, workdir = settings.all_hosts, settings.workdir
    found: dict[int, list[Finding]] = {number: [] for number in machines}

    def one(number: int, host: Host) -> None:
        session, rows = pool.session(host.address, workdir), found[number]
        # `hello` refuses a folder that others can write into, because records that others wrote can't be trusted.
        session.hello(workdir, shared_parent=settings.shared_parent)
        runs = session.call("leftovers", workdir=workdir)[0]["runs"]
        named = {run_id_from(each, session.name): left for each, left in runs.items()}
        ruled = {run_id: ruling for run_id, left in named.items() if (ruling := judge(run_id, left["agent"]))}
        for run_id, ruling in ruled.items():
            rows.append(_end(session, workdir, run_id, runs[run_id], ruling, dry_run=dry_run))
        rows += [] if dry_run else tidy_cache(session, workdir)

    _, failed = on_all(one, machines)
    rows = [finding for number in sorted(found) for finding in found[number]]
    lost = [Finding("host", machines[number].name, "kept", failed[number].message) for number in sorted(failed)]
    return [*rows, *lost]


def _end(
    machine: Machine, workdir: str, run_id: str, left: dict[str, Any], ruling: Ruling, *, dry_run: bool
) -> Finding:
    """Remove the processes and files that one run left on one machine, if `ruling.ends` is True. Return a description
    of the result.
    """
    host, folder, processes = machine.name, run_folder(workdir, run_id), ", ".join(left["processes"])
    what = f"{host}: {folder if left['folder'] else ''}{f' processes {processes}' if processes else ''}"
    if not ruling.ends or dry_run:
        return Finding("run", what, "would be ended" if ruling.ends else "kept", ruling.why)
    survivors = machine.call("clean_up", run_dir=folder, run_id=run_id, node=None)[0]["survivors"]
    if survivors:
        return Finding("run", f"{host}: {', '.join(survivors)}", "kept", f"{ruling.why}; they could not be ended")
    if ruling.run is not None and left["folder"] and (kept := left_on(machine, ruling.run)):
        why = f"{kept} output files in it are not here: orch pull {run_id} --outputs, or orch rm {run_id}"
        return Finding("run", what, "kept", why)
    machine.call("remove", run_dir=folder, run_id=run_id)
    if ruling.run is not None:
        record_removed(ruling.run, host)
    return Finding("run", what, "removed", ruling.why)
