"""What runs left behind on the machines of a profile: a host that was out of reach when a run ended, say.

Nothing of a live run is touched. A run that this state folder does not know may be another one's: it is only listed,
unless asked for, and even then it stays while one of its agents lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.backends import backend
from orchestrator.errors import UsageError
from orchestrator.residue import Finding
from orchestrator.store import RunDir, is_live

CACHE_DAYS: Final = 30


def sweep_hosts(root: Path, profile: Any, *, dry_run: bool, unknown: bool) -> list[Finding]:
    """Find and remove what ended runs have left on a profile's hosts, spares included; who is away is named."""
    from orchestrator.backends.hosts import hosts_of, on_all, workdir_of  # noqa: PLC0415 (gc of this machine needs none)

    if profile.kind != "ssh":
        raise UsageError(f"profiles of kind {profile.kind} have no hosts of their own", "leave --profile out")
    machine: Any = backend("ssh")
    values = profile.model_dump(mode="json")
    nodes, spares = hosts_of(values)
    hosts, workdir = dict(enumerate([*nodes, *spares])), workdir_of(values)

    def one(_: int, host: Any) -> list[Finding]:
        session = machine.session(host, workdir)
        runs = session.call("leftovers", workdir=workdir)[0]["runs"]
        found = [
            finding
            for run_id, left in runs.items()
            for finding in _run(root, session, workdir, run_id, left, dry_run=dry_run, unknown=unknown)
        ]
        if not dry_run:
            tidied = session.call("tidy_cache", workdir=workdir, days=CACHE_DAYS)[0]
            if tidied["removed"]:
                why = f"unused for {CACHE_DAYS} days, {tidied['bytes'] >> 20} MiB"
                found.append(Finding("file", f"{host.name}: {tidied['removed']} files of the cache", "removed", why))
        return found

    done, failed = on_all(one, hosts)
    rows = [finding for node in sorted(done) for finding in done[node]]
    return [
        *rows,
        *(Finding("host", hosts[node].name, "kept", error.message) for node, error in sorted(failed.items())),
    ]


def _run(
    root: Path, session: Any, workdir: str, run_id: str, left: Mapping[str, Any], *, dry_run: bool, unknown: bool
) -> Iterator[Finding]:
    folder = f"{workdir}/runs/{run_id}"
    host, processes = session.address.host, ", ".join(left["processes"])
    what = f"{host}: {folder if left['folder'] else ''}{f' processes {processes}' if processes else ''}"
    run = RunDir(root / "runs" / run_id)
    if is_live(root, run):
        return
    known = (run.path / "verdict.json").exists()
    why = f"its run {run_id} has ended" if known else f"its run {run_id} is not in this state folder"
    if not known and left["agent"]:
        yield Finding("run", what, "kept", f"{why}, and an agent of it lives")
    elif not known and not unknown:
        yield Finding("run", what, "kept", f"{why}; --unknown ends it")
    elif dry_run:
        yield Finding("run", what, "would be ended", why)
    else:
        survivors = session.call("sweep", run_dir=folder, run_id=run_id, node=None)[0]["survivors"]
        if survivors:
            yield Finding("run", f"{host}: {', '.join(survivors)}", "kept", f"{why}; they could not be ended")
        else:
            session.call("remove", run_dir=folder, run_id=run_id)
            yield Finding("run", what, "removed", why)
