"""Renders runs: tables of runs, the page about one run, and the page on why a run ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli.render import escapes
from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import (
    COLOURS,
    Style,
    ago,
    alike,
    counted,
    fold,
    output_files,
    plain,
    table,
)
from orchestrator.outcome.verdict import NodeState, NodeStatus, Outcome, Verdict
from orchestrator.protocol.hostlist import fold as fold_hosts
from orchestrator.protocol.hostlist import in_words, nodes_in_words, span
from orchestrator.protocol.quantities import duration, number, rate, size
from orchestrator.runs.state import AttemptSummary, Recovery, RunState, RunStatus

if TYPE_CHECKING:  # `orch status` of ended runs must not load the supervisor's rules
    from orchestrator.looking.account import Account
    from orchestrator.operations.removal import Removal
    from orchestrator.runs.labels import Labels
    from orchestrator.views.runs import RunRow

COLUMNS: Final[Mapping[str, Callable[[RunState | RunRow, float], str]]] = {
    "RUN": lambda run, now: run.run_id,
    "STATE": lambda run, now: run.state,
    "PROFILE": lambda run, now: run.profile,
    "RANKS": lambda run, now: str(run.world_size or "?"),
    "SUBMITTED": lambda run, now: ago(run.created, now),
    "TOOK": lambda run, now: duration((run.ended or now) - run.started) if run.started else "-",
}
"""The columns of every table of runs in `orch status` and `orch top`. The last column, NOTE, is added after these."""
HEADER: Final = (*COLUMNS, "NOTE")
SPARE: Final = ("RANKS", "PROFILE", "SUBMITTED")  # columns that a narrow table of runs omits, in this order
NOTE_LINES = 2
MOST_ATTEMPTS = 10
OFFER_SECONDS = 60.0  # for this time after the start, a program may not have reported its first step yet
# exits that the table of nodes omits, because they are a success or usually caused by orch
IN_ORDER = ("exit code 0", "exit code 95", "SIGTERM", "SIGKILL")


def progress(heartbeat: Mapping[str, Any] | None) -> str:
    """Describe the progress in a heartbeat, as in `step 340/1250 (27 %), loss 0.1234, 5,210 samples/s, ETA 1 min 02 s`.

    The result is empty without a heartbeat.
    """
    if not heartbeat:
        return ""
    known = {key: value for key, value in heartbeat.items() if isinstance(value, int | float)}
    step, total = known.get("step", 0), known.get("total")
    is_over = total is not None and step > total  # the program goes on longer than it has announced
    share = f" ({100 * step / total:.0f} %)" if total and not is_over else ""
    parts = [f"step {step}/{total}{share}" if total else f"step {step}"]
    if shown := _shown_metric(heartbeat):
        parts.append(shown)
    if known.get("rate"):
        parts.append(rate(known["rate"], "samples"))
    if known.get("eta") and not is_over:
        parts.append(f"ETA {duration(known['eta'])}")
    return ", ".join(parts)


def _shown_metric(heartbeat: Mapping[str, Any]) -> str:
    """Return the metric that `orch plot` shows by default, with its value in the heartbeat; empty if there is none."""
    if not heartbeat.get("metrics") and "loss" not in heartbeat:
        return ""
    from orchestrator.runs.files.metrics import default_metric
    from orchestrator.runs.files.written_metrics import is_number

    metrics = heartbeat.get("metrics")
    own = {"loss": heartbeat["loss"]} if "loss" in heartbeat else {}
    known = {**(metrics if isinstance(metrics, Mapping) else {}), **own}
    numbers = {str(name): value for name, value in known.items() if is_number(value)}
    name = default_metric(numbers)
    return f"{one_line(name)} {number(numbers[name])}" if name in numbers else ""


def result_line(result: Mapping[str, Any] | None) -> str:
    """Return the program's result on one line, such as `accuracy 98.31 % on mnist, loss 0.0712, step 1250`."""
    if not result:
        return ""
    words = []
    accuracy, data = result.get("accuracy"), result.get("data")
    if isinstance(accuracy, int | float):
        words.append(f"accuracy {100 * accuracy:.2f} %" + (f" on {data}" if data else ""))
    for key in ("loss", "step", "seconds"):
        value = result.get(key)
        if isinstance(value, int | float):
            words.append(f"{key} {number(value) if isinstance(value, float) else value}")
    if result.get("stand_in"):
        words.append("not the data asked for: see the log")
    return one_line(", ".join(words) or ", ".join(f"{key} {value}" for key, value in list(result.items())[:4]))


