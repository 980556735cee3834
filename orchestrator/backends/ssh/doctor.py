"""Are the machines of an ssh profile fit to train? Every check of every node, side by side; nothing is started."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends import gpu_checks
from orchestrator.backends.base import Check, CheckResult, Level
from orchestrator.backends.remote import upload
from orchestrator.backends.remote.hosts import on_all
from orchestrator.backends.settings import Host, SshSettings
from orchestrator.backends.ssh.agents import leader_addresses, listed_twice
from orchestrator.backends.ssh.ways import broken_ways
from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.protocol.gang import gang_ports
from orchestrator.protocol.quantities import size
from orchestrator.specs.plan import nproc_by_node, port_range
from orchestrator.transport.pool import ConnectionPool

if TYPE_CHECKING:  # loads fabric
    from orchestrator.specs.profile import SshProfile
    from orchestrator.transport.rpc import Session

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
CHECKS: Final = ("ssh", "python3", "workdir", "ranks", "training", "clock", "shm", "master", "same versions")
ENVIRONMENTS: Final = "environments"  # shown where a machine has one
IN_CONTAINERS: Final = ("ssh", "python3", "workdir", "ranks", "runtime", "clock", "shm", "master")  # images have torch
LEAST_FREE: Final = 1 << 30
LEAST_SHM: Final = 1 << 30
HASH_SECONDS: Final = 600.0  # all files of all environments are read
MOST_SKEW: Final = 5.0
REMEDIES: Final = {
    "workdir": "make room there",
    "clock": "times in logs will not agree; nothing depends on it",
    "shm": "DataLoader workers share memory there: enlarge /dev/shm",
}


@dataclass
class Node:
    """What has been found out about one node."""

    host: str
    checks: dict[str, CheckResult] = field(default_factory=dict)
    hello: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    gpus: gpu_checks.Rows = field(default_factory=dict)
    environments: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # key -> (hash, why it is altered)

    def add(self, what: str, level: Level, value: str, hint: str = "") -> None:
        """Note a check; what is well needs no hint."""
        self.checks[what] = CheckResult(level, value, "" if level == OK else hint or REMEDIES.get(what, ""))


def examine(profile: SshProfile, pool: ConnectionPool) -> list[Check]:
    """Make every check of every node, all nodes at once; in the order of CHECKS."""
    settings = SshSettings.of(profile.model_dump(mode="json"))
    hosts, asked = dict(enumerate(settings.hosts)), nproc_by_node(profile)

    on_host = profile.runtime == "none"  # else torch is in the image

    def one(number: int, host: Host) -> Node:
        session = pool.session(host.address, settings.workdir)
        node = _check_machine(session, host, settings, asked[number], is_alone=len(hosts) == 1)
        if not node.hello:
            return node
        _read_environments(node, session, settings.workdir)
        if profile.runtime == "none":
            _check_training(node, session, host.python or settings.python or "python3")
        else:
            _check_runtime(node, session, profile.runtime)
        if node.hello["gpus"]:
            node.gpus = gpu_checks.ask(session, host.python or settings.python or "python3" if on_host else None)
        return node

    nodes, failed = on_all(one, hosts)
    for number, error in failed.items():
        nodes[number] = Node(hosts[number].name)
        is_in = isinstance(error, PythonMissingError)
        if is_in:
            nodes[number].add("ssh", OK, "connected")
        nodes[number].add("python3" if is_in else "ssh", FAIL, error.message, error.hint)
    _check_reachability(pool, hosts, settings.workdir, profile, nodes)
    _check_neighbours(pool, settings, hosts, nodes)
    for number, error in listed_twice(
        hosts, {number: each.hello for number, each in nodes.items() if each.hello}
    ).items():
        nodes[number].add("ssh", FAIL, error.message.partition(": ")[2], error.hint)
    _compare_versions(nodes)
    _compare_environments(nodes)
    with_gpus = {number: node.gpus for number, node in nodes.items() if node.gpus}
    gpu_checks.compare(with_gpus)
    whats: tuple[str, ...] = CHECKS if profile.runtime == "none" else IN_CONTAINERS
    whats += (ENVIRONMENTS,) if any(ENVIRONMENTS in node.checks for node in nodes.values()) else ()
    unknown = CheckResult(Level.UNKNOWN)
    rows = [(number, what) for what in whats for number in sorted(nodes)]
    made = [Check(number, nodes[number].host, what, *nodes[number].checks.get(what, unknown)) for number, what in rows]
    return [*made, *gpu_checks.as_checks(with_gpus, {number: node.host for number, node in nodes.items()})]


def _check_machine(session: Session, host: Host, settings: SshSettings, nproc: int | None, *, is_alone: bool) -> Node:
    """Make the checks that a machine's answer to hello tells; without one that answer is empty."""
    before = time.time()
    node = Node(host.name)
    node.add("ssh", OK, "connected")
    try:
        hello, _ = session.call(
            "hello", workdir=settings.workdir, shared_parent=settings.shared_parent, interface=settings.interface
        )
    except BackendError as error:
        node.add("workdir", FAIL, error.message, "set workdir in the profile to a folder of yours")
        return node
    skew = hello["time"] - (before + time.time()) / 2
    node.hello = hello
    lack = "" if is_alone else hello["lacks_tls"]
    found = f"{hello['python']}{lack and f'; {lack}, by which nodes prove themselves to one another'}"
    node.add("python3", FAIL if lack else OK, found, "install a python3 with OpenSSL 1.1.1 or newer")
    free, shm = hello["free"], hello["shm"]
    trust = "; who may write above it is trusted: shared_parent" if settings.shared_parent else ""
    # A submit refuses a machine with less than upload.LEAST_FREE.
    level = FAIL if free < upload.LEAST_FREE else OK if free >= LEAST_FREE else WARN
    node.add("workdir", level, f"{hello['workdir']}, {size(free)} free{trust}")
    node.add("clock", OK if abs(skew) <= MOST_SKEW else WARN, f"{skew:+.1f} s")
    node.add("shm", OK if shm >= LEAST_SHM else WARN, size(shm))
    gpus, cores = hello["gpus"], hello["cores"]
    hint = "more ranks than GPUs: they train on the CPU" if gpus else "more ranks than cores: they take turns"
    fits = nproc is None or nproc <= (gpus or cores)
    value = f"{nproc or f'auto: {gpus or cores}'} on {gpus} GPUs, {cores} cores"
    node.add("ranks", OK if fits else WARN, value, hint)
    return node


