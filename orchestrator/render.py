"""Text for people: tables, one run's page, the plan, a verdict. Pure: values in, text out."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.records import RunState, Verdict
from orchestrator.wire import NodeTask, node_folder

if TYPE_CHECKING:
    from orchestrator.plan import LaunchPlan

Style = Callable[[str, str], str]  # (text, colour) -> text
IN_ORDER = ("exit code 0", "exit code 95", "SIGTERM", "SIGKILL")  # what an end that orch asked for looks like
COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "restarting": "magenta"}


def plain(text: str, _colour: str) -> str:
    """A style that leaves the text as it is."""
    return text


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], style: Style = plain, colour_of: int | None = None
) -> str:
    """Columns as wide as their longest cell; one column may be coloured by its word."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        if number and colour_of is not None:
            cells[colour_of] = style(cells[colour_of], COLOURS.get(line[colour_of], ""))
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def duration(seconds: float | None) -> str:
    """`8.3 s`, `2 min 05 s`, `3 h 12 min`, `4 d 2 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if round(seconds, 1) < 60:
        return f"{max(0.0, seconds):.1f} s"  # below nought only where two hosts' clocks differ
    minutes, rest = divmod(round(seconds) if seconds < 60 else int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def progress(beat: Mapping[str, Any] | None) -> str:
    """`step 340/1250 (27 %), loss 0.1234, 5,210 samples/s, ETA 1 min 02 s`; empty without a beat."""
    if not beat:
        return ""
    known = {key: value for key, value in beat.items() if isinstance(value, int | float)}
    step, total = known.get("step", 0), known.get("total")
    parts = [f"step {step}/{total} ({100 * step / total:.0f} %)" if total else f"step {step}"]
    if "loss" in known:
        parts.append(f"loss {known['loss']:.4f}")
    if known.get("rate"):
        parts.append(f"{known['rate']:,.0f} samples/s")
    if known.get("eta"):
        parts.append(f"ETA {duration(known['eta'])}")
    return ", ".join(parts)


def result_line(result: Mapping[str, Any] | None) -> str:
    """The program's own result on one line: `accuracy 98.31 % on mnist, loss 0.0712, step 1250`."""
    if not result:
        return ""
    words = []
    accuracy, data = result.get("accuracy"), result.get("data")
    if isinstance(accuracy, int | float):
        words.append(f"accuracy {100 * accuracy:.2f} %" + (f" on {data}" if data else ""))
    for key in ("loss", "step", "seconds"):
        value = result.get(key)
        if isinstance(value, int | float):
            words.append(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}")
    if result.get("stand_in"):
        words.append("NOT THE DATA THAT WAS ASKED FOR: a stand-in, see the log")
    return ", ".join(words) or ", ".join(f"{key} {value}" for key, value in list(result.items())[:4])


def status_table(rows: Iterable[tuple[RunState, Mapping[str, Any] | None]], now: float, style: Style = plain) -> str:
    """One line a run: id, state, profile, ranks, age, time taken, and the word that matters most."""
    return status_lines([status_line(state, beat, now) for state, beat in rows], style)


def status_line(state: RunState, beat: Mapping[str, Any] | None, now: float) -> list[str]:
    """The cells of one run."""
    ranks = str(state.world_size) if state.world_size else "?"
    took = duration((state.ended or now) - state.started) if state.started else "-"
    return [state.run_id, state.state, state.profile, ranks, ago(state.created, now), took, note(state, beat)]


def status_lines(lines: Sequence[Sequence[str]], style: Style = plain) -> str:
    """The table of these cells."""
    if not lines:
        return "no runs yet; start one: orch submit JOB --profile PROFILE"
    return table(["RUN", "STATE", "PROFILE", "RANKS", "SUBMITTED", "TOOK", "NOTE"], lines, style, colour_of=1)


def ago(created: float, now: float) -> str:
    """`8.3 s ago`."""
    return f"{duration(now - created)} ago" if created else "-"


def note(state: RunState, beat: Mapping[str, Any] | None) -> str:
    """The word that matters most about a run."""
    if state.verdict is not None:
        reason = (state.verdict.reason.splitlines() or [""])[0]
        return reason if len(reason) <= 80 else f"{reason[:77]}..."
    return "; ".join(filter(None, [state.detail, progress(beat)]))