def cells(run: RunState | RunRow, note: str, now: float) -> list[str]:
    """Return the cells of a run in a table of runs."""
    return [*(cell(run, now) for cell in COLUMNS.values()), note]


def status_line(state: RunState, heartbeat: Mapping[str, Any] | None, now: float, last_line: str = "") -> list[str]:
    """Return the cells of one run in a table of runs, including the most important note."""
    return cells(state, note(state, heartbeat, now, last_line), now)


def status_lines(lines: Sequence[Sequence[str]], style: Style = plain, width: int | None = None) -> str:
    """Return the table of runs. Each item of `lines` has the cells that `status_line` returned for a run."""
    if not lines:
        return "no runs yet; start one: orch submit JOB --profile PROFILE"
    return table(HEADER, lines, style, colour_of=1, width=width, spare=SPARE, most=NOTE_LINES)


def note(state: RunState, heartbeat: Mapping[str, Any] | None, now: float, last_line: str = "") -> str:
    """Return the most important facts about a run on one line: why it ended, its recovery, or its progress.

    If the run has no heartbeat yet, the last line of rank 0's log is returned in place of the progress.
    """
    if state.verdict is not None:
        return ", ".join(filter(None, state.verdict.why_and_where))
    if state.recovery is not None:  # the last progress is older than the loss of the node
        return recovery_line(state.recovery, now)
    said = progress(heartbeat) or shown_line(last_line)
    return "; ".join(filter(None, [out_of_reach(state, now), state.detail, said]))


def recovery_line(recovery: Recovery, now: float) -> str:
    """Return a line such as `n3 lost 12.0 s ago; restarting on n1, n2, spare n4 from step 300`."""
    return f"{in_words(recovery.lost)} lost {ago(recovery.since, now)}; {recovery.next}"


def shown_line(line: str) -> str:
    """Return a log line in the form in which a table shows it: on one line, and without colours."""
    return escapes.plain(line.expandtabs()).strip()


def out_of_reach(state: RunState, now: float) -> str:
    """Return a line such as `node 1 (n2) out of reach for 40 s: No route to host`. It is empty if all machines answer
    or the run has ended.

    If node 0 is out of reach, the line says that progress and logs are out of date.
    """
    nodes = [node for node in state.nodes if node.unreachable is not None]
    if not nodes or state.is_final:
        return ""
    first = min((node.unreachable for node in nodes if node.unreachable is not None), key=lambda each: each.since)
    why = f": {first.why.splitlines()[0]}" if first.why else ""
    old = "; its progress and logs are from before" if any(node.node == 0 for node in nodes) else ""
    names = nodes_in_words([(node.node, node.host) for node in nodes])
    return f"{names} out of reach for {duration(now - first.since)}{why}{old}"


