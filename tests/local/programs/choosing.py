"""Joins the others with the choice that the command line names for this rank: a backend, or why it has none.

With `impatient`, rank 0 then waits for rank 1 no longer than it may in a step.
"""

import os
import sys
import time
from pathlib import Path

import torch

from orchestrator.training.distributed import group
from orchestrator.training.distributed.devices import Choice
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.errors import UserError

word = sys.argv[1 + int(os.environ["RANK"])]
choice = Choice(word, torch.device("cpu"), "made up") if word == "gloo" else UserError(word)
try:
    with group.joined(read_ranks(), choice, "env://", 60.0) as agreed:
        print("joined by", agreed.backend, flush=True)
        if "impatient" in sys.argv:
            told = Path("told")
            if group.rank():
                while not told.exists():
                    time.sleep(0.02)
            else:
                group.set_timeout(0.2)
                try:
                    group.barrier()
                except RuntimeError:
                    print("waited no longer", flush=True)
                told.touch()
            os._exit(0)
except UserError as error:
    print(error)
