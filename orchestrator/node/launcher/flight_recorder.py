"""Requests a dump of each rank's last collectives from torch's flight recorder through a pipe, and reads the dump.

A thread of NCCL's process group listens to the pipe, so a rank answers even if its main thread waits for its GPU. A
dump is a pickle of plain values. It is read by an unpickler that refuses all other objects.
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

STEM = "flight_"  # prefix of the dumps, flight_RANK, and of the pipes, flight_RANK.pipe
ENTRIES = 2000
MOST_DUMP = 64 << 20
MOST_GROUPS = 32  # the most process groups of a rank that are reported to the leader
ANSWER_SECONDS = 2.0  # seconds; torch reads its pipe once per second
# Before this version, torch opens the pipe only if the buffer's old variable is set. Later versions warn about it.
OLD_NAME_UNTIL = (2, 12)


def recorder_settings(folder: str, torch_version: str = "") -> dict[str, str]:
    """Return the environment variables that enable torch's flight recorder, with its dumps and pipes in this folder."""
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
    """Request dumps from these ranks through their pipes. Return the ranks whose flight recorder reads its pipe and
    will therefore answer.
    """
    asked = []
    for rank in ranks:
        # there is no pipe or no listener, because the rank does not use NCCL, or has not joined yet
        with contextlib.suppress(OSError):
            pipe = os.open(f"{folder}/{STEM}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{folder}/{STEM}{rank}")  # otherwise, an older dump would be read as the answer
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
    """Return a dict from the name of each process group to the group's state, from a rank's dump. Return None if there
    is no readable dump.

    Each group has its description and the number of the last collective that the rank entered. If the rank waits, the
    group also has the number and name of the first unfinished collective.
    """
    try:
        dump = read_regular(f"{folder}/{STEM}{rank}", MOST_DUMP, folder.rsplit("/", 3)[0])  # RUN/nodes/0/attempt_0
        return groups_of(_Plain(io.BytesIO(dump)).load()) if dump.endswith(pickle.STOP) else None
    except Exception:  # noqa: BLE001 (the rank may have written anything, or only half of a dump)
        return None


def groups_of(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Return the process groups in a dump, in the form that `read_groups` returns."""
    groups: dict[str, Any] = {}
    for entry in dump["entries"]:
        if entry.get("is_p2p"):  # point-to-point operations are numbered separately, and not all ranks take part
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
    """An unpickler for numbers, texts, lists and dicts. It refuses all objects that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a flight recorder's dump must not contain {module}.{name}")

    def persistent_load(self, _: Any) -> Any:
        raise pickle.UnpicklingError("a flight recorder's dump must not contain references")