def status_page(state: RunState, beat: Mapping[str, Any] | None, result: Mapping[str, Any] | None, folder: str,
                now: float, style: Style = plain) -> str:  # fmt: skip
    """Everything about one run on one screen."""
    lines = [f"{state.run_id}  {style(state.state, COLOURS.get(state.state, ''))}"]
    facts = {
        "profile": f"{state.profile}, {len(state.nodes)} node{'s' * (len(state.nodes) != 1)}, "
        f"{state.world_size or '?'} ranks",
        "submitted": ago(state.created, now),
        "took" if state.is_final else "took" if state.is_final else "running": duration(
            (state.ended or now) - state.started
        )
        if state.started
        else "",
        "master": state.master,
        "attempt": f"{state.attempt} ({state.restarts} restart{'s' * (state.restarts != 1)})" if state.restarts else "",
        "progress": "" if state.is_final else progress(beat),
        "result": result_line(result),
        "detail": "" if state.is_final else state.detail,
        "folder": folder,
    }
    lines += [f"  {name:<10} {value}" for name, value in facts.items() if value]
    if state.verdict is not None and state.verdict.outcome == "failed":
        lines += ["", f"  {state.verdict.reason}", f"  more: orch why {state.run_id}"]
    rows = []
    for node in state.nodes:
        ranks = f"{node.ranks[0]}-{node.ranks[1] - 1}" if node.ranks else "-"
        blamed = state.verdict.rank if state.verdict else None
        ends = ", ".join(
            f"rank {rank}: {how}" for rank, how in sorted(node.exits.items()) if rank == blamed or how not in IN_ORDER
        )
        rows.append([str(node.node), node.host, node.state, ranks, ends])
    return "\n".join([*lines, "", table(["NODE", "HOST", "STATE", "RANKS", "ENDS"], rows)])


def notify_lines(told: Iterable[Mapping[str, Any]]) -> list[str]:
    """Which notifications were sent, and why others were not."""
    words = {"sent": "sent", "failed": "NOT SENT", "intent": "being sent"}
    return [
        f"notified of {line.get('event')}: {words.get(line['state'], line['state'])}"
        + (f": {line['problem']}" if line.get("problem") else "")
        for line in told
    ]


def verdict_page(state: RunState, style: Style = plain) -> str:
    """Why a run ended as it did, on one screen: who, where, how, the traceback, the last lines, what to do."""
    verdict = state.verdict
    if verdict is None:
        return f"{state.run_id} is {state.state}: it has not ended. See: orch status {state.run_id}"
    lines = [f"{state.run_id} {style(verdict.outcome, COLOURS.get(verdict.outcome, ''))}{_cause(verdict)}"]
    if verdict.reason:
        lines += ["", f"  {verdict.reason}"]
    if state.restarts:
        lines.append(f"  after {state.restarts} restart{'s' * (state.restarts != 1)} (attempt {verdict.attempt})")
    if verdict.hint:
        lines += ["", f"  hint: {verdict.hint}"]
    traceback = (verdict.error or {}).get("traceback") or ""
    if traceback.strip():
        lines += ["", "traceback:", *(f"  {line}" for line in traceback.rstrip().splitlines()[-25:])]
    said = [line for line in verdict.tail if line not in traceback]
    if said:
        lines += ["", f"last lines of rank {verdict.rank}:", *(f"  {line}" for line in said[-10:])]
    if verdict.rank is not None:
        lines += ["", f"its whole log: orch logs {state.run_id} --rank {verdict.rank}"]
    if verdict.survivors:
        lines += ["", f"still there: processes {', '.join(map(str, verdict.survivors))}"]
    return "\n".join(lines)


def _cause(verdict: Verdict) -> str:
    return f" ({verdict.cause.replace('_', ' ')})" if verdict.cause else ""


def plan_page(launch: LaunchPlan, *, commands: bool) -> str:
    """The rank table, the global batch and the limits; with `commands`, also exactly what would be started."""
    from orchestrator.plan import BOUND_LATER, ON_THE_NODES, ranks_of  # noqa: PLC0415 (loads pydantic)

    task, ranks = launch.tasks[0], ranks_of(launch)
    world = launch.world_size
    lines = [f"{launch.name} on {launch.profile['name']} ({launch.profile['kind']})"]
    facts: dict[str, str] = {
        "nodes": str(launch.nnodes),
        "world size": str(world) if world else ON_THE_NODES,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": BOUND_LATER,
        "gang ports": f"the first free of {', '.join(map(str, task.ports[:4]))} and {len(task.ports) - 4} more"
        if len(task.ports) > 5
        else ", ".join(map(str, task.ports)),
        "backend": launch.profile["backend"],
        "launcher": _launcher(task.launcher, task.program.kind),
        "container": _container(task),
        "checkpoints": f"{task.checkpoint_dir} (keep {task.checkpoint_keep}, resume {task.resume})",
        "code": task.code_dir,
        "limits": f"join {duration(task.join_timeout)}, grace {duration(task.grace)}, "
        f"time {duration(launch.time_limit) if launch.time_limit else 'unlimited'}",
        "restarts": ", ".join(f"{cause} {'unlimited' if n is None else n}" for cause, n in task.retry.items()),
        "secrets": ", ".join(f"{name}=***" for name in launch.secret_names),
    }
    if launch.global_batch:
        facts["batch"] = f"{launch.global_batch} samples a step"
        facts["batch"] += f", {launch.global_batch // world} a rank" if world else ""
    lines += [f"  {name:<12} {value}" for name, value in facts.items() if value]
    rows = [[str(row.rank), str(row.node_rank), row.host, str(row.local_rank)] for row in ranks]
    if rows:
        lines += ["", table(["RANK", "NODE", "HOST", "LOCAL RANK"], rows)]
    if commands:
        lines += ["", *_commands(launch)]
    return "\n".join(lines)