def _check_runtime(node: Node, session: Session, runtime: str) -> None:
    try:
        found, _ = session.call("container", runtime=runtime)
        how = ", rootless: for runs of one node only" if found["rootless"] and runtime == "docker" else ""
        node.add("runtime", WARN if how else OK, f"{runtime} {found['version']}{how}", "set runtime: podman")
    except BackendError as error:
        node.add("runtime", FAIL, error.message, "set runtime: in the profile to what the nodes have")


def _check_training(node: Node, session: Session, python: str) -> None:
    try:
        node.training, _ = session.call("interpreter", python=python)
        torch = node.training.get("torch")
        value = f"python {node.training['python']}, torch {torch or 'missing'}"
        node.add("training", OK if torch else FAIL, value, f"install torch for {python}, or set python: in the profile")
    except BackendError as error:
        node.add("training", FAIL, error.message, "set python: in the profile to the interpreter that has torch")


def _read_environments(node: Node, session: Session, workdir: str) -> None:
    try:
        answer, _ = session.call("hash_environments", timeout=HASH_SECONDS, workdir=workdir)
        node.environments = answer["environments"]
    except BackendError as error:
        node.add(ENVIRONMENTS, FAIL, error.message, f"look at {workdir}/cache/env there")


def _check_reachability(
    pool: ConnectionPool, hosts: Mapping[int, Host], workdir: str, profile: SshProfile, nodes: Mapping[int, Node]
) -> None:
    """Connect by TCP from every node to node 0, on a port that the gang might use."""
    if not nodes[0].hello:
        return
    addrs = leader_addresses(hosts[0], nodes[0].hello)
    ports = gang_ports(secrets.token_hex(), port_range(profile.ports))
    try:
        session = pool.session(hosts[0].address, workdir)
        port = session.call("listen", addrs=addrs, interface=profile.interface, ports=ports)[0]["port"]
    except BackendError as error:
        nodes[0].add("master", FAIL, error.message, "set ports: in the profile to a range that is free")
        return

    def probe(_: int, host: Host) -> dict[str, Any]:
        return pool.session(host.address, workdir).call("probe", addrs=addrs, port=port)[0]

    answers, failed = on_all(probe, {number: host for number, host in hosts.items() if nodes[number].hello})
    for number, answer in answers.items():
        if answer["addr"] is None:
            hint = f"open port {port} to it, or set addr: of {hosts[0].name}, or ports: of the profile"
            nodes[number].add("master", FAIL, "; ".join(answer["problems"]), hint)
        else:
            interface = f", {answer['interface']}" if answer["interface"] else ""
            nodes[number].add("master", OK, f"{answer['addr']}:{port} from {answer['own']}{interface}")
    for number, problem in failed.items():
        nodes[number].add("master", FAIL, problem.message, problem.hint)
    for node in nodes.values():
        if problem_there := node.hello.get("interface"):
            node.add("master", FAIL, problem_there, "name one that every node has (interface:), or leave interface out")


