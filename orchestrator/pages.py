"""Text for people about what runs left behind: checkpoints, copies, differences. Pure: values in, text out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.checkpoints import Checkpoint
from orchestrator.collect import Pulled
from orchestrator.compare import Comparison
from orchestrator.render import Style, duration, plain, table

if TYPE_CHECKING:
    from orchestrator.doctor import Check

VERDICT_COLOURS = {"committed": "green", "torn": "yellow", "corrupt": "red"}


def size(count: float) -> str:
    """`812 B`, `1.4 MB`, `2.0 GB`; powers of 1024."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def moment(when: float | None) -> str:
    """A moment in this machine's time zone, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)) if when else "-"


def metrics(values: Mapping[str, float]) -> str:
    """`accuracy 0.9831, loss 0.0712`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items()) or "-"


def checkpoints_page(found: Sequence[Checkpoint], folder: str, style: Style = plain) -> str:
    """One line a checkpoint, oldest first, then what is wrong with those that must not be used."""
    if not found:
        return f"no checkpoints in {folder}"
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
    how = "every byte was read" if all(each.hashed for each in found) else "sizes only; --verify reads every byte"
    return "\n".join([*lines, f"in {folder} ({how})"])


def pulled_page(pulled: Pulled) -> str:
    """What has been copied, what was there, and which checkpoint."""
    rows = [[file.how, size(file.bytes), file.path] for file in pulled.files]
    lines = [table(["", "SIZE", "FILE"], rows)] if rows else ["nothing is there to be copied yet"]
    lines += [f"passed over: {reason}" for reason in pulled.skipped]
    if pulled.step is None and pulled.choice:
        lines.append(pulled.choice)
    return "\n".join([*lines, f"in {pulled.folder}"])


def comparison_page(found: Comparison, style: Style = plain) -> str:
    """What differs, section by section, then the code file by file."""
    lines = []
    if found.rows:
        rows = [[row.section, row.what, _short(row.one), _short(row.other)] for row in found.rows]
        lines.append(table(["", "", found.one, found.other], rows))
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for file in found.files:
        lines += ["", f"{file.change} {file.path}"]
        lines += [f"  {style(line, colours.get(line[:1], ''))}" for line in file.diff[2:]]
    return "\n".join(lines).strip("\n") or f"{found.one} and {found.other} do not differ in anything recorded"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def members_page(members: Sequence[tuple[str, int]]) -> str:
    """What an archive holds."""
    return table(["SIZE", "FILE"], [[size(count), name] for name, count in members])


def doctor_page(checks: Sequence[Check], style: Style = plain) -> str:
    """A line a node, a column a check; then what is wrong, where, and what to do."""
    whats = list(dict.fromkeys(check.what for check in checks))
    hosts = {check.node: check.host for check in checks}
    by_place = {(check.node, check.what): check for check in checks}
    rows = [[str(node), host, *(by_place[node, what].verdict for what in whats)] for node, host in hosts.items()]
    lines = [table(["NODE", "HOST", *(what.upper() for what in whats)], rows)]
    for check in checks:
        if check.verdict in ("warn", "fail"):
            colour = "red" if check.verdict == "fail" else "yellow"
            lines += [
                "",
                f"{style(check.verdict, colour)}  node {check.node} ({check.host}), {check.what}: {check.value}",
            ]
            lines += [f"      {line}" for line in check.hint.splitlines()]
    failed = sum(check.verdict == "fail" for check in checks)
    lines += ["", f"{failed} of {len(checks)} checks failed" if failed else "nothing stands in the way"]
    return "\n".join(lines)


def nodes_page(found: Sequence[Mapping[str, Any]], style: Style = plain) -> str:
    """A line a host; what its GPUs or slots are held by."""
    rows = []
    for each in found:
        name = f"{each['host']} (spare)" if each["spare"] else str(each["host"])
        if "problem" in each:
            rows.append([name, "-", "-", "-", style(each["problem"], "red")])
            continue
        holders = [
            f"{place} {holder.get('user')}: {holder.get('run')}" if holder else f"{place} free"
            for place, holder in each["places"].items()
        ]
        rows.append(
            [name, str(each["cores"]), str(each["gpus"]), size(each["free"]), ", ".join(holders) or "not counted"]
        )
    return table(["HOST", "CORES", "GPUS", "FREE DISK", "HELD BY"], rows)


def partitions_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each kind of node of each partition of a Slurm cluster."""
    lines = []
    for row in rows:
        name = f"{row['name']} (default)" if row["is_default"] else str(row["name"])
        limit = "none" if row["limit"] is None else duration(row["limit"])
        memory = f"{row['memory']} MiB"
        cells = [f"{row['idle']} of {row['nodes']}", row["cores"], memory, row["gres"] or "-", limit]
        lines.append([name if row["is_up"] else f"{name} (down)", *map(str, cells)])
    return table(["PARTITION", "IDLE NODES", "CORES", "MEMORY", "GRES", "TIME LIMIT"], lines)
