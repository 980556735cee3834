"""The local and ssh profiles, on whose machines orch itself starts the agents, and the base class of all profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.spec import FORMAT_VERSION, Spec, setting

if TYPE_CHECKING:  # the border reads the types of fields; a submission of cached documents loads no pydantic
    from pydantic import AfterValidator, BeforeValidator, Field

    from orchestrator.specs.fields import (
        LOGIN,
        Also,
        Arg,
        Count,
        EnvName,
        JobNumber,
        Jumps,
        Line,
        Name,
        Nproc,
        Seconds,
        UserName,
        Way,
    )
    from orchestrator.specs.job import Job


def _port_range(text: str) -> str:
    low, high = (int(part) for part in text.split("-"))
    if not 1024 <= low <= high <= 65535:
        raise ValueError(f"'{text}' is not a range of ports between 1024 and 65535")
    return text


def _not_orchs_own(env: dict[str, str]) -> dict[str, str]:
    from orchestrator.specs.environment import set_by_orch

    if taken := sorted(filter(set_by_orch, env)):
        raise ValueError(f"{', '.join(taken)}: set by orch for each rank, so a profile can't set it")
    return env


class ProfileBase(Spec):
    """The fields that every kind of profile has."""

    if TYPE_CHECKING:
        kind: str  # each subclass declares it with its own value

    version: Literal[1] = FORMAT_VERSION
    name: Name
    nodes: Count = 1
    nproc_per_node: Nproc | Literal["auto"] | tuple[Nproc, ...] = setting(
        "ranks per node; auto: its GPUs, else its cores; a list: one number per node", default="auto"
    )
    backend: Literal["auto", "nccl", "gloo", "cpu:gloo,cuda:nccl", "mpi"] = setting(
        "torch.distributed's backend; auto: nccl if each rank has a GPU, else gloo", default="auto"
    )
    runtime: Literal["none", "docker", "podman", "apptainer", "pyxis"] = "none"
    gpu_flag: Literal["auto", "none", "gpus", "cdi", "nv"] = setting(
        "how the container runtime gets GPUs", default="auto"
    )
    python: Line | None = setting("the Python interpreter of the ranks, on the nodes", default=None)
    workdir: Line | None = setting("orch's folder on the nodes", default=None)
    shared: bool = setting("is workdir the same folder on all nodes?", default=False)
    shared_parent: bool = setting("trust the users who may write into the folders above workdir", default=False)
    setup: tuple[Line, ...] = setting("shell lines run before the launcher: module load cuda", default=())
    interface: Line | None = setting(
        "network interface of the ranks; by default that of the route to node 0", default=None
    )
    ports: Annotated[str, Field(pattern=r"^\d{1,5}-\d{1,5}$"), AfterValidator(_port_range)] | None = setting(
        "the agents' rendezvous ports, for firewalls: 20000-20100", default=None
    )
    env: Annotated[dict[EnvName, Arg], AfterValidator(_not_orchs_own)] = setting(
        "variables of the site; a job's own variables take precedence", default_factory=dict
    )
    defaults: dict[str, Any] = setting("values of job fields that the job leaves out", default_factory=dict)

    def check(self) -> None:
        if isinstance(self.nproc_per_node, tuple) and len(self.nproc_per_node) != self.nodes:
            raise ValueError(f"nproc_per_node lists {len(self.nproc_per_node)} numbers for {self.nodes} nodes")

    def notes(self) -> Sequence[str]:
        """Return notes on fields whose meaning orch can't check."""
        return ()

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return the problems of a job with this profile that depend on the profile's kind."""
        return ()

    def with_one_rank(self, nodes: int | None) -> Self:
        """Return the profile with one rank per node. If `nodes` is not None, the profile also gets this number of
        nodes.
        """
        return replace(self, nproc_per_node=1, nodes=self.nodes if nodes is None else nodes)


P = TypeVar("P", bound=ProfileBase)


def as_profile(profile: ProfileBase, cls: type[P]) -> P:
    """Return the profile as an instance of the class of its kind. Raises TypeError if it is of another kind."""
    if not isinstance(profile, cls):
        raise TypeError(f"profile {profile.name} is not a {cls.__name__}")
    return profile


class BatchProfile(ProfileBase):
    """A cluster whose scheduler starts the agents. orch runs where jobs are submitted, or reaches a login node."""

    if TYPE_CHECKING:  # each subclass declares these fields with its own description
        time: int | None
        login: str | None


class QsubProfile(BatchProfile):
    """A cluster whose scheduler has the command qsub."""

    if TYPE_CHECKING:
        qsub: dict[str, str | int | bool]


class LocalProfile(ProfileBase):
    """This machine. If `nodes` is more than 1, several agents run on it."""

    kind: Literal["local"]
    leases: bool = setting("hold GPUs, so that no other run of orch takes them", default=True)


class Host(Spec):
    """One SSH host, or several if `host` is a range such as `n[1-3]`."""

    host: Line
    user: UserName | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Line | None = setting("private key file on the submitting machine", default=None)
    jump: Jumps | None = setting("jump host, as in ssh -J", default=None)
    addr: Line | None = setting("the address by which other nodes reach this node", default=None)
    nproc_per_node: Nproc | Literal["auto"] | None = None
    python: Line | None = None


