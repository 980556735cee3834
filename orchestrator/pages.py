"""Text for people about what runs left behind: checkpoints, copies, differences. Pure: values in, text out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from orchestrator.checkpoints import Checkpoint
from orchestrator.collect import Pulled
from orchestrator.compare import Comparison
from orchestrator.render import Style, plain, table

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
