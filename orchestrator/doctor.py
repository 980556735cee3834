"""Are a profile's machines fit to train? Every check of every node, side by side; and who holds what on them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.backends import backend, kind_of
from orchestrator.errors import BackendError, UsageError
from orchestrator.wire import gang_ports

OK, WARN, FAIL, NONE = "ok", "warn", "fail", "-"
CHECKS: Final = ("ssh", "python3", "workdir", "ranks", "training", "clock", "shm", "master", "same versions")
IN_CONTAINERS: Final = ("ssh", "python3", "workdir", "ranks", "runtime", "clock", "shm", "master")  # images have torch
LEAST_FREE: Final = 1 << 30
LEAST_SHM: Final = 1 << 30
MOST_SKEW: Final = 5.0


REMEDIES: Final = {
    "workdir": "make room there",
    "clock": "times in logs will not agree; nothing depends on it",
    "shm": "DataLoader workers share memory there: enlarge /dev/shm",
}


@dataclass(frozen=True)
class Check:
    """One check of one node: its verdict (ok, warn, fail, or - where it could not be made), and what to do."""

    node: int
    host: str
    what: str
    verdict: str
    value: str = ""
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """The check as JSON types."""
        return asdict(self)


@dataclass
class _Seen:
    """What was found out about one node."""

    host: str
    checks: dict[str, tuple[str, str, str]]
    hello: Mapping[str, Any]
    training: Mapping[str, Any]

    def add(self, what: str, verdict: str, value: str, hint: str = "") -> None:
        self.checks[what] = (verdict, value, "" if verdict == OK else hint or REMEDIES.get(what, ""))


def examine(profile: Any, *, on_node: bool = False) -> list[Check]:
    """Every check of every node of an ssh profile, in the order of CHECKS, or of Slurm as this machine meets it.

    on_node: of a slurm profile, also what a short job finds. UsageError for profiles of another kind.
    """
    if profile.kind == "slurm":
        from orchestrator.backends import slurm_checks  # noqa: PLC0415 (`orch status` does without)

        found = slurm_checks.examine(profile, on_node=on_node)
        name = profile.login or "Slurm"
        made = [what for what in slurm_checks.CHECKS if what in found or what in slurm_checks.ALWAYS]
        return [Check(0, name, what, *found.get(what, (NONE, "", ""))) for what in made]
    from orchestrator.backends.hosts import hosts_of, on_all, workdir_of  # noqa: PLC0415 (`orch status` does without)

    if profile.kind != "ssh":
        raise UsageError(f"profiles of kind {profile.kind} have no hosts to ask over SSH", "name an ssh profile")
    machine: Any = backend("ssh")
    values = profile.model_dump(mode="json")
    workdir, hosts = workdir_of(values), dict(enumerate(hosts_of(values)[0]))

    def one(node: int, host: Any) -> _Seen:
        python = host.python or profile.python or "python3"
        return _look(machine, host, workdir, python if profile.runtime == "none" else None, profile, node)

    seen, failed = on_all(one, hosts)
    for node, error in failed.items():
        seen[node] = _Seen(hosts[node].name, {}, {}, {})
        seen[node].add("ssh", FAIL, error.message, error.hint)
    _check_ways(machine, hosts, workdir, profile, seen)
    _compare_versions(seen)
    whats = CHECKS if profile.runtime == "none" else IN_CONTAINERS
    rows = [(node, what) for what in whats for node in sorted(seen)]
    return [Check(node, seen[node].host, what, *seen[node].checks.get(what, (NONE, "", ""))) for node, what in rows]


def _asked(profile: Any, node: int) -> int | None:
    from orchestrator.plan import nproc_by_node  # noqa: PLC0415 (loads pydantic)

    return nproc_by_node(profile)[node]


def _look(machine: Any, host: Any, workdir: str, python: str | None, profile: Any, node: int) -> _Seen:
    """The checks that a node can make of itself; `python` is None where an image has it."""
    session = machine.session(host, workdir)
    before = time.time()
    seen = _Seen(host.name, {}, {}, {})
    seen.add("ssh", OK, "connected")
    try:
        hello, _ = session.call("hello", workdir=workdir)
    except BackendError as error:
        seen.add("workdir", FAIL, error.message, "set workdir in the profile to a folder of yours")
        return seen
    skew = hello["time"] - (before + time.time()) / 2
    seen.hello = hello
    seen.add("python3", OK, hello["python"])
    free, shm = hello["free"], hello["shm"]
    seen.add("workdir", OK if free >= LEAST_FREE else WARN, f"{hello['workdir']}, {free >> 20} MiB free")
    seen.add("clock", OK if abs(skew) <= MOST_SKEW else WARN, f"{skew:+.1f} s")
    seen.add("shm", OK if shm >= LEAST_SHM else WARN, f"{shm >> 20} MiB")
    _check_ranks(seen, hello, _asked(profile, node))
    if python is None:
        _check_runtime(seen, session, profile.runtime)
    else:
        _check_training(seen, session, python)
    return seen


def _check_runtime(seen: _Seen, session: Any, runtime: str) -> None:
    try:
        found, _ = session.call("container", runtime=runtime)
        how = ", rootless: for runs of one node only" if found["rootless"] and runtime == "docker" else ""
        seen.add("runtime", WARN if how else OK, f"{runtime} {found['version']}{how}", "set runtime: podman")
    except BackendError as error:
        seen.add("runtime", FAIL, error.message, "set runtime: in the profile to what the nodes have")


def _check_training(seen: _Seen, session: Any, python: str) -> None:
    try:
        seen.training, _ = session.call("interpreter", python=python)
        torch = seen.training.get("torch")
        value = f"python {seen.training['python']}, torch {torch or 'missing'}"
        seen.add("training", OK if torch else FAIL, value, f"install torch for {python}, or set python: in the profile")
    except BackendError as error:
        seen.add("training", FAIL, error.message, "set python: in the profile to the interpreter that has torch")


def _check_ranks(seen: _Seen, hello: Mapping[str, Any], nproc: int | None) -> None:
    gpus, cores = hello["gpus"], hello["cores"]
    value = f"{nproc or f'auto: {gpus or cores}'} on {gpus} GPUs, {cores} cores"
    fits = nproc is None or nproc <= (gpus or cores)
    hint = "more ranks than GPUs: they train on the CPU" if gpus else "more ranks than cores: they take turns"
    seen.add("ranks", OK if fits else WARN, value, hint)


def _check_ways(machine: Any, hosts: Mapping[int, Any], workdir: str, profile: Any, seen: dict[int, _Seen]) -> None:
    """TCP from every node to node 0, on the ports that the gang would use."""
    from orchestrator.backends.hosts import on_all  # noqa: PLC0415 (`orch status` does without)

    if not seen[0].hello:
        return
    low, high = (int(part) for part in profile.ports.split("-")) if profile.ports else (None, None)
    ports = gang_ports("doctor", low, high) if low is not None and high is not None else gang_ports("doctor")
    try:
        port = machine.session(hosts[0], workdir).call("door", ports=ports)[0]["port"]
    except BackendError as error:
        seen[0].add("master", FAIL, error.message, "set ports: in the profile to a range that is free")
        return
    addrs = machine.leader_addresses(hosts[0], seen[0].hello)

    def knock(_: int, host: Any) -> dict[str, Any]:
        found: dict[str, Any] = machine.session(host, workdir).call("knock", addrs=addrs, port=port)[0]
        return found

    answers, failed = on_all(knock, {node: host for node, host in hosts.items() if seen[node].hello})
    for node, answer in answers.items():
        if answer["addr"] is None:
            hint = f"open port {port} to it, or set addr: of {hosts[0].name}, or ports: of the profile"
            seen[node].add("master", FAIL, "; ".join(answer["problems"]), hint)
        else:
            interface = f", {answer['interface']}" if answer["interface"] else ""
            seen[node].add("master", OK, f"{answer['addr']}:{port} from {answer['own']}{interface}")
    for node, problem in failed.items():
        seen[node].add("master", FAIL, problem.message, problem.hint)


def _compare_versions(seen: Mapping[int, _Seen]) -> None:
    known = {node: each.training.get("torch") for node, each in seen.items() if each.training.get("torch")}
    if not known:
        return
    usual = Counter(known.values()).most_common(1)[0][0]
    for node, version in known.items():
        same = version == usual
        seen[node].add(
            "same versions", OK if same else FAIL, f"torch {version}", f"the others have torch {usual}: install that"
        )


def holdings(profile: Any) -> list[dict[str, Any]]:
    """For every host of an ssh profile, spares included: cores, GPUs, free space, and who holds which place.

    Of a slurm profile, the cluster's partitions.
    """
    if profile.kind == "slurm":
        from orchestrator.backends.slurm_cluster import partitions  # noqa: PLC0415 (as below)

        cluster: Any = backend(kind_of(dict(profile)))
        return [row.to_json() for row in partitions(cluster.client(dict(profile)))]
    from orchestrator.backends.hosts import hosts_of, on_all, workdir_of  # noqa: PLC0415 (`orch status` does without)

    if profile.kind != "ssh":
        raise UsageError(f"profiles of kind {profile.kind} have no hosts of their own", "name an ssh profile")
    machine: Any = backend("ssh")
    values = profile.model_dump(mode="json")
    nodes, spares = hosts_of(values)
    hosts, workdir = dict(enumerate([*nodes, *spares])), workdir_of(values)

    def one(number: int, host: Any) -> dict[str, Any]:
        session = machine.session(host, workdir)
        hello, _ = session.call("hello", workdir=workdir)
        places = session.call("leases", slots=profile.slots)[0]["places"]
        shown = {name: hello[name] for name in ("cores", "gpus", "free", "python")}
        return {"host": host.name, "spare": number >= len(nodes), **shown, "places": places}

    found, failed = on_all(one, hosts)
    for number, problem in failed.items():
        found[number] = {"host": hosts[number].name, "spare": number >= len(nodes), "problem": problem.message}
    return [found[number] for number in sorted(found)]
