"""The settings of local and ssh profiles, with the profile's values filled in for each host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from orchestrator.errors import BackendError
from orchestrator.protocol.frozen import Value
from orchestrator.protocol.quantities import size
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import HERE, SSH, Address

if TYPE_CHECKING:
    from orchestrator.specs.profile import Host as SshHost
    from orchestrator.specs.profiles import AnyProfile

LEAST_FREE: Final = 64 << 20  # bytes; no run is submitted to a machine with less free space
WORKDIR: Final = "~/.orch"
OF_A_HOST: Final = ("user", "port", "key", "jump")  # fields of a host whose default is the profile's field
OF_THE_PROFILE: Final = ("python", "shared", "slots", "leases", "shared_parent", "min_nodes", "ports", "interface")
CACHE_DAYS: Final = 30  # the age at which unused contents are removed from a cache


class Host(Value):
    """The machine of a node: how to reach it, the name that the other nodes use for it, and its own interpreter."""

    address: Address
    addr: str | None = None
    python: str | None = None

    @property
    def name(self) -> str:
        """Return the machine's name for people."""
        return self.address.host

    @property
    def is_here(self) -> bool:
        """Return True if the host is this machine."""
        return self.address.host == HERE

    def to_json(self) -> dict[str, Any]:
        """Return the host as JSON types."""
        address = asdict(self.address)
        own = {name: value for name in ("python", "setup") if (value := address.pop(name))}
        return {**asdict(self), "address": {**address, **own}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Host:
        """Return the host from the value of `to_json`."""
        address = {**data["address"], **{name: tuple(data["address"].get(name, ())) for name in ("by", "setup")}}
        return Host(Address(**address), data["addr"], data["python"])


class AgentsSettings(Value):
    """The settings of a local or ssh profile: its machines, and how agents are started on them."""

    hosts: tuple[Host, ...]  # the nodes' machines
    spares: tuple[Host, ...] = ()
    workdir: str = WORKDIR  # orch's folder on the machines, `~` unexpanded
    python: str | None = None
    shared: bool = False
    slots: int | None = None
    leases: bool = True  # whether runs hold GPUs and slots for themselves
    shared_parent: bool = False  # whether other users may write into the folders above workdir
    min_nodes: int | None = None
    node_wait: float = 0.0
    ports: str | None = None
    interface: str | None = None

    @property
    def all_hosts(self) -> dict[int, Host]:
        """Return all machines as a dict from their number: first the nodes' machines, then the spares."""
        return dict(enumerate([*self.hosts, *self.spares]))

    @staticmethod
    def of(profile: AnyProfile) -> AgentsSettings:
        """Return the settings of a local or ssh profile. If a host does not set a field, the profile's value is used.

        A local profile has this machine as the host of each of its nodes. Raises TypeError for another kind of profile.
        """
        from orchestrator.specs.profile import LocalProfile, SshProfile, as_profile

        if isinstance(profile, LocalProfile):
            here = Host(Address(HERE, **starters(profile)))
            return AgentsSettings(
                (here,) * profile.nodes, workdir=workdir_of(profile), python=profile.python, shared=profile.shared,
                leases=profile.leases, shared_parent=profile.shared_parent, ports=profile.ports,
                interface=profile.interface,
            )  # fmt: skip
        ssh = as_profile(profile, SshProfile)
        by = ssh.start_by if ssh.start_by != (SSH,) else ()

        def host(entry: SshHost) -> Host:
            own: dict[str, Any] = {name: getattr(entry, name) or getattr(ssh, name) for name in OF_A_HOST}
            address = Address(entry.host, by=by, job=ssh.job or "", **own, **starters(ssh, entry.python))
            return Host(address, entry.addr, entry.python)

        return AgentsSettings(
            hosts=tuple(map(host, ssh.hosts[: ssh.nodes])),
            spares=tuple(map(host, ssh.spares)),
            workdir=workdir_of(ssh),
            node_wait=float(ssh.node_wait),
            **{name: getattr(ssh, name) for name in OF_THE_PROFILE},
        )


def starters(profile: AnyProfile, python: str | None = None) -> dict[str, Any]:
    """Return the fields of an address with which orch's server runs on a machine whose python3 is too old. `python` is
    the machine's own interpreter. In a profile for containers, `python` is an interpreter of the image, so it is not
    used.
    """
    on_host = profile.runtime == "none"
    return {"python": (python or profile.python) if on_host else None, "setup": profile.setup}


def workdir_of(profile: AnyProfile) -> str:
    """Return orch's folder on the machines of a profile. `~` is not expanded."""
    return profile.workdir or WORKDIR


def run_folder(workdir: str, run_id: str) -> str:
    """Return the path of a run's folder on a machine on which `workdir` is orch's folder."""
    return f"{workdir}/runs/{run_id}"


def remote_folder(run: RunDir) -> str:
    """Return the run's folder on the machines. `~` is not expanded."""
    return run_folder(workdir_of(run.record().profile), run.run_id)


def need_room(machine: str, folder: str, free: int) -> None:
    """Raise BackendError if the disk of orch's folder on a machine is nearly full."""
    if free < LEAST_FREE:
        raise BackendError(f"{machine}: {folder} has only {size(free)} left", "make room on that disk")


def tls_problem(lacks: str) -> str:
    """Return why a machine can't take part in a run of several nodes; "" if it can. `lacks` says what the machine lacks
    for TLS 1.3, or is "".
    """
    return f"{lacks}, by which nodes authenticate one another" if lacks else ""