def _check_neighbours(
    pool: ConnectionPool, settings: SshSettings, hosts: Mapping[int, Host], nodes: Mapping[int, Node]
) -> None:
    """Try each connection between two nodes that a start tries, and report those that fail."""
    there = {number: host for number, host in hosts.items() if nodes[number].hello}
    for (number, other), problem in sorted(broken_ways(pool, settings, there).items()):
        master = nodes[number].checks.get("master")
        if master is None or master.level == OK:
            words = f"it can't reach {hosts[other].name}, its neighbour: {problem}"
            hint = f"open the ports of ports: in the profile from {hosts[number].name} to {hosts[other].name}"
            nodes[number].add("master", FAIL, words, hint)


def _compare_versions(nodes: Mapping[int, Node]) -> None:
    known = {number: each.training.get("torch") for number, each in nodes.items() if each.training.get("torch")}
    if not known:
        return
    usual = Counter(known.values()).most_common(1)[0][0]
    for number, version in known.items():
        hint = f"the others have torch {usual}: install that"
        nodes[number].add("same versions", OK if version == usual else FAIL, f"torch {version}", hint)


def _compare_environments(nodes: Mapping[int, Node]) -> None:
    """Hold what each environment contains against what it was, and against the same one on the other nodes."""
    found: dict[str, Counter[str | None]] = {}
    for _, node in sorted(nodes.items()):
        for key, (digest, why) in node.environments.items():
            if not why:  # an altered one is no measure for the others
                found.setdefault(key, Counter())[digest] += 1
    for node in nodes.values():
        wrong, hint = [why for _, why in node.environments.values() if why], "the next run that needs it makes it anew"
        for key, (digest, why) in node.environments.items():
            if not why and digest != found[key].most_common(1)[0][0]:
                wrong.append(f"environment {key[:12]} holds other files than on the other nodes")
                hint = "remove that folder in the cache/env of its workdir: the next run makes it anew"
        count = len(node.environments)
        if wrong:
            node.add(ENVIRONMENTS, FAIL, "; ".join(wrong), hint)
        elif count:
            node.add(ENVIRONMENTS, OK, f"{count}, as installed")
