"""The queues and parallel environments of a Grid Engine cluster, and the check whether a profile fits them."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.base import Check, CheckResult, Level
from orchestrator.backends.batch import doctor
from orchestrator.backends.batch.queues import Partition, least
from orchestrator.backends.batch.site import Site, first_line
from orchestrator.backends.sge.parse import bytes_of
from orchestrator.backends.sge.scheduler import settings_of
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.backends.batch.scheduler import Trial
    from orchestrator.specs.plan import LaunchPlan

OWN: Final = ("version", "queue", "pe", "qsub", "workdir")
ALL_QUEUES: Final = 'for queue in $(qconf -sql); do qconf -sq "$queue" || exit; done'
PATTERN: Final = r"[*?,|&!\[]"
"""A name with one of these characters is a pattern or a list, which only Grid Engine itself can read."""
UNSEEN: Final = "only a run can tell whether the nodes see {}"


def examine(trial: Trial, slots: int) -> list[Check]:
    """Make the checks of `orch doctor`. slots: the number of slots that the profile requests on each node."""
    site, launch = trial.site, trial.launch

    def add_own(found: doctor.Found) -> None:
        found["version"] = CheckResult(Level.OK, asked(site, "qstat", "-help").splitlines()[0].strip())
        found["queue"] = fits_queue(settings_of(launch).queue, asked(site, "qconf", "-sql").split())
        found["pe"] = _pe(site, launch, slots)
        found["qsub"] = site.scheduler.would_take(launch, site)

    return doctor.examine(trial, OWN, add_own, unseen=UNSEEN)


def asked(site: Site, *argv: str) -> str:
    """Return the output of one of the scheduler's programs. Raises a transient BackendError if the program fails."""
    answer = site.call(*argv)
    if answer.code != 0:
        raise BackendError(f"{' '.join(argv[:2])} failed: {first_line(answer.err or answer.out)}", transient=True)
    return answer.out


def fits_queue(wanted: str | None, queues: list[str]) -> CheckResult:
    """Check that the profile's queue exists. A pattern or a list of queues is not checked, because qsub checks it."""
    if wanted is None:
        return CheckResult(Level.OK, f"the scheduler chooses one of {', '.join(queues)}")
    if wanted.partition("@")[0] in ("", *queues) or re.search(PATTERN, wanted):
        return CheckResult(Level.OK, wanted)
    return CheckResult(
        Level.FAIL, f"there is no queue {wanted}", f"set `queue` in the profile to one of {', '.join(queues)}"
    )


def _pe(site: Site, launch: LaunchPlan, slots: int) -> CheckResult:
    name = settings_of(launch).pe
    if name is None:
        return CheckResult(Level.OK, "no parallel environment, so the job gets one slot")
    if re.search(PATTERN, name):
        return CheckResult(Level.OK, f"{name} is a pattern, which only qsub can resolve")
    answer = site.call("qconf", "-sp", name)
    if answer.code != 0:
        said = first_line(answer.err or answer.out)
        return CheckResult(
            Level.FAIL,
            f"there is no parallel environment {name}: {said}",
            "qconf -spl lists the parallel environments; set `pe` in the profile",
        )
    return fits_pe(name, fields_of(answer.out), launch.nnodes, slots)