def status_page(
    state: RunState, heartbeat: Mapping[str, Any] | None, result: Mapping[str, Any] | None, folder: str, now: float,
    style: Style = plain, *, last_line: str = "", width: int | None = None, labels: Labels | None = None,
    account: Account | None = None,
) -> str:  # fmt: skip
    """Return the page about one run. Lines are at most `width` columns long, except the line with the folder."""
    away = [node.host for node in state.nodes if node.unreachable is not None and not state.is_final]
    seen = f", {in_words(away)} out of reach" if away else ""
    lines = [f"{state.run_id}  {style(state.state, COLOURS.get(state.state, ''))}{seen}"]
    ranks = counted(state.world_size, "rank") if state.world_size else "? ranks"
    facts = {
        "profile": f"{state.profile}, {counted(state.nodes, 'node')}, {ranks}",
        "submitted": ago(state.created, now),
        "took" if state.is_final else "running": (
            duration((state.ended or now) - state.started) if state.started else ""
        ),
        "master": state.master,
        "job": _job(state),
        "attempt": f"{state.attempt} ({counted(state.restarts, 'restart')})" if state.restarts else "",
        "recovery": recovery_line(state.recovery, now) if state.recovery else "",
        "progress": "" if state.is_final else progress(heartbeat),
        "metrics": progress(heartbeat) if state.is_final and heartbeat and heartbeat.get("metrics") else "",
        "last line": "" if heartbeat or state.state == RunStatus.FAILED else shown_line(last_line),
        "result": result_line(result),
        "machines": out_of_reach(state, now),
        "detail": "" if state.is_final or state.recovery else state.detail,
        "tags": ", ".join(labels.tags) if labels else "",
        "note": labels.note if labels else "",
        **account_facts(account, now),
    }
    for name, value in facts.items():
        lines += _folded(f"  {name:<10} ", value, width) if value else []
    lines.append(f"  {'folder':<10} {one_line(folder)}")  # not folded, so that it can be copied
    if state.verdict is not None and state.verdict.reason:
        lines += ["", *_folded("  ", state.verdict.reason, width)]
    if state.verdict is not None and state.verdict.outcome == Outcome.FAILED:
        lines.append(f"  more: orch why {state.run_id}")
    history = attempt_lines(state, now, width)
    return "\n".join([*lines, *left_lines(state), "", _nodes_table(state, width), *([""] if history else []), *history])


def account_facts(account: Account | None, now: float) -> dict[str, str]:
    """Return the account of a run's end as facts with their names; empty if the run has not ended."""
    if account is None:
        return {}
    ended = ""
    if account.ended is not None:
        ended = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(account.ended))}, {ago(account.ended, now)}"
    newest = account.checkpoint or "none"
    lost = f"; {counted(account.lost_steps, 'step')} after it are lost" if account.lost_steps and account.next else ""
    return {
        "ended": ended,
        "last step": "" if account.last_step is None else str(account.last_step),
        "checkpoint": f"{newest}{lost}" if account.checkpoint or account.next else "",
        "next": account.next,
        "go on": account.command,
    }


def _job(state: RunState) -> str:
    """Return the scheduler's job and its hosts, such as `17 on n[1-2]`, or only `17` while the job waits for nodes."""
    hosts = [node.host for node in state.nodes if node.state != NodeStatus.WAITING]
    return f"{state.job}{f' on {fold_hosts(hosts)}' if hosts else ''}" if state.job else ""


def attempt_lines(state: RunState, now: float, width: int | None = None) -> list[str]:
    """Return a table of a run's attempts, if there are several: each attempt's checkpoint and duration, and when and
    why it ended.
    """
    if len(state.attempts) < 2:
        return offer_lines(state, now, width)
    rows = [
        [
            str(each.number),
            _resumed(each),
            duration((each.ended or state.ended or now) - each.began) if each.began else "-",
            ago(each.ended, now) if each.ended else "-",
            each.end.partition("\n")[0] or (state.state if each is state.attempts[-1] else "-"),
        ]
        for each in state.attempts[-MOST_ATTEMPTS:]
    ]
    lines = table(["ATTEMPT", "RESUMED FROM", "TOOK", "ENDED", "WHY"], rows, width=width).split("\n")
    left = len(state.attempts) - MOST_ATTEMPTS
    before = [f"{counted(left, 'attempt')} before these: orch status {state.run_id} --json"] if left > 0 else []
    return [*lines, *before, *offer_lines(state, now, width)]


def offer_lines(state: RunState, now: float, width: int | None = None) -> list[str]:
    """Return a warning if orch passed a checkpoint to the newest attempt, but the program seems not to load it."""
    offers = [each for each in state.attempts if each.offered and each.began]
    if not offers or offers[-1].resumed_from:
        return []
    last = offers[-1]
    if last.first_step is None and not last.ended and not state.is_final and now - (last.began or now) < OFFER_SECONDS:
        return []  # the program may still report that it loaded the checkpoint
    steps = f"; its first step is {last.first_step}" if last.first_step is not None else ""
    offer = f"attempt {last.number} was offered {_checkpoint(last.offered)}; nothing shows that the script loads it"
    what = "a script has to load the path in ORCH_RESUME_FROM: docs/checkpoints.md#resume-from-a-checkpoint"
    return [*_folded("", f"{offer}{steps}", width), *_folded("", what, width)]


