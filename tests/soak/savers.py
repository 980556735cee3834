"""Writers of checkpoints that are killed, again and again; says after each what a reader would load.

    python savers.py FOLDER SEED KILLS

A writer dies at a byte (the kernel ends it with SIGXFSZ when a file grows past its limit), at a moment, or before one
of its calls. It reports each step that `save` has returned for: from then on that step, or a later one, must load.
"""

import io
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from orchestrator.training.checkpoint import format as checkpoints

torch.set_num_threads(1)
CALLS = ("open", "write", "replace", "rename", "fsync", "mkdir", "rmdir", "unlink")


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.arange(20_000.0) + step, "names": ["a", "b"] * 10}


def is_right(state: dict[str, Any], step: int) -> bool:
    expected = state_of(step)
    return (state["step"], state["names"]) == (step, expected["names"]) and torch.equal(
        state["weights"], expected["weights"]
    )


def _bytes_of(state: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def die_before(call: int) -> None:
    """Kill this process before its call number `call` of those that reach the disk."""
    count = [0]

    def watched(name: str) -> None:
        inner = getattr(os, name)

        def act(*args: Any, **values: Any) -> Any:
            count[0] += 1
            if count[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*args, **values)

        setattr(os, name, act)

    for name in CALLS:
        watched(name)


def write(folder: Path, how: tuple[str, float], pipe: int) -> None:
    """The writer, which never returns."""
    what, value = how
    checkpoints.clean(folder)
    found = checkpoints.newest(folder, report=lambda _: None)
    if what == "byte":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    elif what == "call":
        die_before(int(value))
    begun = found.step if found else 0
    for step in range(begun + 1, begun + 10_000):
        if what == "byte" and step == begun + 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), int(value)))
        again = step - step % 2  # every second one is written over the one before
        checkpoints.save(folder, state_of(again), checkpoints.Manifest(step=again), keep=2)
        _write(pipe, f"{again}\n".encode())
    os._exit(1)


_write = os.write


def main() -> None:
    folder, chance, kills = Path(sys.argv[1]), random.Random(sys.argv[2]), int(sys.argv[3])
    size = len(_bytes_of(state_of(1)))
    for number in range(kills):
        how = (
            ("byte", float(chance.choice((chance.randrange(1, size), chance.randrange(1, 800))))),
            ("moment", chance.uniform(0.0, 0.12)),
            ("call", float(chance.randrange(1, 60))),
        )[number % 3]
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reading)
            write(folder, how, writing)
        os.close(writing)
        if how[0] == "moment":
            time.sleep(how[1])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with open(reading, "rb") as pipe:
            promised = max((int(line) for line in pipe.read().split()), default=0)
        said: list[str] = []
        checkpoints.clean(folder)  # as the next writer does before it looks
        found = checkpoints.newest(folder, report=said.append)
        line = {"how": how, "signal": os.WTERMSIG(status), "promised": promised, "found": found and found.step}
        line["torn"] = said
        if found is not None:
            state, manifest = checkpoints.load(found.path)
            line["right"] = is_right(state, found.step) and manifest.step == found.step
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
