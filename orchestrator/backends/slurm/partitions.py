"""The partitions of a Slurm cluster, and the check whether a profile fits them before a job is queued."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.backends.base import CheckResult, Level
from orchestrator.backends.batch.queues import Partition
from orchestrator.backends.batch.site import Site, first_line
from orchestrator.backends.slurm.environment import filled
from orchestrator.backends.slurm.errors import refusal
from orchestrator.backends.slurm.script import asked_of, cores_per_node, options_in
from orchestrator.backends.slurm.settings import settings_of
from orchestrator.errors import BackendError
from orchestrator.specs.sbatch_options import gpus_in, seconds_in

if TYPE_CHECKING:  # commands that only read runs must not wait for pydantic
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.slurm_profile import SlurmProfile

SINFO_FORMAT: Final = "%P|%a|%l|%D|%A|%c|%m|%G|%N"


def parse_sinfo(text: str) -> list[Partition]:
    """Return the rows in the output of `sinfo -h -o SINFO_FORMAT`. Rows in an unknown form are ignored."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 8)]
        if len(parts) > 7 and parts[3].isdecimal():
            name, state, limit, nodes, used, cores, memory, gres, hosts = [*parts, ""][:9]
            idle = used.partition("/")[2]
            found.append(
                Partition(
                    name.removesuffix("*"), name.endswith("*"), state == "up", seconds_in(limit), int(nodes),
                    int(idle) if idle.isdecimal() else 0, cores, memory, "" if gres == "(null)" else gres, hosts,
                )
            )  # fmt: skip
    return found


def partitions(site: Site) -> list[Partition]:
    """Return the cluster's partitions from the present output of sinfo. Raises BackendError if Slurm can't be
    queried.
    """
    answer = site.call("sinfo", "-h", "-o", SINFO_FORMAT)
    if answer.code != 0:
        raise BackendError(
            f"Slurm can't be asked: {first_line(answer.err)}",
            "check whether Slurm's controller is up: scontrol ping",
            transient=True,
        )
    return parse_sinfo(answer.out)