def _resumed(attempt: AttemptSummary) -> str:
    """Return the checkpoint that the attempt loaded. If the attempt loaded none, return in brackets the checkpoint that
    orch passed to it.
    """
    if attempt.resumed_from is None and attempt.offered is not None:
        return f"- (offered {_checkpoint(attempt.offered)})"
    return _checkpoint(attempt.resumed_from)


def _checkpoint(name: str | None) -> str:
    from orchestrator.protocol.checkpoints.checkpoint_dir import step_of

    step = step_of(name.rpartition("/")[2]) if name is not None else None
    return f"step {step}" if step is not None else one_line(name or "-")


def _folded(head: str, text: str, width: int | None) -> list[str]:
    """Return a heading and a text, wrapped to the width. Further lines of the text begin below its first word."""
    text = one_line(text)
    parts = [text] if width is None else fold(text, width - len(head))
    return [f"{head if number == 0 else ' ' * len(head)}{part}" for number, part in enumerate(parts)]


def left_lines(state: RunState) -> list[str]:
    """Return lines about outputs that were not copied: where they are, why they were not copied, and the command that
    fetches them.
    """
    if not state.left:
        return []
    lines = ["", "  some outputs are still on its machines:"]
    for each in state.left:
        count = f"{counted(each.files, 'file')}, {size(each.bytes)}" if each.files is not None else "files not counted"
        lines.append(f"    {each.host}:{each.folder}: {count}: {one_line(each.reason)}")
    return [*lines, f"  fetch them: orch pull {state.run_id} --outputs"]


def removals_page(removals: Sequence[Removal], now: float, style: Style = plain) -> str:
    """Return the table of the runs to be removed, with the number of their files that have no other copy."""
    rows = [
        [
            each.state.run_id, each.state.state, ago(each.state.ended or each.state.created, now), size(each.bytes),
            _only_copies(each) or "-",
        ]
        for each in removals
    ]  # fmt: skip
    lines = [table(["RUN", "STATE", "ENDED", "SIZE", "NOT COPIED ANYWHERE"], rows, style, colour_of=1)]
    if any(_only_copies(each) for each in removals):
        lines += ["what was not copied is lost with them; orch pull RUN copies a run's outputs and a checkpoint"]
    left = [(each.run.run_id, left) for each in removals for left in each.left]
    lines += [f"{left.host}:{left.folder} still holds what {run_id} has written there" for run_id, left in left]
    return "\n".join(lines)


def _only_copies(removal: Removal) -> str:
    count = removal.only_checkpoints
    parts = [counted(count, "checkpoint")] if count else []
    if removal.only_outputs:
        parts.append(counted(removal.only_outputs, "output file"))
    return ", ".join(parts)


def removed_outputs(gone: Removal) -> list[str]:
    """Return lines about the outputs that were removed with a run, and about outputs that other machines still have."""
    lines = [f"{output_files(gone.outputs, gone.output_bytes)} went with {gone.run.run_id}"] if gone.outputs else []
    return [*lines, *(f"{each.host}:{each.folder} still holds what it has written there" for each in gone.left)]


