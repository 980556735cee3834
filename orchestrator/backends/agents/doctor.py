"""The checks of `orch doctor` for the machines of a local or ssh profile. No run is started."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends import gpu_checks
from orchestrator.backends.agents.reachability import try_connections
from orchestrator.backends.agents.start import listed_twice
from orchestrator.backends.base import Check, CheckResult, Level, connected, room
from orchestrator.backends.hosts import on_all
from orchestrator.backends.settings import AgentsSettings, Host, tls_problem
from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.protocol.quantities import size
from orchestrator.runs.store import state_root
from orchestrator.specs.plan import nproc_by_node
from orchestrator.transport.machine import Machine, Machines

if TYPE_CHECKING:
    from orchestrator.specs.profiles import AnyProfile

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
CHECKS: Final = ("ssh", "python3", "workdir", "ranks", "training", "clock", "shm", "master", "same versions")
IN_CONTAINERS: Final = ("ssh", "python3", "workdir", "ranks", "runtime", "clock", "shm", "master")  # images have torch
OF_OTHERS: Final = ("ssh", "clock", "master", "same versions")  # nothing to check if the only machine is this one
ENVIRONMENTS: Final = "environments"  # shown if a machine has one
LEAST_SHM: Final = 1 << 30
HASH_SECONDS: Final = 600.0  # all files of all environments are read
MOST_SKEW: Final = 5.0
REMEDIES: Final = {
    "ssh": "log in to this host: it may be overloaded, or a network file system may hang there",
    "workdir": "make room on that disk",
    "clock": "timestamps in the logs of different hosts will not match; nothing in orch depends on the clocks",
    "shm": "DataLoader workers share memory in /dev/shm: enlarge it on this host",
}


@dataclass
class Node:
    """One machine, its answers, and the results of its checks."""

    host: str
    checks: dict[str, CheckResult] = field(default_factory=dict)
    hello: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    gpus: gpu_checks.Rows = field(default_factory=dict)
    environments: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # key -> (hash, why it is altered)

    def add(self, what: str, level: Level, value: str, hint: str = "") -> None:
        """Record the result of a check. The hint is dropped if the check passed."""
        self.checks[what] = CheckResult(level, value, "" if level == OK else hint or REMEDIES.get(what, ""))

    def add_refusal(self, what: str, error: BackendError, hint: str) -> None:
        """Record that the machine refused the request of a check. Raises the error again if the machine did not
        answer.
        """
        if error.transient:
            raise error
        self.add(what, FAIL, error.message, hint)


def examine(profile: AnyProfile, pool: Machines) -> list[Check]:
    """Check all machines in parallel. Return the checks in the order of CHECKS."""
    settings, asked = AgentsSettings.of(profile), nproc_by_node(profile)
    is_here, on_host = profile.kind == "local", profile.runtime == "none"  # in a container, torch is in the image
    hosts = dict(enumerate(settings.hosts[:1] if is_here else settings.hosts))
    if is_here:  # `shared_parent`: only the state folder itself is checked, as for a submit
        settings = replace(settings, workdir=str(state_root()), shared_parent=True)

    def one(number: int, host: Host) -> Node:
        session = pool.session(host.address, settings.workdir)
        ranks = asked if is_here else [asked[number]]
        node = _check_machine(session, host, settings, ranks, is_alone=len(settings.hosts) == 1)
        if not node.hello:
            return node
        python = host.python or settings.python or (sys.executable if is_here else "python3")
        _read_environments(node, session, settings.workdir)
        if on_host:
            _check_training(node, session, python, profile.setup)
        else:
            _check_runtime(node, session, profile.runtime)
        if node.hello["gpus"]:
            node.gpus = gpu_checks.ask(session, python if on_host else None, profile.setup)
        return node

    nodes, failed = on_all(one, hosts)
    for number, error in failed.items():
        nodes[number] = Node(hosts[number].name)
        is_in = isinstance(error, PythonMissingError)
        if is_in:
            nodes[number].add("ssh", OK, "connected")
        nodes[number].add("python3" if is_in else "ssh", FAIL, error.message, error.hint)
    if not is_here:
        _compare_machines(pool, settings, hosts, nodes)
    _compare_environments(nodes)
    with_gpus = {number: node.gpus for number, node in nodes.items() if node.gpus}
    gpu_checks.compare(with_gpus)
    whats = [what for what in (CHECKS if on_host else IN_CONTAINERS) if not (is_here and what in OF_OTHERS)]
    whats += [ENVIRONMENTS] if any(ENVIRONMENTS in node.checks for node in nodes.values()) else []
    whats += [what for what in gpu_checks.CHECKS if any(what in rows for rows in with_gpus.values())]
    rows = {number: {**node.checks, **node.gpus} for number, node in nodes.items()}
    return gpu_checks.as_checks(whats, rows, {number: node.host for number, node in nodes.items()})


def _check_machine(
    machine: Machine, host: Host, settings: AgentsSettings, asked: Sequence[int | None], *, is_alone: bool
) -> Node:
    """Make the checks that need only the machine's answer to the request `hello`. The returned node's `hello` is empty
    if the machine refused the request.

    asked: the number of ranks for each node on the machine; None if the machine's number of GPUs or cores decides.
    """
    before = time.time()
    node = Node(os.uname().nodename if host.is_here else host.name)
    node.checks["ssh"] = connected(machine)
    if machine.way:
        note = f"programs are started by {machine.way.partition(';')[0]} (start_by)"
        node.checks["ssh"] = CheckResult(OK, f"connected by {machine.way}", note)
    try:
        hello, _ = machine.call(
            "hello", workdir=settings.workdir, shared_parent=settings.shared_parent, interface=settings.interface
        )
    except BackendError as error:
        where = "ORCH_HOME" if host.is_here else "workdir in the profile"
        node.add_refusal("workdir", error, f"set {where} to a folder of yours")
        return node
    if hello.get("ends_processes"):
        said = "connected, but logind ends your processes on this host when you log out, agents included"
        node.add("ssh", FAIL, said, "run once on this host: loginctl enable-linger")
    skew = hello["time"] - (before + time.time()) / 2
    node.hello = hello
    lack = "" if is_alone else tls_problem(hello["lacks_tls"])
    found = f"{hello['python']}, {hello['path']}"
    found += lack and f"; {lack}"
    if machine.passed_over and not lack:
        note = f"orch runs there with {hello['path']}: {machine.passed_over}"
        node.checks["python3"] = CheckResult(OK, found, note)
    else:
        node.add("python3", FAIL if lack else OK, found, "install a python3 with OpenSSL 1.1.1 or newer")
    disk, shm = room(hello["workdir"], hello["free"]), hello["shm"]
    trust = "; who may write above it is trusted: shared_parent" if settings.shared_parent and not host.is_here else ""
    node.add("workdir", disk.level, f"{disk.value}{trust}", disk.hint)
    node.add("clock", OK if abs(skew) <= MOST_SKEW else WARN, f"{skew:+.1f} s")
    node.add("shm", OK if shm >= LEAST_SHM else WARN, size(shm))
    gpus, cores = hello["gpus"], hello["cores"]
    ranks = sum(each or gpus or cores for each in asked)
    hint = (
        "there are more ranks than GPUs, so the ranks train on the CPU"
        if gpus
        else "there are more ranks than cores, so the ranks compete for the cores"
    )
    value = f"{'' if all(asked) else 'auto: '}{ranks} on {gpus} GPUs, {cores} cores"
    node.add("ranks", OK if ranks <= (gpus or cores) else WARN, value, hint)
    return node


def _check_runtime(node: Node, machine: Machine, runtime: str) -> None:
    try:
        found, _ = machine.call("container", runtime=runtime)
        how = ", rootless: for runs of one node only" if found["rootless"] and runtime == "docker" else ""
        node.add("runtime", WARN if how else OK, f"{runtime} {found['version']}{how}", "set runtime: podman")
    except BackendError as error:
        node.add_refusal("runtime", error, "set `runtime` in the profile to a runtime that the machine has")


def _check_training(node: Node, machine: Machine, python: str, setup: Sequence[str]) -> None:
    try:
        node.training, _ = machine.call("interpreter", python=python, setup=list(setup))
        torch = node.training.get("torch")
        value = f"{node.training.get('path') or python}: python {node.training['python']}, torch {torch or 'missing'}"
        hint = f"install torch for {python}, or set `python` in the profile to the interpreter that has torch"
        node.add("training", OK if torch else FAIL, value, hint)
    except BackendError as error:
        node.add_refusal("training", error, "set `python` in the profile to the interpreter that has torch")


def _read_environments(node: Node, machine: Machine, workdir: str) -> None:
    try:
        answer, _ = machine.call("hash_environments", timeout=HASH_SECONDS, workdir=workdir)
        node.environments = answer["environments"]
    except BackendError as error:
        node.add_refusal(ENVIRONMENTS, error, f"look at {workdir}/cache/env there")


def _compare_machines(
    pool: Machines, settings: AgentsSettings, hosts: Mapping[int, Host], nodes: Mapping[int, Node]
) -> None:
    """Check that the machines reach one another, that no machine is listed twice, and that all have the same torch."""
    _check_connections(pool, settings, hosts, nodes)
    hellos = {number: node.hello for number, node in nodes.items() if node.hello}
    for number, error in listed_twice(hosts, hellos).items():
        nodes[number].add("ssh", FAIL, error.message.partition(": ")[2], error.hint)
    _compare_versions(nodes)


def _check_connections(
    pool: Machines, settings: AgentsSettings, hosts: Mapping[int, Host], nodes: Mapping[int, Node]
) -> None:
    """Try the connections that a start needs: from every node to node 0, and from every node to the next node."""
    there = {number: host for number, host in hosts.items() if nodes[number].hello}
    tried = try_connections(pool, settings, there)
    for number, problem in tried.failed.items():
        ports = "" if problem.transient else "set `ports` in the profile to a range of free ports"
        nodes[number].add("ssh" if problem.transient else "master", FAIL, problem.message, problem.hint or ports)
    for (number, other), answer in sorted(tried.answers.items()):
        before = nodes[number].checks.get("master")
        if before is not None and before.level != OK:
            continue
        port, name = tried.ports[other], hosts[other].name
        if answer["addr"] is None and other == 0:
            hint = (
                f"let firewalls pass connections from {hosts[number].name} to port {port} of {name}, or set "
                f"`addr` of {name}, or `ports` in the profile"
            )
            nodes[number].add("master", FAIL, "; ".join(answer["problems"]), hint)
        elif answer["addr"] is None:
            words = f"it can't reach {name}, its neighbour: {'; '.join(answer['problems'])}"
            hint = f"let firewalls pass connections from {hosts[number].name} to {name} on the `ports` of the profile"
            nodes[number].add("master", FAIL, words, hint)
        elif other == 0:
            interface = f", {answer['interface']}" if answer["interface"] else ""
            nodes[number].add("master", OK, f"{answer['addr']}:{port} from {answer['own']}{interface}")
    for node in nodes.values():
        if problem_there := node.hello.get("interface"):
            node.add("master", FAIL, problem_there, "name one that every node has (interface:), or leave interface out")


def _compare_versions(nodes: Mapping[int, Node]) -> None:
    known = {number: each.training.get("torch") for number, each in nodes.items() if each.training.get("torch")}
    if not known:
        return
    usual = Counter(known.values()).most_common(1)[0][0]
    for number, version in known.items():
        hint = f"the other hosts have torch {usual}: install the same version"
        nodes[number].add("same versions", OK if version == usual else FAIL, f"torch {version}", hint)


def _compare_environments(nodes: Mapping[int, Node]) -> None:
    """Compare the files of each installed environment with their record from the installation, and with the other
    nodes.
    """
    found: dict[str, Counter[str | None]] = {}
    for _, node in sorted(nodes.items()):
        for key, (digest, why) in node.environments.items():
            if not why:  # an altered environment says nothing about the others
                found.setdefault(key, Counter())[digest] += 1
    for node in nodes.values():
        wrong = [why for _, why in node.environments.values() if why]
        hint = "the next run that needs this environment installs it again"
        for key, (digest, why) in node.environments.items():
            if not why and digest != found[key].most_common(1)[0][0]:
                wrong.append(f"environment {key[:12]} holds other files than on the other nodes")
                hint = (
                    "remove this environment's folder, which is in cache/env of the host's workdir: the next "
                    "run installs it again"
                )
        count = len(node.environments)
        if wrong:
            node.add(ENVIRONMENTS, FAIL, "; ".join(wrong), hint)
        elif count:
            node.add(ENVIRONMENTS, OK, f"{count}, as installed")
