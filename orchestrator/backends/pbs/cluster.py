"""The queues and nodes of a PBS cluster, and the check whether a profile fits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.base import Check, CheckResult, Level
from orchestrator.backends.batch import doctor
from orchestrator.backends.batch.queues import Partition, least
from orchestrator.backends.batch.site import Site, first_line
from orchestrator.backends.pbs.parse import bytes_in, seconds_in, shown
from orchestrator.backends.pbs.scheduler import settings_of
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.backends.batch.scheduler import Trial

Entry = Mapping[str, Any]
OWN: Final = ("server", "queue", "hosts", "workdir")
UNSEEN: Final = "only a run can tell whether the nodes see {}"
AWAY: Final = ("down", "offline", "state-unknown", "unresolvable", "stale", "provisioning", "sleep")


def examine(trial: Trial, chunk: Mapping[str, Any]) -> list[Check]:
    """Make the checks of `orch doctor`. chunk: the resources that the profile requests on each node."""
    site, launch = trial.site, trial.launch

    def add_own(found: doctor.Found) -> None:
        name, server = next(iter(_shown(site, "Server", "qstat", "-B").items()), ("", {}))
        state = str(server.get("server_state"))
        found["server"] = CheckResult(Level.OK, f"{name}: {state}")
        if state not in ("Active", "Scheduling"):
            hint = "jobs wait until the cluster's administrator starts the scheduler"
            found["server"] = CheckResult(Level.WARN, f"{name}: {state}", hint)
        wanted = settings_of(launch).queue or server.get("default_queue")
        found["queue"] = fits_queue(wanted, _shown(site, "Queue", "qstat", "-Q"), launch.time_limit)
        found["hosts"] = fits_hosts(_nodes(site, str(wanted)), launch.nnodes, chunk)

    return doctor.examine(trial, OWN, add_own, unseen=UNSEEN)


def fits_queue(wanted: str | None, queues: Mapping[str, Entry], time_limit: int | None) -> CheckResult:
    """Check that the profile's queue (or the default queue) accepts jobs, starts them and permits the time limit."""
    queue = queues.get(wanted or "")
    if queue is None:
        what = f"there is no queue {wanted}" if wanted else "no queue is the default"
        return CheckResult(Level.FAIL, what, f"set `queue` in the profile to one of {', '.join(queues)}")
    if queue.get("enabled") == "False":
        return CheckResult(
            Level.FAIL,
            f"queue {wanted} accepts no jobs now",
            "qstat -Q lists the queues; set `queue` in the profile to another",
        )
    most = _limit(queue)
    if most is not None and (time_limit or 0) > most:
        said = f"{wanted} gives {most / 60:g} min, the profile asks for {(time_limit or 0) / 60:g}"
        return CheckResult(Level.FAIL, said, "lower `time` in the profile, or set `queue` to another")
    if queue.get("started") == "False":
        return CheckResult(Level.WARN, f"queue {wanted} starts no jobs now, so jobs wait", "qstat -Q lists the queues")
    return CheckResult(Level.OK, str(wanted))


def fits_hosts(nodes: Mapping[str, Entry], wanted: int, chunk: Mapping[str, Any]) -> CheckResult:
    """Check that enough hosts have the cores, GPUs and memory that the profile requests on each node."""
    asked = {name: amount for name in ("ncpus", "ngpus", "mem") if (amount := _amount(chunk.get(name))) is not None}
    fit = [node for node in nodes.values() if all((_of(node, each) or 0) >= most for each, most in asked.items())]
    words = ", ".join(f"{each} {chunk[each]}" for each in asked)
    if len(fit) < wanted:
        said = f"{len(fit)} of {len(nodes)} hosts have {words}, the profile asks for {wanted}"
        return CheckResult(
            Level.FAIL,
            said,
            "pbsnodes -a shows what each host has; change `nodes`, `ncpus`, `ngpus` or `mem` in the profile",
        )
    said = f"{len(fit)} hosts have {words}, {sum(map(_is_idle, fit))} idle"
    if len(fit) - sum(map(_is_away, fit)) < wanted:
        return CheckResult(
            Level.WARN, f"{said}; too few of them are up, so jobs wait", "pbsnodes -l shows why hosts are down"
        )
    return CheckResult(Level.OK, said)


def queues(site: Site) -> list[Partition]:
    """Return the queues that run jobs. Raises BackendError if PBS can't be queried."""
    server = next(iter(_shown(site, "Server", "qstat", "-B").values()), {})
    return parse_queues(str(server.get("default_queue")), _shown(site, "Queue", "qstat", "-Q"), _nodes(site))


def parse_queues(default: str, queues: Mapping[str, Entry], nodes: Mapping[str, Entry]) -> list[Partition]:
    """Return the queues that run jobs, with the hosts that each may use."""
    return [
        _queue(name, queue, _of_queue(nodes, name), is_default=name == default)
        for name, queue in queues.items()
        if queue.get("queue_type") == "Execution"
    ]


def _queue(name: str, queue: Entry, nodes: Mapping[str, Entry], *, is_default: bool) -> Partition:
    cores, memory, gpus = (
        least(amount // unit for node in nodes.values() if (amount := _of(node, what)))
        for what, unit in (("ncpus", 1), ("mem", 1 << 20), ("ngpus", 1))
    )
    return Partition(
        name, is_default, queue.get("enabled") != "False" and queue.get("started") != "False", _limit(queue),
        len(nodes), sum(map(_is_idle, nodes.values())), cores, memory, f"ngpus:{gpus}" if gpus else "",
        ",".join(nodes), "queue",
    )  # fmt: skip


def _shown(site: Site, what: str, *argv: str) -> dict[str, Entry]:
    answer = site.call(*argv, *(() if argv[0] == "pbsnodes" else ("-f",)), "-F", "json")
    if answer.code != 0:
        raise BackendError(f"{' '.join(argv)} failed: {first_line(answer.err)}", transient=True)
    return shown(answer.out, what)


def _nodes(site: Site, queue: str = "") -> dict[str, Entry]:
    nodes = _shown(site, "nodes", "pbsnodes", "-a")
    return _of_queue(nodes, queue) if queue else nodes


def _of_queue(nodes: Mapping[str, Entry], queue: str) -> dict[str, Entry]:
    """Return the hosts on which a queue may run jobs: the hosts of this queue, and those that belong to no queue."""
    return {name: node for name, node in nodes.items() if node.get("queue") in (None, queue)}


def _is_away(node: Entry) -> bool:
    return any(word in str(node.get("state", "")) for word in AWAY)


def _is_idle(node: Entry) -> bool:
    return not _is_away(node) and not node.get("jobs")


def _of(node: Entry, what: str) -> int | None:
    """Return the amount of a resource that a host has. Memory is in bytes."""
    given = node.get("resources_available")
    return _amount(given.get(what)) if isinstance(given, Mapping) else None


def _amount(value: Any) -> int | None:
    return int(str(value)) if str(value).isdecimal() else bytes_in(value)


def _limit(queue: Entry) -> int | None:
    given = queue.get("resources_max")
    limit = seconds_in(given.get("walltime")) if isinstance(given, Mapping) else None
    return None if limit is None else int(limit)
