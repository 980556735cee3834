"""Text for people: tables, one run's page, the plan, a verdict. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import COLOURS, Style, ago, alike, duration, output_files, plain, size, table
from orchestrator.protocol.hostlist import in_words, nodes_in_words
from orchestrator.runs.state import NodeState, Outcome, RunState, Verdict

if TYPE_CHECKING:  # `orch status` of ended runs must not wait for the supervisor's rules
    from orchestrator.operations.runs import OutputsThatGo

IN_ORDER = ("exit code 0", "exit code 95", "SIGTERM", "SIGKILL")  # what an end that orch asked for looks like


def progress(heartbeat: Mapping[str, Any] | None) -> str:
    """Return `step 340/1250 (27 %), loss 0.1234, 5,210 samples/s, ETA 1 min 02 s`; nothing without a heartbeat."""
    if not heartbeat:
        return ""
    known = {key: value for key, value in heartbeat.items() if isinstance(value, int | float)}
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
    """Return the program's result on a line: `accuracy 98.31 % on mnist, loss 0.0712, step 1250`."""
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
    return one_line(", ".join(words) or ", ".join(f"{key} {value}" for key, value in list(result.items())[:4]))


def status_table(rows: Iterable[tuple[RunState, Mapping[str, Any] | None]], now: float, style: Style = plain) -> str:
    """Return a line a run: id, state, profile, ranks, age, time taken, and the word that matters most."""
    return status_lines([status_line(state, heartbeat, now) for state, heartbeat in rows], style)


def status_line(state: RunState, heartbeat: Mapping[str, Any] | None, now: float) -> list[str]:
    """Return the cells of one run."""
    ranks = str(state.world_size) if state.world_size else "?"
    took = duration((state.ended or now) - state.started) if state.started else "-"
    return [state.run_id, state.state, state.profile, ranks, ago(state.created, now), took, note(state, heartbeat, now)]


def status_lines(lines: Sequence[Sequence[str]], style: Style = plain) -> str:
    """Return the table of these cells."""
    if not lines:
        return "no runs yet; start one: orch submit JOB --profile PROFILE"
    return table(["RUN", "STATE", "PROFILE", "RANKS", "SUBMITTED", "TOOK", "NOTE"], lines, style, colour_of=1)


def note(state: RunState, heartbeat: Mapping[str, Any] | None, now: float) -> str:
    """Return the word that matters most about a run."""
    if state.verdict is not None:
        reason = (state.verdict.reason.splitlines() or [""])[0]
        return reason if len(reason) <= 80 else f"{reason[:77]}..."
    return "; ".join(filter(None, [out_of_reach(state, now), state.detail, progress(heartbeat)]))


def out_of_reach(state: RunState, now: float) -> str:
    """Return `node 1 (n2) out of reach for 40 s: No route to host`; nothing where all machines answer, or all is over.

    Where it is node 0, what is shown of the training is as old.
    """
    nodes = [node for node in state.nodes if node.unreachable is not None]
    if not nodes or state.is_final:
        return ""
    first = min((node.unreachable for node in nodes if node.unreachable is not None), key=lambda each: each.since)
    why = f": {first.why.splitlines()[0]}" if first.why else ""
    old = "; what is shown is of then" if any(node.node == 0 for node in nodes) else ""
    names = nodes_in_words([(node.node, node.host) for node in nodes])
    return f"{names} out of reach for {duration(now - first.since)}{why}{old}"


def status_page(state: RunState, heartbeat: Mapping[str, Any] | None, result: Mapping[str, Any] | None, folder: str,
                now: float, style: Style = plain) -> str:  # fmt: skip
    """Return everything about one run on one screen."""
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
        "progress": "" if state.is_final else progress(heartbeat),
        "result": result_line(result),
        "machines": out_of_reach(state, now),
        "detail": "" if state.is_final else state.detail,
        "folder": folder,
    }
    lines += [f"  {name:<10} {one_line(value)}" for name, value in facts.items() if value]
    if state.verdict is not None and state.verdict.outcome == Outcome.FAILED:
        lines += ["", f"  {one_line(state.verdict.reason)}", f"  more: orch why {state.run_id}"]
    elif state.verdict is not None and state.verdict.reason:
        lines += ["", f"  {one_line(state.verdict.reason)}"]
    return "\n".join([*lines, *left_lines(state), "", _nodes_table(state)])


