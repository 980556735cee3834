"""The profiles of machines on which orch starts the agents, and the base of every profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from orchestrator.protocol.hostlist import expand
from orchestrator.specs.allocation import ALLOCATION, with_allocation
from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.environment import set_by_orch
from orchestrator.specs.fields import (
    FORMAT_VERSION,
    LOGIN,
    Also,
    Arg,
    Count,
    EnvName,
    Jumps,
    Line,
    Name,
    Seconds,
    Spec,
    UserName,
    host_name,
)
from orchestrator.transport.address import split_port

if TYPE_CHECKING:
    from orchestrator.specs.job import Job

Nproc = Annotated[int, Field(ge=1, le=1024)]


class ProfileBase(Spec):
    """The fields that every kind of profile has."""

    version: Literal[1] = FORMAT_VERSION
    name: Name
    nodes: Count = 1
    nproc_per_node: Nproc | Literal["auto"] | tuple[Nproc, ...] = Field(
        "auto", description="ranks per node; auto: its GPUs, else its cores; a list: one number per node"
    )
    backend: Literal["auto", "nccl", "gloo", "cpu:gloo,cuda:nccl", "mpi"] = Field(
        "auto", description="of torch.distributed; auto: nccl where each rank has a GPU, else gloo"
    )
    runtime: Literal["none", "docker", "podman", "apptainer", "pyxis"] = "none"
    gpu_flag: Literal["auto", "none", "gpus", "cdi", "nv"] = Field("auto", description="how the runtime is given GPUs")
    python: Line | None = Field(None, description="the interpreter that trains, on the nodes")
    workdir: Line | None = Field(None, description="orch's folder on the nodes")
    shared: bool = Field(False, description="is workdir the same folder on all nodes?")
    shared_parent: bool = Field(False, description="trust those who may write into the folders above workdir")
    setup: tuple[Line, ...] = Field((), description="shell lines run before the launcher: module load cuda")
    interface: Line | None = Field(None, description="network interface of the ranks; found by the route")
    ports: Annotated[str, Field(pattern=r"^\d{1,5}-\d{1,5}$")] | None = Field(
        None, description="the agents' rendezvous ports, for firewalls: 20000-20100"
    )
    env: dict[EnvName, Arg] = Field({}, description="variables of the site, which a job's own come before")
    defaults: dict[str, Any] = Field({}, description="job fields that hold where the job says nothing")

    @field_validator("ports")
    @classmethod
    def _port_range(cls, text: str | None) -> str | None:
        if text is not None:
            low, high = (int(part) for part in text.split("-"))
            if not 1024 <= low <= high <= 65535:
                raise ValueError(f"'{text}' is not a range of ports between 1024 and 65535")
        return text

    @field_validator("env")
    @classmethod
    def _not_orchs_own(cls, env: dict[str, str]) -> dict[str, str]:
        if taken := sorted(filter(set_by_orch, env)):
            raise ValueError(f"{', '.join(taken)}: set by orch for each rank, so a profile may not")
        return env

    @model_validator(mode="after")
    def _one_nproc_a_node(self) -> ProfileBase:
        if isinstance(self.nproc_per_node, tuple) and len(self.nproc_per_node) != self.nodes:
            raise ValueError(f"nproc_per_node lists {len(self.nproc_per_node)} numbers for {self.nodes} nodes")
        return self

    def notes(self) -> Sequence[str]:
        """Return notes on fields whose meaning orch can't check."""
        return ()

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return what can't work about this job on this profile, in ways that only this kind of profile knows."""
        return ()


class LocalProfile(ProfileBase):
    """This machine; several nodes become several agents on it."""

    kind: Literal["local"]
    leases: bool = Field(True, description="hold GPUs, so that no other run of orch takes them")


class Host(Spec):
    """One SSH host; a range such as `n[1-3]` stands for several."""

    host: Line
    user: UserName | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Line | None = Field(None, description="private key file on the submitting machine")
    jump: Jumps | None = Field(None, description="the host to go through")
    addr: Line | None = Field(None, description="what the other nodes call this one")
    nproc_per_node: Nproc | Literal["auto"] | None = None
    python: Line | None = None


