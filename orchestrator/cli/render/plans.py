"""Renders a plan: its ranks, hosts and commands, and the differences between two profiles."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import counted, table
from orchestrator.protocol.hostlist import FOLD_FROM, fold, in_words
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.quantities import duration, size
from orchestrator.protocol.task import NodeTask
from orchestrator.specs.kinds import kind_named

MOST_ROWS = 64  # if there are more ranks, ranges of nodes are shown

if TYPE_CHECKING:
    from orchestrator.prepare.prepare import Shipment
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.python_environment import PythonEnvironment


def plan_page(launch: LaunchPlan, *, commands: bool) -> str:
    """Return the page of a plan: facts, limits and the table of ranks. With `commands`, add the exact commands."""
    from orchestrator.specs.plan import BOUND_LATER, ON_THE_NODES

    task = launch.tasks[0]
    world = launch.world_size
    lines = [f"{launch.name} on {launch.profile.name} ({launch.profile.kind})"]
    facts: dict[str, str] = {
        "nodes": _nodes(launch),
        "world size": str(world) if world else ON_THE_NODES,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": BOUND_LATER,
        "agent ports": _gang_ports(task),
        "backend": launch.profile.backend,
        "launcher": _launcher(task.launcher, task.program.kind),
        "container": _container(task),
        "environment": _environment(launch.job.environment),
        "checkpoints": f"{task.checkpoint_dir} (keep {task.checkpoint_keep}, resume {task.resume})",
        "code": task.code_dir,
        "limits": f"join {duration(task.join_timeout)}, grace {duration(task.grace)}, "
        f"time {duration(launch.time_limit) if launch.time_limit else 'unlimited'}",
        "restarts": ", ".join(f"{cause} {'unlimited' if n is None else n}" for cause, n in task.retry.items()),
        "secrets": ", ".join(f"{name}=***" for name in launch.secret_names),
    }
    if launch.global_batch:
        facts["batch"] = f"{launch.global_batch} samples per step"
        facts["batch"] += f", {launch.global_batch // world} per rank" if world else ""
    lines += [f"  {name:<12} {value}" for name, value in facts.items() if value]
    if ranks := _rank_table(launch):
        lines += ["", ranks]
    if commands:
        lines += ["", *_commands(launch)]
    return "\n".join(lines)


def _rank_table(launch: LaunchPlan) -> str:
    """Return a row for each rank or, if there are many ranks, a row for each group of consecutive nodes with equal
    numbers of ranks.
    """
    from orchestrator.specs.plan import bindings_of, ranks_of

    if not _are_many(launch):
        rows = [[str(row.rank), str(row.node_rank), row.host, str(row.local_rank)] for row in ranks_of(launch)]
        return table(["RANK", "NODE", "HOST", "LOCAL RANK"], rows) if rows else ""
    rows = []
    for nproc, group in groupby(bindings_of(launch) or [], key=lambda binding: binding.nproc):
        nodes = list(group)
        first, last = nodes[0], nodes[-1]
        hosts = fold(dict.fromkeys(launch.tasks[node.node_rank].host for node in nodes))
        ranks = f"{first.rank_offset}-{last.rank_offset + nproc - 1}"
        rows.append([ranks, f"{first.node_rank}-{last.node_rank}", hosts, str(nproc)])
    return table(["RANKS", "NODES", "HOSTS", "PER NODE"], rows)


def _are_many(launch: LaunchPlan) -> bool:
    return (launch.world_size or launch.nnodes) > MOST_ROWS


def shipment_page(ships: Shipment) -> str:
    """Return lines about the files that are sent from this machine, and the programs that orch starts on it."""
    lines = ["shipped:", f"  {ships.folder}: {counted(ships.files, 'file')}, {size(ships.bytes)}"]
    lines += [f"  {one_line(ships.left_out.removeprefix('note: '))}"] if ships.left_out else []
    return "\n".join([*lines, *(["run on this machine:", *(f"  {line}" for line in ships.here)] if ships.here else [])])


def _nodes(launch: LaunchPlan) -> str:
    hosts = [task.host for task in launch.tasks]
    # Without an address of node 0, the hosts are not known yet.
    lists_them = bool(launch.tasks[0].leader_addrs) and len(set(hosts)) >= FOLD_FROM
    return f"{launch.nnodes}: {in_words(hosts)}" if lists_them else str(launch.nnodes)


def _gang_ports(task: NodeTask) -> str:
    low, high = task.port_range
    return f"chosen at submit, from {low}-{high}" if task.nnodes > 1 else ""


def _launcher(asked: str, kind: str) -> str:
    if asked != "auto":
        return asked
    return "exec (a command is not forked)" if kind == "command" else "auto (fork, or exec where the node has GPUs)"


def _container(task: NodeTask) -> str:
    if task.container is None:
        return ""
    pulled = {"missing": "pulled where it is missing", "always": "pulled before", "never": "never pulled"}
    return f"{task.container.image} in {task.container.runtime}, {pulled[task.container.pull]}"


def _environment(asked: PythonEnvironment | None) -> str:
    if asked is None:
        return ""
    python = f", Python {asked.python}" if asked.python else ""
    system = f", over the packages of {asked.system_packages}" if asked.system_packages else ""
    return f"{asked.lock}{python}{system}, installed on the nodes"


def _commands(launch: LaunchPlan) -> list[str]:
    from orchestrator.backends import backend_for, kind_of

    if script := backend_for(kind_of(launch.profile)).advice.script(launch):
        return [*_batch_script(launch, script), *_ranks(launch)]
    shown = 1 if _are_many(launch) else launch.nnodes
    lines = ["commands:"]
    for task, argv in zip(launch.tasks[:shown], launch.commands[:shown], strict=True):
        lines.append(f"  node {task.node_rank} ({task.host}): {shlex.join(argv)}")
    if shown < launch.nnodes:
        lines.append(f"  nodes 1-{launch.nnodes - 1}: the same, each with its own task.json")
    return [*lines, *_ranks(launch)]


def _batch_script(launch: LaunchPlan, script: str) -> list[str]:
    kind = kind_named(launch.profile.kind)
    said = f"the batch script, for {kind.check.partition(' ')[0]}:" if kind.check else "the batch script:"
    lines = [said, *(f"  {line}".rstrip() for line in script.rstrip().splitlines())]
    if kind.verb == "job":  # the script contains the command of its one process
        return lines
    return [*lines, "", "what its task on each node becomes:", f"  {shlex.join(launch.commands[0])}"]


def check_line(kind: str, level: str, value: str, hint: str) -> str:
    """Return a line with the scheduler's answer to the batch script."""
    asked = kind_named(kind)
    if level == "ok":
        return f"{asked.check}: {asked.scheduler} would start it {value}"
    return f"{asked.check}: refused: {value}" + (f"\n  {hint}" if hint else "")