def left_lines(state: RunState) -> list[str]:
    """Return where outputs of a run are that are not here, why, and how they are fetched."""
    if not state.left:
        return []
    lines = ["", "  not all that it has written is here:"]
    for each in state.left:
        count = f"{each.files} files, {size(each.bytes)}" if each.files is not None else "not looked at"
        lines.append(f"    {each.host}:{each.folder}: {count}: {one_line(each.reason)}")
    return [*lines, f"  fetch it: orch pull {state.run_id} --outputs"]


def removed_outputs(run_id: str, gone: OutputsThatGo) -> list[str]:
    """Return what went with a run that was removed, and what is left of it elsewhere."""
    lines = [f"{output_files(gone.files, gone.bytes)} went with {run_id}"] if gone.files else []
    return [*lines, *(f"{each.host}:{each.folder} still holds what it has written there" for each in gone.left)]


def _nodes_table(state: RunState) -> str:
    """Return a line a node; many neighbours of which the same is to be said share one."""
    blamed = state.verdict.rank if state.verdict else None

    def ends(node: NodeState) -> str:
        told = (each for each in sorted(node.exits.items()) if each[0] == blamed or each[1] not in IN_ORDER)
        return ", ".join(f"rank {rank}: {how}" for rank, how in told)

    def said(node: NodeState) -> str:
        return node.state if node.unreachable is None or state.is_final else f"{node.state} (out of reach)"

    rows = []
    for nodes in alike(state.nodes, lambda node: (said(node), node.ranks is None, ends(node))):
        first, last = nodes[0], nodes[-1]
        number = str(first.node) if first is last else f"{first.node}-{last.node}"
        ranks = f"{first.ranks[0]}-{last.ranks[1] - 1}" if first.ranks and last.ranks else "-"
        rows.append([number, in_words(dict.fromkeys(node.host for node in nodes)), said(first), ranks, ends(first)])
    return table(["NODE", "HOST", "STATE", "RANKS", "ENDS"], rows)


def notify_lines(told: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return which notifications were sent, and why others were not."""
    words = {"sent": "sent", "failed": "NOT SENT", "intent": "being sent"}
    return [
        f"notified of {line.get('event')}: {words.get(line['state'], line['state'])}"
        + (f": {line['problem']}" if line.get("problem") else "")
        for line in told
    ]


def verdict_page(state: RunState, style: Style = plain) -> str:
    """Return why a run ended as it did: who, where, how, the traceback, the last lines, what to do."""
    verdict = state.verdict
    if verdict is None:
        return f"{state.run_id} is {state.state}: it has not ended. See: orch status {state.run_id}"
    lines = [f"{state.run_id} {style(verdict.outcome, COLOURS.get(verdict.outcome, ''))}{_cause(verdict)}"]
    if verdict.reason:
        lines += ["", *(f"  {one_line(line)}" for line in verdict.reason.split("\n"))]
    if state.restarts:
        lines.append(f"  after {state.restarts} restart{'s' * (state.restarts != 1)} (attempt {verdict.attempt})")
    if verdict.hint:
        lines += ["", f"  hint: {one_line(verdict.hint)}"]
    traceback = str(verdict.error.get("traceback") or "") if verdict.error else ""
    if traceback.strip():
        lines += ["", "traceback:", *(f"  {one_line(line)}" for line in traceback.rstrip().splitlines()[-25:])]
    said = [line for line in verdict.tail if line not in traceback]
    if said:
        lines += ["", f"last lines of rank {verdict.rank}:", *(f"  {one_line(line)}" for line in said[-10:])]
    if verdict.rank is not None:
        lines += ["", f"its whole log: orch logs {state.run_id} --rank {verdict.rank}"]
    if verdict.survivors:
        lines += ["", f"still there: processes {', '.join(map(str, verdict.survivors))}"]
    return "\n".join([*lines, *left_lines(state)])


def _cause(verdict: Verdict) -> str:
    return f" ({verdict.cause.replace('_', ' ')})" if verdict.cause else ""


def next_commands(run_id: str) -> str:
    """Return what one can do with a run that has just been submitted."""
    return (
        f"  orch logs -f {run_id}     follow rank 0\n"
        f"  orch status {run_id}      nodes, ranks, progress\n"
        f"  orch cancel {run_id}      stop it, with a checkpoint"
    )