def cores_per_gpu(settings: SlurmProfile, rows: list[Partition], shown: str) -> int | None:
    """Return the number of cores per GPU in the profile's partition; None if it is unknown.

    It is the number that Slurm gives by default. Without such a default, it is a node's number of cores (or the
    partition's limit) divided by the node's number of GPUs. shown: the output of `scontrol show partition -o`.
    """
    if by_default := re.search(r"\bDefCpuPerGPU=(\d+)", shown):
        return int(by_default[1])
    most = [int(number) for number in re.findall(r"\bMaxCPUsPerNode=(\d+)", shown)]
    shares = [min([_least(row.cores), *most]) // gpus for row in _own(settings, rows) if (gpus := gpus_in(row.gres))]
    return min(shares, default=0) or None


def _least(cores: str) -> int:
    found = re.match(r"\d+", cores)
    return int(found[0]) if found else 0


def _own(settings: SlurmProfile, rows: list[Partition]) -> list[Partition]:
    wanted = settings.partition
    return [row for row in rows if (row.name in wanted.split(",") if wanted else row.is_default)]


def fits(settings: SlurmProfile, rows: list[Partition]) -> CheckResult:
    """Check that the partition exists and is up, permits the number of nodes and the time, and has nodes of
    sufficient size.
    """
    wanted, own = settings.partition, _own(settings, rows)
    if not own:
        names = ", ".join(dict.fromkeys(row.name for row in rows))
        what = f"there is no partition {wanted}" if wanted else "no partition is the default"
        return CheckResult(Level.FAIL, what, f"set `partition` in the profile to one of {names}")
    name = own[0].name
    total, idle = (sum(getattr(row, field) for row in own if row.name == name) for field in ("nodes", "idle"))
    limit = own[0].limit
    if settings.nodes_of_job > total:
        said = f"{name} has {total} nodes, the profile asks for {settings.nodes_of_job}"
        return CheckResult(Level.FAIL, said, "lower `nodes` in the profile")
    if limit is not None and settings.time is not None and settings.time > limit:
        said = f"{name} gives {limit // 60} min, the profile asks for {settings.time // 60}"
        return CheckResult(Level.FAIL, said, "lower `time` in the profile")
    by_name = {each.name: [row for row in own if row.name == each.name] for each in own}
    small = {each: _too_small(settings, its) for each, its in by_name.items()}  # Slurm may choose any of them
    if all(small.values()) and (found := small[name]):
        return CheckResult(
            Level.FAIL, f"{name}: {found[0]}", f"lower `{found[1]}` in the profile, or set `partition` to another"
        )
    if not own[0].is_up:
        return CheckResult(Level.WARN, f"partition {name} is down, so jobs wait", "ask the cluster's administrator")
    return CheckResult(Level.OK, f"{name}: {total} nodes, {idle} idle")


def _too_small(settings: SlurmProfile, rows: list[Partition]) -> tuple[str, str] | None:
    """Return (the requested numbers that the nodes lack, the field to change); None if enough nodes are large
    enough.
    """
    asked: tuple[tuple[int | None, str, str, list[int | None]], ...] = (
        (settings.cpus_per_task, "cores", "cpus_per_task", [_most(row.cores) for row in rows]),
        (-(-(settings.mem or 0) // 2**20), "MiB of memory", "mem", [_most(row.memory) for row in rows]),
        (settings.gpus_per_node, "GPUs", "gpus_per_node", [gpus_in(row.gres) for row in rows]),
    )
    for number, what, field, counts in asked:
        each = list(zip(rows, counts, strict=True))
        if number and sum(row.nodes for row, count in each if count is None or count >= number) < settings.nodes_of_job:
            small = [(row, count) for row, count in each if count is not None and count < number]
            said = " and ".join(f"{row.hosts or f'{row.nodes} nodes'} have {count}" for row, count in small)
            return f"{said} {what}, {number} asked", field
    return None


def _most(number: str) -> int | None:
    """Return the number that the nodes have; None if some nodes have more, or if the number can't be parsed."""
    return int(number) if number.isdecimal() else None


def refused(said: str, site: Site, launch: LaunchPlan) -> BackendError:
    """Return the error for sbatch's output when it refused a plan. The error has the numbers that exceed the
    partition's limits.
    """
    settings = asked_of(launch.profile, launch.job, 0)
    settings = replace(settings, cpus_per_task=cores_per_node(launch), time=launch.time_limit)
    error = refusal(said, settings, launch.time_limit, site.where)
    if error.transient:
        return error
    try:
        found = fits(settings, partitions(site))
    except BackendError:
        return error
    if found.level is not Level.FAIL or found.value in error.message:
        return error
    return BackendError(f"{error.message}; {found.value}", error.hint)


def would_take(site: Site, launch: LaunchPlan) -> CheckResult:
    """Check with `sbatch --test-only` whether Slurm would accept a plan's batch script. No job is queued."""
    script = site.scheduler.script(launch)
    answer = site.call("sbatch", "--test-only", *options_in(script), stdin=script)
    said = answer.err.strip() or answer.out.strip()
    if answer.code == 0:
        when = said.removeprefix("sbatch: ").partition(" to start ")[2].replace("T", " ")
        return CheckResult(Level.OK, when or said)
    error = refused(said.replace("allocation failure:", "error:"), site, launch)
    return CheckResult(Level.FAIL, error.message, error.hint)


def with_share_of_cores(launch: LaunchPlan, site: Site) -> LaunchPlan:
    """Return the plan with the number of cores for its GPUs. If that number is unknown or sbatch would refuse it,
    return the plan unchanged.
    """
    settings = settings_of(filled(launch, site.environment())[0].profile)
    rows = partitions(site)
    names = settings.partition.split(",") if settings.partition else [row.name for row in rows if row.is_default]
    shown = site.call("scontrol", "show", "partition", "-o", *names[:1]).out  # without a name it shows all
    if (share := cores_per_gpu(settings, rows, shown)) is None:
        return launch
    fuller = replace(launch, profile=replace(settings_of(launch.profile), cpus_per_gpu=share))
    site.need("sbatch")
    return fuller if would_take(site, filled(fuller, site.environment())[0]).level is not Level.FAIL else launch
