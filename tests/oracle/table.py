"""The oracle: small programs that run by hand and by orch, and must do the same.

A program prints `rank R of W loss X` in each rank. Compared are these lines, whether the program ended well, and the
bytes of every file that it has left: by hand those that are new or changed around its folder, by orch what `orch pull`
delivers. The programs are this repository's own. They are deterministic, and use neither a network nor a GPU.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
RANK = re.compile(r"rank \d+ of \d+ loss \S+")
TORCHRUN = "torchrun --nproc_per_node 2"


@dataclass(frozen=True)
class Program:
    """A line as a user types it in the folder of the programs."""

    name: str
    line: str
    ranks: int = 2  # how many lines it prints
    python: str = "torch"  # the environment that it needs: bare, torch or frameworks
    ends_well: bool = True
    differs: Mapping[str, str] = field(default_factory=dict)  # files whose bytes are not compared, with the reason

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line)


BARE = [
    Program("plain", "python plain.py --lr 0.2", 1, "bare"),
    Program("fails", "python plain.py --code 3", 1, "bare", ends_well=False),
    Program("refuses_ranks", "python refuses_ranks.py", 1, "bare"),
    Program("loses_rank", "python loses_rank.py", 1, "bare"),
    Program("writes_around", "python writes_around.py", 1, "bare"),
    Program("overwrites", "python overwrites.py", 1, "bare"),
    Program("pool", "python pool.py", 1, "bare"),
    Program("shell", "bash run.sh 0.3", 1, "bare"),
    Program("words", "bash -c 'mkdir -p logs && python plain.py --lr 0.4 | tee logs/said.txt'", 1, "bare"),
]
TORCH = [
    Program("ddp", f"{TORCHRUN} ddp.py"),
    Program("standalone_module", "torchrun --standalone --nproc-per-node=2 -m package.train"),
    Program("distributed_launch", "python -m torch.distributed.launch --nproc_per_node=2 local_rank_option.py"),
    Program("accelerate_one", "accelerate launch --cpu --num_processes 2 accelerated.py", 1),
    Program("accelerate_two", "accelerate launch --multi_gpu --num_processes 2 accelerated.py"),
    Program("spawn_12355", "python spawn_12355.py"),
    Program("own_processes", "python own_processes.py"),
    Program("parent", "python parent.py plain"),
    Program("parent_session", "python parent.py session"),
    Program("parent_isolated", "python parent.py isolated"),
    Program("parent_twice", "python parent.py twice", 4),
    Program("loky", "python loky.py"),
]
_TRAINER = {
    "hf/**/training_args.bin": "Trainer keeps the name of the host and the time in it",
    "hf/training_args.bin": "Trainer keeps the name of the host and the time in it",
}
FRAMEWORKS = [
    Program("deepspeed", "deepspeed --num_gpus 2 deep.py", 2, "frameworks"),
    Program("trainer_one", "python trainer.py", 1, "frameworks", differs=_TRAINER),
    Program(
        "trainer_two",
        "python -m torch.distributed.run --nproc_per_node=2 trainer.py",
        2,
        "frameworks",
        differs=_TRAINER,
    ),
    Program("lightning", "python light.py", 2, "frameworks"),
]
PROGRAM = {program.name: program for program in (*BARE, *TORCH, *FRAMEWORKS)}
