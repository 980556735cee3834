"""The kinds of profiles: orch's own kinds, and the kinds that installed packages add.

A package adds a kind by an entry point of the group `orchestrator.backends`. The entry point has the kind's name, and
its object is a `Kind`. CONTRIBUTING.md has the recipe. This module loads neither pydantic nor a backend, because `orch
status` imports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from orchestrator.errors import OrchError
from orchestrator.protocol.frozen import Value

if TYPE_CHECKING:
    from orchestrator.specs.profile import ProfileBase

GROUP: Final = "orchestrator.backends"
LOGIN: Final = "-login"  # the end of the name under which runs through a login node are recorded


class Nodes(Value):
    """The nodes of a plan: their names, their Python interpreters, and the addresses of node 0."""

    names: tuple[str, ...]
    pythons: tuple[str | None, ...]
    """The Python interpreter of each node; None if the node uses the profile's interpreter."""
    leader_addresses: tuple[str, ...]
    """The addresses at which the other nodes may reach node 0, in order; empty if they are not known yet."""
    master: str
    """The value of MASTER_ADDR. If it is not known yet, a description of it."""


class Kind(Value):
    """One kind of profile. `model`, `backend` and `login_backend` have the form `module:Name` and are imported when
    needed.

    The methods get a profile of this kind.
    """

    name: str
    model: str
    """The class of its profiles, a subclass of `orchestrator.specs.profile.ProfileBase`."""
    backend: str
    """The subclass of `orchestrator.backends.base.Backend`, or a function that returns the backend."""
    login_backend: str = ""
    """The backend of profiles that name a login node (`login:`); "" if this kind has no login nodes."""
    scheduler: str = ""
    """The scheduler's name in messages, such as "Slurm"; "" if orch itself chooses the machines. A scheduler gets the
    runs of a sweep as one array.
    """
    verb: str = "agent"
    """The command of node.pyz that starts a node's agent, or the first process of a job."""
    check: str = ""
    """The scheduler's command with which `orch plan --check` tests whether a job would be accepted."""
    runtimes: tuple[str, ...] = field(default=("docker", "podman", "apptainer"))
    """The container runtimes that the kind's nodes can have."""
    parallel: int = 1
    """The default for how many points of a sweep run at the same time."""
    on_this_machine: bool = False
    """True if all nodes are this machine, so that its interpreters, cores and GPUs can be examined before a start."""

    def nodes(self, profile: Any) -> Nodes:
        """Return the nodes of a plan. This default is for kinds whose scheduler chooses the nodes."""
        names = tuple(f"{self.name} node {rank}" for rank in range(profile.nodes))
        return Nodes(names, (None,) * profile.nodes, (), "node 0's address inside the allocation")

    def ranks(self, profile: Any) -> list[int | str]:
        """Return for each node the number of its ranks, or "auto"."""
        asked = profile.nproc_per_node
        return list(asked) if isinstance(asked, tuple) else [asked] * profile.nodes


class _Local(Kind):
    def nodes(self, profile: Any) -> Nodes:
        address = "127.0.0.1"
        return Nodes(("localhost",) * profile.nodes, (None,) * profile.nodes, (address,), address)


class _Ssh(Kind):
    def nodes(self, profile: Any) -> Nodes:
        chosen = profile.hosts[: profile.nodes]
        address = chosen[0].addr or chosen[0].host
        pythons = tuple(host.python for host in chosen)
        return Nodes(tuple(host.host for host in chosen), pythons, (address,), address)

    def ranks(self, profile: Any) -> list[int | str]:
        general = super().ranks(profile)
        return [host.nproc_per_node or each for host, each in zip(profile.hosts, general, strict=False)]


_MODELS: Final = "orchestrator.specs.profile"
_BACKENDS: Final = "orchestrator.backends"
LOCAL: Final = _Local("local", f"{_MODELS}:LocalProfile", f"{_BACKENDS}.agents.backend:Agents", on_this_machine=True)
SSH: Final = _Ssh("ssh", f"{_MODELS}:SshProfile", f"{_BACKENDS}.agents.over_ssh:AgentsOverSsh")
SLURM: Final = Kind(
    "slurm",
    "orchestrator.specs.slurm_profile:SlurmProfile",
    f"{_BACKENDS}.slurm.scheduler:here",
    f"{_BACKENDS}.slurm.scheduler:through_login",
    scheduler="Slurm",
    verb="slurm",
    check="sbatch --test-only",
    runtimes=("docker", "podman", "apptainer", "pyxis"),
    parallel=16,
)
SGE: Final = Kind(
    "sge",
    "orchestrator.specs.sge_profile:SgeProfile",
    f"{_BACKENDS}.sge.scheduler:here",
    f"{_BACKENDS}.sge.scheduler:through_login",
    scheduler="Grid Engine",
    verb="job",
    check="qsub -w v",
    parallel=16,
)
PBS: Final = Kind(
    "pbs",
    "orchestrator.specs.pbs_profile:PbsProfile",
    f"{_BACKENDS}.pbs.scheduler:here",
    f"{_BACKENDS}.pbs.scheduler:through_login",
    scheduler="PBS",
    verb="job",
    parallel=16,
)
OWN: Final[Mapping[str, Kind]] = {kind.name: kind for kind in (LOCAL, SSH, SLURM, SGE, PBS)}
"""orch's own kinds by name. With this table, most commands need not search all installed packages for kinds."""


def find(name: str) -> Kind | None:
    """Return the kind of this name; None if neither orch nor an installed package defines it.

    Raises OrchError if the package that defines the kind can't be imported.
    """
    return OWN.get(name) or _added(name)


def kind_named(name: str) -> Kind:
    """Return the kind of a recorded profile. Raises OrchError if the package that defines the kind is no longer
    installed.
    """
    if (found := find(name)) is None:
        raise OrchError(f"no installed package has profiles of kind {name}", "reinstall the package that adds it")
    return found


def every() -> Iterator[Kind]:
    """Yield orch's own kinds, then the kinds that installed packages add."""
    from importlib.metadata import entry_points

    yield from OWN.values()
    for name in sorted({point.name for point in entry_points(group=GROUP)} - OWN.keys()):
        if (kind := _added(name)) is not None:
            yield kind


@cache
def _added(name: str) -> Kind | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        try:
            found = point.load()
        except Exception as error:
            said = f"profiles of kind {name} can't be used: {point.value} can't be loaded: {error}"
            raise OrchError(said, "reinstall or remove the package that adds this kind") from error
        if isinstance(found, Kind) and found.name == name:
            return found
        raise OrchError(f"profiles of kind {name} can't be used: {point.value} is not a Kind of that name")
    return None


def named(path: str) -> Any:
    """Import and return the object that `module:Name` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def model_of(kind: Kind) -> type[ProfileBase]:
    """Return the class that validates profiles of a kind, such as `slurm`."""
    found: type[ProfileBase] = named(kind.model)
    return found
