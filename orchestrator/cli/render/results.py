"""Renders checkpoints, copies, differences, drills and checks of runs, and lists of machines and their users."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import Style, alike, output_files, plain, table, tables
from orchestrator.operations.diff import Comparison, Row
from orchestrator.operations.placing import Placed
from orchestrator.operations.pull import Pulled
from orchestrator.protocol import quantities
from orchestrator.protocol.checkpoints.checkpoint_dir import CheckpointState
from orchestrator.protocol.hostlist import FOLD_FROM, each_once, in_words, nodes_in_words, numbers_in_words
from orchestrator.protocol.quantities import duration, size
from orchestrator.runs.files.checkpoints import Checkpoint, NotHere
from orchestrator.runs.files.outputs import Output

if TYPE_CHECKING:
    from orchestrator.backends.base import Check
    from orchestrator.operations.debugging.drill import Report
    from orchestrator.runs.job_use import JobUse
    from orchestrator.runs.shared_hosts import SharedRun

VERDICT_COLOURS = {
    CheckpointState.COMMITTED: "green",
    CheckpointState.INCOMPLETE: "yellow",
    CheckpointState.CORRUPT: "red",
    CheckpointState.UNREADABLE: "red",
}


def moment(when: float | None) -> str:
    """Return a date and time in this machine's time zone, without fractions of a second; a dash without a time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)) if when else "-"


def metrics(values: Mapping[str, float]) -> str:
    """Return metrics on one line, such as `accuracy 0.9831, loss 0.0712`."""
    return ", ".join(f"{name} {quantities.number(value)}" for name, value in values.items()) or "-"


def checkpoints_page(
    found: Sequence[Checkpoint],
    folder: str,
    style: Style = plain,
    unusable: Sequence[str] = (),
    not_here: Sequence[NotHere] = (),
) -> str:
    """Return a line for each checkpoint, oldest first, and then a line for each checkpoint that is only on its node."""
    own, others = ([each for each in found if (each.format == "orch") == is_own] for is_own in (True, False))
    lines = [*(_own_checkpoints(own, folder, style) if own else ()), *_others_checkpoints(others)]
    lines += [f"{each.host} has {one_line(each.name)} of {moment(each.time)}, not here yet" for each in not_here]
    none = ["no checkpoint of this run is here", *(f"  {one_line(each)}" for each in unusable)]
    return "\n".join(lines if found else [*none, *lines])


def _others_checkpoints(found: Sequence[Checkpoint]) -> list[str]:
    """Return a table of the checkpoints in other formats than orch's. These have no checksums, so they can't be
    verified.
    """
    rows = [
        [each.format, str(each.step) if each.step >= 0 else "-", moment(each.time), size(each.bytes),
         one_line(metrics(each.metric)), one_line(str(each.path))]
        for each in found
    ]  # fmt: skip
    return [table(["FORMAT", "STEP", "SAVED", "SIZE", "METRIC", "PATH"], rows)] if rows else []


def _own_checkpoints(found: Sequence[Checkpoint], folder: str, style: Style) -> list[str]:
    rows = []
    for each in found:
        known = each.is_whole
        rows.append([
            str(each.step), str(each.epoch) if known else "-", moment(each.time), size(each.bytes),
            metrics(each.metric), str(each.world_size) if known else "-", each.verdict,
        ])  # fmt: skip
    lines = table(["STEP", "EPOCH", "SAVED", "SIZE", "METRIC", "RANKS", "VERDICT"], rows).split("\n")
    for number, each in enumerate(found, start=1):
        head = lines[number].removesuffix(each.verdict)
        lines[number] = f"{head}{style(each.verdict, VERDICT_COLOURS[each.verdict])}"
    lines += [f"  step {each.step} is {each.verdict}: {each.reason}" for each in found if each.reason]
    how = "checksums verified" if all(each.hashed for each in found) else "sizes only; --verify checks the checksums"
    return [*lines, f"in {folder} ({how})"]


def outputs_page(found: Sequence[Output], passed_over: Sequence[str], left: Sequence[str]) -> str:
    """Return a line for each file, then the total size, the files that are never copied, and the files that are
    still on nodes.
    """
    rows = [[size(each.bytes), str(each.node), each.path] for each in found]
    lines = [table(["SIZE", "NODE", "FILE"], rows)] if rows else ["no outputs are here"]
    if found:
        lines.append(output_files(len(found), sum(each.bytes for each in found)))
    lines += [f"not copied, a link that leads out or no file: {one_line(path)}" for path in passed_over]
    return "\n".join([*lines, *left])


