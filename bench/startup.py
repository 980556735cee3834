"""From the command to "all ranks have joined the process group", and the memory of the ranks: orch against torchrun.

Four ranks on one node run the same script; the last rank's return from init_process_group and a barrier counts.
"""

from __future__ import annotations

import os
from pathlib import Path

from launches import Launch, OrchLaunch, TorchrunLaunch, ended, one_node, supervisor_of, workplace
from pairs import Load, Pairs, Target, how_many, interleave, print_pairs

NPROC = 4
MIB = 1024**2


def rollup(pid: int, *names: str) -> int:
    """The sum of these lines of smaps_rollup, in bytes; 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.partition(":")[0] in names)


def ancestors(pid: int) -> list[int]:
    """The processes above `pid`, up to init or to this script."""
    found: list[int] = []
    while True:
        stat = Path(f"/proc/{found[-1] if found else pid}/stat").read_text()
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent in (0, 1, os.getpid()):
            return found
        found.append(parent)


class Memory:
    """What one side's processes hold, one value for each launch."""

    def __init__(self) -> None:
        self.private: list[float] = []
        self.everything: list[float] = []

    def look(self, launch: Launch, also: list[int]) -> None:
        ranks = [stamp["pid"] for stamp in launch.stamps.all("joined")]
        above = {pid for rank in ranks for pid in ancestors(rank)}
        self.private.append(sum(rollup(pid, "Private_Clean", "Private_Dirty") for pid in ranks) / MIB)
        self.everything.append(sum(rollup(pid, "Pss") for pid in {*ranks, *above, *also}) / MIB)


def joined(launch: Launch) -> float | None:
    """Seconds from the command to the last rank's stamp; None where not all came."""
    if not launch.stamps.wait(lambda stamps: len(stamps.all("joined")) == NPROC, 60):
        return None
    return float(launch.stamps.all("joined")[-1]["time"] - launch.begun)


def main() -> None:
    load, count, ours, theirs = Load(), how_many(10), Memory(), Memory()
    with workplace() as folder:

        def orch() -> float | None:
            with ended(OrchLaunch(folder, {"script": "join.py"}, 1, NPROC)) as launch:
                seconds = joined(launch)
                supervisor = supervisor_of(folder / "home")
                ours.look(launch, [supervisor.pid] if supervisor else [])
                (launch.stamps.out / "release").touch()
                launch.wait()
                return seconds

        def torchrun() -> float | None:
            with ended(TorchrunLaunch(folder, "join.py", one_node(NPROC))) as launch:
                seconds = joined(launch)
                theirs.look(launch, [])
                (launch.stamps.out / "release").touch()
                launch.wait()
                return seconds

        pairs = interleave(orch, torchrun, count)
    against = "`torchrun`, static rendezvous"
    print_pairs("submit to all 4 ranks joined", against, Target(0.5), pairs, pairs.medians("s"), load)
    memory = Pairs([*ours.private], [*theirs.private])
    whole = Pairs([*ours.everything], [*theirs.everything])
    note = f"Pss of ranks, launcher, agent and supervisor against ranks and torchrun: {whole.medians('MiB', 0)}"
    print_pairs("private memory of the 4 ranks", against, Target(1), memory, memory.medians("MiB", 0), load, note)


if __name__ == "__main__":
    main()