def _launcher(asked: str, kind: str) -> str:
    if asked != "auto":
        return asked
    return "exec (a command is not forked)" if kind == "command" else "auto (fork, or exec where the node has GPUs)"


def _container(task: NodeTask) -> str:
    if task.container is None:
        return ""
    pulled = {"missing": "pulled where it is missing", "always": "pulled before", "never": "never pulled"}
    return f"{task.container.image} in {task.container.runtime}, {pulled[task.container.pull]}"


def _commands(launch: LaunchPlan) -> list[str]:
    if launch.profile["kind"] == "slurm":
        return [*_batch_script(launch), *_ranks(launch)]
    lines = ["commands:"]
    for task, argv in zip(launch.tasks, launch.commands, strict=True):
        lines.append(f"  node {task.node_rank} ({task.host}): {shlex.join(argv)}")
    return [*lines, *_ranks(launch)]


def _batch_script(launch: LaunchPlan) -> list[str]:
    from orchestrator.backends import kind_of, scheduler  # noqa: PLC0415 (loads submitit)

    script = scheduler(kind_of(launch.profile)).script(launch).rstrip()
    lines = ["the batch script, for sbatch:", *(f"  {line}".rstrip() for line in script.splitlines())]
    return [*lines, "", "what its task on each node becomes:", f"  {shlex.join(launch.commands[0])}"]


def check_line(verdict: str, value: str, hint: str) -> str:
    """What Slurm said to the batch script."""
    if verdict == "ok":
        return f"sbatch --test-only: Slurm would start it {value}"
    return f"sbatch --test-only: refused: {value}" + (f"\n  {hint}" if hint else "")


def _ranks(launch: LaunchPlan) -> list[str]:
    from orchestrator.plan import ranks_of  # noqa: PLC0415 (loads pydantic)

    lines = _entering(launch.tasks[0])
    ranks = ranks_of(launch)
    if ranks:
        lines += ["", "each rank:", f"  cd {shlex.quote(launch.tasks[0].code_dir)}", f"  {shlex.join(ranks[0].argv)}"]
        lines += ["", "environment of rank 0:", *_assignments({**launch.tasks[0].env, **ranks[0].environment})]
        for row in ranks[1:]:
            changed = {k: v for k, v in row.environment.items() if v != ranks[0].environment[k]}
            lines += [f"rank {row.rank} differs in:", *_assignments(changed)]
    return lines


def _entering(task: NodeTask) -> list[str]:
    """How a launcher gets into its container, but for what only its node knows."""
    from orchestrator.node.containers import Facts, argv  # noqa: PLC0415 (only a dry run needs it)

    if task.container is None:
        return []
    cidfile = f"{node_folder(task.run_dir, task.node_rank)}/container_{task.attempt}.id"
    words = argv(task, Facts(), task.attempt, task.container.image, cidfile=cidfile)
    return ["", "the launcher of node 0, but for the GPUs, cores and memory of that node:", f"  {shlex.join(words)}"]


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"  {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def differences_page(first: str, second: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """What differs between the same job under two profiles."""
    if not rows:
        return f"{first} and {second} make the same plan"
    return table(["", first, second], rows)


def next_commands(run_id: str) -> str:
    """What one can do with a run that has just been submitted."""
    return (
        f"  orch logs -f {run_id}     follow rank 0\n"
        f"  orch status {run_id}      nodes, ranks, progress\n"
        f"  orch cancel {run_id}      stop it, with a checkpoint"
    )


def clock() -> float:
    """The time that ages are counted from."""
    return time.time()