def pulled_page(pulled: Pulled) -> str:
    """Return a line for each file that was copied or was present already, and a line about the chosen checkpoint."""
    rows = [[file.how, size(file.bytes), file.path] for file in pulled.files]
    lines = [table(["", "SIZE", "FILE"], rows)] if rows else ["there are no files to copy"]
    lines += [f"skipped: {reason}" for reason in pulled.skipped]
    if pulled.choice and not any(file.path.startswith("checkpoints/") for file in pulled.files):
        lines.append(pulled.choice)
    return "\n".join([*lines, f"in {pulled.folder}"])


def placed_page(placed: Placed) -> str:
    """Return a line for each output, which says that the output was copied into the code folder, or why it was not
    copied.
    """
    lines = [*(f"copied {path}" for path in placed.files), *(f"left out: {each}" for each in placed.left_out)]
    return "\n".join(map(one_line, lines)) if lines else f"{placed.run_id} has no outputs here yet"


def comparison_page(found: Comparison, style: Style = plain) -> str:
    """Return the differences of two runs, section by section, then the diff of each code file."""
    lines = []
    if found.rows:
        rows = [[row.section, row.what, _cell(row, row.one), _cell(row, row.other)] for row in found.rows]
        lines.append(table(["", "", found.one, found.other], rows))
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for file in found.files:
        lines += ["", f"{file.change} {file.path}"]
        lines += [f"  {style(line, colours.get(line[:1], ''))}" for line in file.diff[2:]]
    return "\n".join(lines).strip("\n") or f"{found.one} and {found.other} do not differ in anything recorded"


def _cell(row: Row, value: str) -> str:
    text = in_words(value.split(", ")) if (row.section, row.what) == ("hosts", "hosts") else value
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def members_page(members: Sequence[tuple[str, int]]) -> str:
    """Return the table of an archive's files."""
    return table(["SIZE", "FILE"], [[size(count), name] for name, count in members])


def job_use_line(run: str, job: JobUse, scheduler: str) -> str:
    """Return a line with the time, cores and memory that a scheduler measured for a run, as Slurm's command seff shows
    them.
    """
    limit = f" of {duration(job.limit_seconds)}" if job.limit_seconds is not None else ""
    cores = f"{job.cores} core{'s' * (job.cores != 1)}"
    said = [f"{duration(job.seconds)}{limit}"]
    said.append(cores if job.core_share is None else f"{100 * job.core_share:.0f} % of {cores}")
    if job.memory is not None:
        said.append(f"{size(job.memory)}{_share(job.memory, job.memory_limit)} memory")
    return f"{run}: {scheduler} job {job.job_id} {job.state}, {', '.join(said)}"


def _share(used: int, given: int | None) -> str:
    return f" of {size(given)} ({100 * used / given:.0f} %)" if given else ""


def doctor_page(checks: Sequence[Check], style: Style = plain, width: int | None = None) -> str:
    """Return a table with a line for each node (or group of equal nodes) and a column for each check. Problems and
    remedies follow, and then notes: the hints of checks that passed, each with its hosts.
    """
    whats = list(dict.fromkeys(check.what for check in checks))
    hosts = {check.node: check.host for check in checks}
    by_place = {(check.node, check.what): check for check in checks}
    cells = {node: [by_place[node, what].level for what in whats] for node in hosts}
    rows = [
        [numbers_in_words(nodes), in_words(hosts[node] for node in nodes), *cells[nodes[0]]]
        for nodes in alike(hosts, lambda node: cells[node])
    ]
    lines = [tables(["NODE", "HOST", *(what.upper() for what in whats)], rows, width, repeat=2)]
    lines += _problems_of(checks, style)
    failed = sum(check.level == "fail" for check in checks)
    lines += ["", f"{failed} of {len(checks)} checks failed" if failed else "all checks passed"]
    notes: dict[str, dict[str, None]] = {}
    for check in checks:
        if check.level == "ok" and check.hint:
            notes.setdefault(check.hint, {})[check.host] = None
    lines += [f"note: {in_words(where)}: {note}" for note, where in notes.items()]
    return "\n".join(lines)


def _problems_of(checks: Sequence[Check], style: Style) -> list[str]:
    """Return lines for each warning and failure, with its remedy. Equal problems of many nodes are shown once."""
    wrong: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        if check.level in ("warn", "fail"):
            wrong.setdefault((check.level, check.what, _without_host(check)), []).append(check)
    lines = []
    for (level, what, value), same in wrong.items():
        many = len(same) >= FOLD_FROM
        colour = "red" if level == "fail" else "yellow"
        for group in [same] if many else [[check] for check in same]:
            where = nodes_in_words([(check.node, check.host) for check in group])
            lines += ["", f"{style(level, colour)}  {where}, {what}: {value if many else group[0].value}"]
            hints = each_once((check.host, line) for check in group for line in check.hint.splitlines())
            lines += [f"      {line}" for line in hints]
    return lines


def _without_host(check: Check) -> str:
    """Return a check's value without the host's name, so that the values of different hosts can be compared."""
    where, colon, rest = check.value.partition(": ")
    return rest if colon and where.partition(" (")[0] == check.host else check.value


