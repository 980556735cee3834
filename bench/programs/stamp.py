"""How a rank tells when something happened: a line in a file of its own, with the machine's monotonic clock."""

import functools
import json
import os
import time
from pathlib import Path
from typing import Any


@functools.cache
def _file() -> Any:
    path = Path(os.environ["BENCH_OUT"]) / f"rank_{os.environ['RANK']}.jsonl"
    return path.open("a", buffering=1)


def stamp(what: str, **values: Any) -> None:
    """Write one line; the process's start time, in clock ticks, makes its id unmistakable."""
    now = time.monotonic()
    if what == "started":
        values["started"] = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    line = {"what": what, "rank": int(os.environ["RANK"]), "pid": os.getpid(), "time": now, **values}
    _file().write(json.dumps(line) + "\n")
