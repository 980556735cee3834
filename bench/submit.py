"""How long `orch submit` takes to return: the run is then recorded durably, detached, and its agent started."""

from __future__ import annotations

import statistics

from launches import OrchLaunch, ended, workplace
from pairs import Load, how_many, print_row

LIMIT_MS = 200


def main() -> None:
    load, count = Load(), how_many(10)
    taken = []
    with workplace() as folder:
        for _ in range(count):
            with ended(OrchLaunch(folder, {"command": ["true"]}, 1, 2)) as launch:
                launch.wait()
                taken.append(1000 * (launch.returned - launch.begun))
    middle = statistics.median(taken)
    shown = f"{middle:.0f} ms ({min(taken):.0f}-{max(taken):.0f})"
    verdict = "met" if middle <= LIMIT_MS else "**falls short**"
    note = f"{verdict}; no peer: a time, not a ratio"
    print_row("`orch submit` until it returns", "-", f"≤ {LIMIT_MS} ms", shown, str(count), "-", note, str(load))


if __name__ == "__main__":
    main()
