"""Launches that stand at the same time and take turns; each round gives one figure for each of them."""

from __future__ import annotations

from launches import Launch

TURN_SECONDS = 120.0


def environment(turns: int, steps: int) -> dict[str, str]:
    """What programs/turns.py reads."""
    return {"BENCH_TURNS": str(turns), "BENCH_STEPS": str(steps)}


def rounds(launches: list[Launch], turns: int) -> list[list[float]]:
    """Steps a second of rank 0, for each round but the first, which warms up, and for each launch in their order."""
    found = [[_turn(launch, turn) for launch in launches] for turn in range(turns)]
    for launch in launches:
        launch.wait()
    return found[1:]


def _turn(launch: Launch, turn: int) -> float:
    def rates() -> list[float]:
        return [stamp["rate"] for stamp in launch.stamps.all("turn") if stamp["rank"] == 0]

    (launch.stamps.out / f"turn_{turn}").touch()
    if not launch.stamps.wait(lambda _: len(rates()) > turn, TURN_SECONDS):
        raise RuntimeError(f"turn {turn} never ended: {launch.stamps.out}")
    return rates()[turn]