def _ranks(launch: LaunchPlan) -> list[str]:
    from orchestrator.specs.plan import own_variables, ranks_of

    lines, task, ranks = _entering(launch.tasks[0]), launch.tasks[0], ranks_of(launch)
    if first := next(ranks, None):
        lines += ["", "each rank:", f"  cd {shlex.quote(task.code_dir)}", f"  {shlex.join(first.argv)}"]
        lines += ["", "environment of rank 0:", *_assignments({**task.env, **first.environment})]
        if _are_many(launch):
            return [*lines, "the other ranks differ in:", *(f"  {name}" for name in own_variables(launch))]
        for row in ranks:
            changed = {k: v for k, v in row.environment.items() if v != first.environment[k]}
            lines += [f"rank {row.rank} differs in:", *_assignments(changed)]
    return lines


def _entering(task: NodeTask) -> list[str]:
    """Return lines with the command that starts node 0's launcher in its container. Values that only the node can
    determine, such as its GPUs, are missing.
    """
    from orchestrator.node.container.argv import NodeResources, argv

    if task.container is None:
        return []
    cidfile = f"{node_folder(task.run_dir, task.node_rank)}/container_{task.attempt}.id"
    words = argv(task, NodeResources(), task.attempt, task.container.image, cidfile=cidfile)
    return ["", "the launcher of node 0, but for the GPUs, cores and memory of that node:", f"  {shlex.join(words)}"]


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"  {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def differences_page(first: str, second: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """Return the differences between the plans of one job for two profiles."""
    if not rows:
        return f"{first} and {second} make the same plan"
    return table(["", first, second], rows)