def fits_pe(name: str, pe: Mapping[str, str], nodes: int, slots: int) -> CheckResult:
    """Check that a parallel environment allows this number of hosts and slots, and lets orch start the agents."""
    rule, total = pe.get("allocation_rule", ""), pe.get("slots", "")
    if total.isdecimal() and int(total) < nodes * slots:
        return CheckResult(
            Level.FAIL,
            f"{name} has {total} slots, but the profile requests {nodes * slots}",
            "change `nodes`, `slots` or `pe` in the profile",
        )
    if nodes > 1 and pe.get("control_slaves", "").upper() != "TRUE":
        hint = (
            "ask the cluster's administrator for a parallel environment with control_slaves TRUE, and set `pe` "
            "to its name"
        )
        return CheckResult(
            Level.FAIL, f"{name} has control_slaves FALSE, so no agents can be started on other hosts", hint
        )
    if rule.isdecimal() and slots % int(rule) == 0 and (nodes == 1 or int(rule) == slots):
        return CheckResult(Level.OK, f"{name} gives {rule} slots on each host")
    if rule == "$pe_slots" and nodes == 1:
        return CheckResult(Level.OK, f"{name} gives all slots on one host")
    said = f"{name} has allocation_rule {rule}, the profile asks for {nodes} x {slots} slots"
    hint = f"set `pe` to a parallel environment whose allocation_rule is {slots}"
    if rule.isdecimal() or rule == "$pe_slots":
        return CheckResult(Level.FAIL, said, hint)
    return CheckResult(
        Level.WARN, f"{said}: one host may provide the slots of two nodes, or only half of a node's slots", hint
    )


def fields_of(text: str) -> dict[str, str]:
    """Return the values in qconf's output, whose lines are `NAME VALUE`. A backslash at the end continues a line."""
    lines = (line.split(None, 1) for line in text.replace("\\\n", " ").splitlines())
    return {words[0]: words[1].strip() for words in lines if len(words) == 2}


def queues(site: Site) -> list[Partition]:
    """Return the cluster's queues. Raises BackendError if Grid Engine can't be queried."""
    shown = (asked(site, "qstat", "-f", "-xml"), asked(site, "qhost", "-xml"), asked(site, "sh", "-c", ALL_QUEUES))
    return parse_queues(*shown)


def parse_queues(instances: str, hosts: str, configuration: str) -> list[Partition]:
    """Return the queues from the outputs of `qstat -f -xml`, `qhost -xml` and `qconf -sq`."""
    memory = {
        name: value for name, body in re.findall(r"<host name='([^']*)'>(.*?)</host>", hosts, re.DOTALL)
        if (value := bytes_of("".join(re.findall(r"<hostvalue name='mem_total'>([^<]*)<", body)[:1])))
    }  # fmt: skip
    limits = {}
    for part in re.split(r"^(?=qname\s)", configuration, flags=re.MULTILINE):
        fields = fields_of(part)
        # A queue may have other values for some hosts: `INFINITY,[n1=24:00:00]`.
        limits[fields.get("qname", "")] = seconds_of(fields.get("h_rt", "").partition(",")[0])
    by_queue: dict[str, list[Mapping[str, Any]]] = {}
    for entry in re.findall(r"<Queue-List>(.*?)</Queue-List>", instances, re.DOTALL):
        fields = {tag: html.unescape(value.strip()) for tag, value in re.findall(r"<(\w+)[^>]*>([^<]*)</\1>", entry)}
        queue, _, host = fields.get("name", "").partition("@")
        if host and fields.get("slots_total", "").isdecimal():
            by_queue.setdefault(queue, []).append({**fields, "host": host})
    return [_queue(name, entries, memory, limits.get(name)) for name, entries in by_queue.items()]


def _queue(name: str, entries: list[Mapping[str, Any]], memory: Mapping[str, int], limit: int | None) -> Partition:
    # a(larm), u(nknown), d(isabled), E(rror), s(uspended), and others in capitals
    up = [entry for entry in entries if not set(entry.get("state", "")) & set("uadDEsSC")]
    idle = [entry for entry in up if entry.get("slots_used") == "0"]
    hosts = [entry["host"] for entry in entries]
    return Partition(
        name, False, bool(up), limit, len(entries), len(idle), least(int(entry["slots_total"]) for entry in entries),
        least(memory[host] >> 20 for host in hosts if host in memory), "", ",".join(hosts), "queue",
    )  # fmt: skip


def seconds_of(text: str) -> int | None:
    """Return the seconds of `24:00:00` or `86400`; None for INFINITY and any other text."""
    if text.isdecimal():
        return int(text)
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d)", text)
    return 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3]) if match else None