def nodes_page(found: Sequence[Mapping[str, Any]], style: Style = plain) -> str:
    """Return a line for each host, with the runs that hold its GPUs or slots. If many consecutive hosts have equal
    values, they share one line.
    """
    rows: list[list[str]] = []
    out = []  # line numbers of hosts that can't be used
    for (spare, cells), group in groupby(found, key=lambda each: (each["spare"], _holdings(each))):
        same = list(group)
        shown = [same] if len(same) >= FOLD_FROM else [[each] for each in same]
        for each in shown:
            name = in_words(str(one["host"]) for one in each)
            if "problem" in each[0]:
                out.append(len(rows) + 1)
            free = min((one["free"] for one in each if "free" in one), default=None)
            disk = "-" if free is None else f"{'from ' if len(each) > 1 else ''}{size(free)}"
            rows.append([f"{name} (spare)" if spare else name, *cells[:2], disk, cells[2]])
    lines = table(["HOST", "CORES", "GPUS", "FREE DISK", "USED BY"], rows).split("\n")
    return "\n".join(style(line, "red") if number in out else line for number, line in enumerate(lines))


def _holdings(each: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return (cores, GPUs, holders of GPUs or slots) of a host. For a host that can't be used, the last item is the
    reason.
    """
    if "problem" in each:
        return "-", "-", str(each["problem"])
    holders = [f"{place} {_holder(holder)}" for place, holder in each["places"].items()]
    return (
        str(each["cores"]),
        str(each["gpus"]),
        ", ".join(holders) or "- (no GPUs; slots: in the profile counts CPU slots)",
    )


def _holder(holder: Mapping[str, Any] | None) -> str:
    """Describe the holder of a GPU or slot: the user, according to the kernel, and the run, according to that user."""
    if not holder:
        return "free"
    user = holder.get("user") or f"uid {holder.get('uid')}"
    return f"{user}: {holder.get('run') or 'no run'}"


def partitions_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each kind of node of Slurm's partitions, or for each queue of another scheduler."""
    lines, what = [], str(rows[0].get("what", "partition"))
    for row in rows:
        name = f"{row['name']} (default)" if row["is_default"] else str(row["name"])
        limit = "none" if row["limit"] is None else duration(row["limit"])
        memory = f"{row['memory']} MiB" if row["memory"] else "-"
        cells = [f"{row['idle']} of {row['nodes']}", row["cores"] or "-", memory, row["gres"] or "-", limit]
        lines.append([name if row["is_up"] else f"{name} (down)", *map(str, cells)])
    return table([what.upper(), "IDLE NODES", "CORES", "MEMORY", "GRES", "TIME LIMIT"], lines)


def shared_runs_page(runs: Iterable[SharedRun], now: float) -> str:
    """Return a table with a line for each run: its place in the queue, the GPUs or slots that it holds or needs, and
    for how long it has held or awaited them.
    """
    rows = []
    for each in runs:
        state = str(each.to_json()["state"])
        held = duration(now - each.since) if each.since else "-"
        rows.append([str(each.position or "-"), each.user, each.run or "?", state, _places(each), held])
    if not rows:
        return "nobody's runs hold GPUs or slots there, and none waits"
    return table(["QUEUE", "USER", "RUN", "STATE", "PLACES", "FOR"], rows)


def _places(each: SharedRun) -> str:
    """Return the GPUs or slots of a run on each host, such as `2 on n1, n2`."""
    by_count: dict[int, list[str]] = {}
    for host, count in each.hosts.items():
        by_count.setdefault(count, []).append(host)
    return "; ".join(f"{count} on {in_words(hosts)}" for count, hosts in by_count.items())


def drill_page(report: Report, style: Style = plain) -> str:
    """Return what happened after a fault, what docs/failures.md promises, and the differences."""
    seen, promise = report.account, report.promise
    lines = []
    if seen.noticed is not None:
        within = f" (promised: within {report.within:.0f} s)" if promise.says else ""
        lines.append(f"noticed after {seen.noticed:.1f} s{within}")
    if seen.said:
        lines.append(f"said: {one_line(seen.said)}")
    if seen.restarts:
        step = "the beginning" if seen.went_on_from is None else f"step {seen.went_on_from}"
        lines.append(f"went on from {step}")
    lines.append(f"{seen.outcome or 'not ended'} after {seen.took:.1f} s, restarts: {seen.restarts}")
    lines.append(f"promised: {promise.does}; {promise.outcome}, restarts: {promise.restarts}")
    lines += [style(f"not as promised: {one_line(each)}", "red") for each in report.differences]
    if report.differences:
        lines.append(f"kept: orch why {report.run_id}, orch bundle {report.run_id}; then orch rm {report.run_id}")
    else:
        lines.append(style("as promised", "green"))
    return "\n".join(f"  {line}" for line in lines)
