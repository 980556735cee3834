"""The shared entrypoint on a disk that writes no checkpoint before every rank has reported that it is in `save`."""

import os
import re
import runpy
import time
from pathlib import Path

from orchestrator.training.checkpoint import format as checkpoints
from tests.patience import PATIENCE

BEATS = [
    Path(re.sub(r"\d+$", str(rank), os.environ["ORCH_BEAT_FILE"])) for rank in range(int(os.environ["WORLD_SIZE"]))
]
write = checkpoints.write


def write_when_all_are_there(*given):
    """Write the checkpoint as soon as all ranks are in `save`."""
    end = time.monotonic() + PATIENCE
    while not all('"phase": "save"' in beat.read_text() for beat in BEATS):
        assert time.monotonic() < end, [beat.read_text() for beat in BEATS]
        time.sleep(0.01)
    return write(*given)


checkpoints.write = write_when_all_are_there
runpy.run_module("orchestrator.training", run_name="__main__")
