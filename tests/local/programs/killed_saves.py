"""Saves checkpoints in a child that is killed at some instant, again and again; prints what each kill left."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from orchestrator.training.checkpoint import format as checkpoints

torch.set_num_threads(1)
folder, trials = Path(sys.argv[1]), int(sys.argv[2])
state = {"weights": torch.arange(200_000.0)}
chance = random.Random(0)
done, last = 0, 0
while done < trials or last <= trials:  # a slow disk takes more of them to come as far
    if (child := os.fork()) == 0:
        checkpoints.clean(folder)
        newest = checkpoints.newest(folder)
        for step in range(newest.step if newest else 0, 10**6):
            checkpoints.save(folder, state, checkpoints.Manifest(step=step + step % 2), keep=2)
        os._exit(1)
    time.sleep(chance.uniform(0.02, 0.12))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = checkpoints.listing(folder)
    done, last = done + 1, max((each.step for each in found), default=0)
    print(json.dumps({"steps": [each.step for each in found], "problems": [each.problem for each in found]}))