def _host(value: object) -> object:
    """Convert the short form `host`, `user@host` or `user@host:port` into a mapping."""
    if not isinstance(value, str):
        return value
    from orchestrator.transport.address import split_port

    user, at, rest = value.rpartition("@")
    host, port = split_port(rest)
    if (at and not user) or not host or (port is not None and not port.isdigit()):
        raise ValueError(f"'{value}' is not a host; write host, user@host or user@host:port")
    found = {"host": host, "user": user or None, "port": None if port is None else int(port)}
    return {name: value for name, value in found.items() if value is not None}


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _name_in(entry: object) -> str:
    """Return the name in an entry of `hosts`, without user and port. A range of hosts is not expanded."""
    host = _host(entry)
    return str(host.get("host", "")) if isinstance(host, dict) else ""


def _expanded(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    from orchestrator.protocol.hostlist import expand
    from orchestrator.specs.fields import host_name

    out: list[Host] = []
    for entry in hosts:
        names = expand(entry.host)
        addrs = expand(entry.addr) if entry.addr else [None] * len(names)
        if len(addrs) != len(names):
            raise ValueError(f"host '{entry.host}' names {len(names)} hosts, addr '{entry.addr}' {len(addrs)}")
        for name in (*names, *filter(None, addrs)):
            host_name(name)
        out += [replace(entry, host=n, addr=a) for n, a in zip(names, addrs, strict=True)]
    seen: set[tuple[str, int | None]] = set()
    for entry in out:
        if (entry.host, entry.port) in seen:
            raise ValueError(f"host '{entry.host}' is listed twice")
        seen.add((entry.host, entry.port))
    return tuple(out)


def _counted(hosts: int) -> str:
    return "1 host is" if hosts == 1 else f"only {hosts} hosts are"


class SshProfile(ProfileBase):
    """Machines that are reached over SSH. They need python3, and orch installs nothing on them."""

    kind: Literal["ssh"]
    hosts: Annotated[
        tuple[Annotated[Host, BeforeValidator(_host), Also("string")], ...],
        Field(min_length=1),
        AfterValidator(_expanded),
        Also("string"),
    ] = setting("the nodes; allocation: the machines of the scheduler's job in which orch runs", part=Host)
    start_by: Annotated[
        tuple[Way, ...],
        Field(min_length=1),
        BeforeValidator(_listed),
        Also("string"),
    ] = setting(
        "how programs are started on the hosts; if several ways are given, the first that works", default=("ssh",)
    )
    job: JobNumber | None = setting(
        "the scheduler's job that has the hosts, as slurm:7; hosts: allocation sets it and start_by", default=None
    )
    spares: Annotated[
        tuple[Annotated[Host, BeforeValidator(_host), Also("string")], ...], AfterValidator(_expanded), Also("integer")
    ] = setting(default=(), part=Host)
    user: UserName | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Line | None = None
    jump: Jumps | None = None
    slots: Count | None = setting(
        "number of ranks, of all users, that may run at a time on a host without GPUs", default=None
    )
    leases: bool = setting("hold GPUs and slots, so that no other run of orch takes them", default=True)
    node_wait: Seconds = setting(
        "how long to wait for a lost host if no spare is left, or for the last files of an ended run", default=1800
    )
    supervisor: Annotated[str, Field(pattern=rf"^(here|{LOGIN})$")] = setting(
        "the machine that supervises the run: here, or user@host with orch and keys for the hosts", default="here"
    )
    supervisor_orch: Line = setting("the orch program on that machine", default="orch")
    second_copy: bool = setting("keep each checkpoint on node 1 too, if workdir is not shared", default=True)
    min_nodes: Count | None = setting("continue without a lost node if this many nodes are left", default=None)

    @classmethod
    def before(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace `hosts: allocation` by the allocation's machines, and set a missing `nodes` to the number of
        hosts.
        """
        if data.get("hosts") == "allocation":
            from orchestrator.specs.allocation import with_allocation

            data = with_allocation(data)
        if "nodes" not in data and isinstance(data.get("hosts"), tuple):
            from orchestrator.protocol.hostlist import expand

            try:
                count = sum(len(expand(_name_in(entry))) for entry in data["hosts"])
            except ValueError:
                return data  # the field's own validator reports the broken range
            return {**data, "nodes": max(count, 1)}
        return data

    def check(self) -> None:
        super().check()
        if len(self.hosts) < self.nodes:
            raise ValueError(f"nodes is {self.nodes}, but {_counted(len(self.hosts))} listed")
        if (self.min_nodes or 0) > self.nodes:
            raise ValueError(f"min_nodes is {self.min_nodes}, but nodes is {self.nodes}")
        starter = SCHEDULERS[self.job.partition(":")[0]].starter if self.job else None
        if wrong := set(self.start_by) - {"ssh", starter.name if starter else ""}:
            raise ValueError(
                f"start_by names {wrong.pop()}, which needs a job of its scheduler: set `hosts: allocation`, or `job`"
            )

    def with_one_rank(self, nodes: int | None) -> Self:
        """Return the profile with one rank on each host. If `nodes` is not None, the profile also gets this number of
        nodes.
        """
        hosts = tuple(replace(host, nproc_per_node=None) for host in self.hosts)
        return replace(super().with_one_rank(nodes), hosts=hosts)
