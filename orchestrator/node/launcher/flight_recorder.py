"""torch's flight recorder: what each rank's process groups did last, asked for through a pipe, read from its dump.

A thread of NCCL's process group listens at the pipe, so that a rank answers whose main thread waits for its GPU. A dump
is a pickle of plain values: it is read by an unpickler that refuses everything else.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.protocol.reading import read_regular

STEM = "flight_"  # of the dumps, FLIGHT_RANK, and of the pipes, flight_RANK.pipe
ENTRIES = 2000
MOST_DUMP = 64 << 20
MOST_GROUPS = 32  # of a rank, told to the leader
ANSWER_SECONDS = 2.0  # torch looks at its pipe once a second
OLD_NAME_UNTIL = (2, 12)  # torch before it opens the pipe only for the buffer's older name, of which newer ones warn


def recorder_settings(folder: str, torch_version: str = "") -> dict[str, str]:
    """Return the variables by which torch records, and leaves its dumps and pipes in this folder."""
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    is_old = found is not None and (int(found[1]), int(found[2])) < OLD_NAME_UNTIL
    return {
        "TORCH_FR_BUFFER_SIZE": str(ENTRIES),
        **({"TORCH_NCCL_TRACE_BUFFER_SIZE": str(ENTRIES)} if is_old else {}),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/{STEM}",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/{STEM}",
    }


def ask_for_dumps(folder: str, ranks: Iterable[int]) -> list[int]:
    """Ask ranks for a dump of their recorder; return those that listen."""
    asked = []
    for rank in ranks:
        with contextlib.suppress(OSError):  # no pipe, or nobody listens: not NCCL, or it has not joined yet
            pipe = os.open(f"{folder}/{STEM}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{folder}/{STEM}{rank}")  # an older dump would be taken for the answer
                    os.write(pipe, b"1")
                    asked.append(rank)
            finally:
                os.close(pipe)
    return asked


def remove_pipes(folder: str, ranks: Iterable[int]) -> None:
    """Remove the pipes of ranks that have ended."""
    for rank in ranks:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{STEM}{rank}.pipe")


def read_groups(folder: str, rank: int) -> dict[str, Any] | None:
    """Return what a rank's dump tells of its process groups, by name; None where there is none that can be read.

    Of each: its description, the number of the last collective that the rank has entered, and, where it waits in one,
    the number and the name of the first that has not ended.
    """
    try:
        dump = read_regular(f"{folder}/{STEM}{rank}", MOST_DUMP, folder.rsplit("/", 3)[0])  # RUN/nodes/0/attempt_0
        return groups_of(_Plain(io.BytesIO(dump)).load()) if dump.endswith(pickle.STOP) else None
    except Exception:  # noqa: BLE001 (a dump is whatever the rank has written, perhaps half of it)
        return None


def groups_of(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Return the process groups of a dump as `read_groups` does."""
    groups: dict[str, Any] = {}
    for entry in dump["entries"]:
        if entry.get("is_p2p"):  # these count apart, and not all ranks take part
            continue
        name, words = (str(part)[:100] for part in entry["process_group"])
        number, has_ended = int(entry["collective_seq_id"]), entry.get("retired") or entry.get("state") == "completed"
        group = groups.setdefault(name, {"desc": words, "entered": 0, "waits": None})
        group["entered"] = max(group["entered"], number)
        if not has_ended and (group["waits"] is None or number < group["waits"][0]):
            group["waits"] = [number, str(entry.get("profiling_name", "")).partition(":")[2][:100] or "a collective"]
    waiting_first = sorted(groups, key=lambda name: groups[name]["waits"] is None)
    return {name: groups[name] for name in waiting_first[:MOST_GROUPS]}


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts; nothing that a pickle could run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a flight recorder's dump holds no {module}.{name}")

    def persistent_load(self, _: Any) -> Any:
        raise pickle.UnpicklingError("a flight recorder's dump holds no references")