def _nodes_table(state: RunState, width: int | None) -> str:
    """Return a line for each node. Many equal consecutive nodes share a line."""
    blamed = state.verdict.rank if state.verdict else None

    def ends(node: NodeState) -> str:
        told = (each for each in sorted(node.exits.items()) if each[0] == blamed or each[1] not in IN_ORDER)
        return ", ".join(f"rank {rank}: {how}" for rank, how in told)

    lost = set(state.recovery.lost) if state.recovery is not None else set()

    def said(node: NodeState) -> str:
        if node.host in lost and node.state == NodeStatus.RUNNING:
            return "lost"
        return node.state if node.unreachable is None or state.is_final else f"{node.state} (out of reach)"

    rows = []
    for nodes in alike(state.nodes, lambda node: (said(node), node.ranks is None, ends(node))):
        first, last = nodes[0], nodes[-1]
        number = span(first.node, last.node)
        ranks = span(first.ranks[0], last.ranks[1] - 1) if first.ranks and last.ranks else "-"
        rows.append([number, in_words(dict.fromkeys(node.host for node in nodes)), said(first), ranks, ends(first)])
    return table(["NODE", "HOST", "STATE", "RANKS", "EXIT"], rows, width=width)


def notify_lines(told: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each notification, which says whether it was sent and, if not, why."""
    words = {"sent": "sent", "failed": "NOT SENT", "intent": "being sent"}
    return [
        f"notification ({line.get('event')}): {words.get(line['state'], line['state'])}"
        + (f": {line['problem']}" if line.get("problem") else "")
        for line in told
    ]


def tracker_lines(trackers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each tracker, with its link to the run and, if data could not be sent, the reason."""
    lines = []
    for each in trackers:
        what = "NOT SENT" if each["done"] else "not sent yet"
        problem = f"{what}: {one_line(each['problem'])}" if each["problem"] else ""
        lines.append(
            f"tracked by {each['name']}: {'; '.join(filter(None, [each['link'], problem])) or 'not begun yet'}"
        )
    return lines


def verdict_page(
    state: RunState, style: Style = plain, now: float = 0.0, width: int | None = None, account: Account | None = None
) -> str:
    """Return the page on why a run ended: the outcome, the reason, the remedy, the traceback and the last lines."""
    verdict = state.verdict
    if verdict is None:
        not_yet = f"{state.run_id} is {state.state}: it has not ended. See: orch status {state.run_id}"
        return "\n".join([not_yet, *(["", *history] if (history := attempt_lines(state, now, width)) else [])])
    lines = [f"{state.run_id} {style(verdict.outcome, COLOURS.get(verdict.outcome, ''))}{_cause(verdict)}"]
    if verdict.reason:
        lines += ["", *(part for line in verdict.reason.split("\n") for part in _folded("  ", line, width))]
    if state.restarts:
        lines.append(f"  after {counted(state.restarts, 'restart')}")
    if verdict.hint:
        lines += ["", *_folded("  hint: ", verdict.hint, width)]
    traceback = str(verdict.error.get("traceback") or "") if verdict.error else ""
    if traceback.strip():
        lines += ["", "traceback:", *(f"  {one_line(line)}" for line in traceback.rstrip().splitlines()[-25:])]
    said = [line for line in verdict.tail if line not in traceback]
    if said:
        who = f"rank {verdict.rank}" if verdict.rank is not None else f"the launcher of node {verdict.node}"
        lines += ["", f"last lines of {who}:", *(f"  {one_line(line)}" for line in said[-10:])]
    if verdict.rank is not None or said:
        which = f"--rank {verdict.rank}" if verdict.rank is not None else f"--node {verdict.node}"
        lines += ["", f"full log: orch logs {state.run_id} {which}"]
    if verdict.survivors:
        lines += ["", f"still there: processes {', '.join(map(str, verdict.survivors))}"]
    facts = [(name, value) for name, value in account_facts(account, now).items() if value]
    told = [line for name, value in facts for line in _folded(f"  {name:<10} ", value, width)]
    history = attempt_lines(state, now, width)
    return "\n".join([*lines, *([""] if told else []), *told, *([""] if history else []), *history, *left_lines(state)])


def _cause(verdict: Verdict) -> str:
    return f" ({verdict.cause.replace('_', ' ')})" if verdict.cause else ""


def next_commands(run_id: str) -> str:
    """Return lines with the commands that are useful after `orch submit`."""
    return (
        f"  orch logs -f {run_id}     follow rank 0\n"
        f"  orch status {run_id}      nodes, ranks, progress\n"
        f"  orch cancel {run_id}      stop it; scripts that use orchestrator.training save first"
    )