def _host(value: object) -> object:
    """Read `host`, `user@host` or `user@host:port`."""
    if not isinstance(value, str):
        return value
    user, at, rest = value.rpartition("@")
    host, port = split_port(rest)
    if (at and not user) or not host or (port is not None and not port.isdigit()):
        raise ValueError(f"'{value}' is not a host; write host, user@host or user@host:port")
    return Host(host=host, user=user or None, port=None if port is None else int(port))


def _name_in(entry: object) -> str:
    """Return the name in an entry of `hosts`, without user and port; a range is kept as it is."""
    host = _host(entry)
    return host.host if isinstance(host, Host) else str(host.get("host", "")) if isinstance(host, dict) else ""


HostEntry = Annotated[Host, BeforeValidator(_host), Also("string")]


def _expanded(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    out: list[Host] = []
    for entry in hosts:
        names = expand(entry.host)
        addrs = expand(entry.addr) if entry.addr else [None] * len(names)
        if len(addrs) != len(names):
            raise ValueError(f"host '{entry.host}' names {len(names)} hosts, addr '{entry.addr}' {len(addrs)}")
        for name in (*names, *filter(None, addrs)):
            host_name(name)
        out += [entry.model_copy(update={"host": n, "addr": a}) for n, a in zip(names, addrs, strict=True)]
    seen: set[tuple[str, int | None]] = set()
    for entry in out:
        if (entry.host, entry.port) in seen:
            raise ValueError(f"host '{entry.host}' is listed twice")
        seen.add((entry.host, entry.port))
    return tuple(out)


def _counted(hosts: int) -> str:
    return "1 host is" if hosts == 1 else f"only {hosts} hosts are"


class SshProfile(ProfileBase):
    """Machines that are reached over SSH. They need python3 and nothing that orch installs."""

    kind: Literal["ssh"]
    hosts: Annotated[tuple[HostEntry, ...], Field(min_length=1), AfterValidator(_expanded), Also("string")] = Field(
        description="the nodes; allocation: the machines of the scheduler's job in which orch runs"
    )
    spares: Annotated[tuple[HostEntry, ...], AfterValidator(_expanded), Also("integer")] = ()
    user: UserName | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Line | None = None
    jump: Jumps | None = None
    slots: Count | None = Field(None, description="ranks that a host without GPUs takes at a time, of all its users")
    leases: bool = Field(True, description="hold GPUs and slots, so that no other run of orch takes them")
    node_wait: Seconds = Field(1800, description="how long a lost host is waited for where no spare is left")
    supervisor: Annotated[str, Field(pattern=rf"^(here|{LOGIN})$")] = Field(
        "here", description="the machine that supervises the run: here, or user@host with orch and keys for the hosts"
    )
    supervisor_orch: Line = Field("orch", description="the orch program on that machine")
    second_copy: bool = Field(True, description="keep each checkpoint on node 1 too, where workdir is not shared")
    min_nodes: Count | None = Field(None, description="continue without a lost node if this many nodes are left")

    @model_validator(mode="before")
    @classmethod
    def _all_hosts_by_default(cls, data: Any) -> Any:
        """Use every host as a node if `nodes` is left out, and the machines of an allocation as hosts."""
        if isinstance(data, dict) and data.get("hosts") == ALLOCATION:
            data = with_allocation(data)
        if isinstance(data, dict) and "nodes" not in data and isinstance(data.get("hosts"), list | tuple):
            try:
                count = sum(len(expand(_name_in(entry))) for entry in data["hosts"])
            except ValueError:
                return data  # the field's own validator reports the broken range
            return {**data, "nodes": max(count, 1)}
        return data

    @model_validator(mode="after")
    def _enough_hosts(self) -> SshProfile:
        if len(self.hosts) < self.nodes:
            raise ValueError(f"nodes is {self.nodes}, but {_counted(len(self.hosts))} listed")
        if (self.min_nodes or 0) > self.nodes:
            raise ValueError(f"min_nodes is {self.min_nodes}, but nodes is {self.nodes}")
        return self
