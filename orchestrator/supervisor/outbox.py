"""Delivers the news of runs (events, metrics, verdicts) to the receivers: notifications and trackers. Each receiver has
a thread, so that a slow receiver does not delay the others.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.errors import OrchError
from orchestrator.runs import outbox
from orchestrator.runs.claims import claim_of, may_take, now_of
from orchestrator.runs.dependencies import is_queued
from orchestrator.runs.outbox import Receiver
from orchestrator.runs.store import RunDir
from orchestrator.supervisor.notifications import Notifications
from orchestrator.trackers.feed import Feed
from orchestrator.trackers.progress import trackers_of

PATIENCE: Final = 600.0  # seconds of retries after a run's end; the next supervisor continues them
MOST_DELAY: Final = 10.0  # seconds between two tries
LEAST_DELAY: Final = 1.0  # seconds between two deliveries


@dataclass
class _Delivery:
    """The state of the deliveries to one receiver. Times are those of the monotonic clock."""

    thread: threading.Thread | None = None
    next_try: float = 0.0
    delay: float = LEAST_DELAY
    last_success: float = field(default_factory=time.monotonic)
    is_failing: bool = False
    is_at_work: bool = False
    is_given_up: bool = False


class Outbox:
    """The deliveries to the receivers of all runs. `wake` is called after each delivery for an ended run, because that
    delivery may be the last.
    """

    def __init__(self, root: Path, wake: Callable[[], None]) -> None:
        self.root, self.wake = root, wake
        self.deliveries: dict[str, dict[str, _Delivery]] = {}  # by run, then by receiver
        self.given_up: set[str] = set()  # runs that can't be read, or whose receivers have failed for too long

    def has_work(self) -> bool:
        """Return True if news (events, metrics, verdicts) of an ended run may still be undelivered."""
        return any(run.run_id not in self.given_up and _has_ended(run) for run in self._entered())

    def poll(self) -> None:
        """Start every delivery that is due."""
        for run in self._entered():
            try:
                self._poll(run)
            except (OrchError, OSError) as error:
                if run.run_id not in self.given_up:
                    print(f"{run.run_id}: no news of it is delivered: {error}", file=sys.stderr, flush=True)
                self._give_up(run)

    def _entered(self) -> list[RunDir]:
        """Return the runs in the outbox that no other machine looks after."""
        entered = list(outbox.entered(self.root))
        now = now_of(self.root) if entered else 0.0
        return [run for run in entered if may_take(run, claim_of(run), now)]

    def _poll(self, run: RunDir) -> None:
        has_ended = _has_ended(run)
        if is_queued(run) and not has_ended:  # a trial of a search has no parameters yet
            return
        is_damaged = has_ended and run.ending() is None  # how the run ended is unknown
        lacking = [] if is_damaged else self._lacking(run, has_ended=has_ended)
        if has_ended and not lacking:
            outbox.leave(self.root, run)
            self.deliveries.pop(run.run_id, None)
            self.wake()
            return
        for receiver, delivery in lacking:
            self._deliver_if_due(run, receiver, delivery, has_ended=has_ended)
        if has_ended and all(delivery.is_given_up for _, delivery in lacking):
            self._give_up(run)

    def _lacking(self, run: RunDir, *, has_ended: bool) -> list[tuple[Receiver, _Delivery]]:
        """Return the receivers to which some of a run's news (events, metrics, verdict) was not delivered yet, or to
        which a delivery is in progress.
        """
        record = run.record()
        receivers: list[Receiver] = [Feed(run, name) for name in trackers_of(record.track)]
        if record.notify:
            receivers.append(Notifications(run))
        known = self.deliveries.setdefault(run.run_id, {})
        both = [(each, known.setdefault(each.name, _Delivery())) for each in receivers]
        return [(each, its) for each, its in both if its.is_at_work or each.has_news(has_ended=has_ended)]

    def _deliver_if_due(self, run: RunDir, receiver: Receiver, delivery: _Delivery, *, has_ended: bool) -> None:
        now = time.monotonic()
        if not has_ended or not (delivery.is_failing or delivery.is_at_work):
            delivery.last_success = now
        elif now - delivery.last_success > PATIENCE:
            delivery.is_given_up = True
        if delivery.is_at_work or delivery.is_given_up or now < delivery.next_try:
            return
        delivery.is_at_work = True
        delivery.thread = threading.Thread(target=self._deliver, args=(run, receiver, delivery), daemon=True)
        delivery.thread.start()

    def _deliver(self, run: RunDir, receiver: Receiver, delivery: _Delivery) -> None:
        was_failing, delivery.is_failing = delivery.is_failing, True
        try:
            delivery.is_failing = bool(receiver.deliver())
        except Exception as error:  # noqa: BLE001 (a full disk, a removed run, whatever a tracker's server answers)
            if not was_failing:
                print(f"{run.run_id}: {receiver.name} got no news: {error}", file=sys.stderr, flush=True)
        finally:
            delivery.delay = min(MOST_DELAY, 2 * delivery.delay) if delivery.is_failing else LEAST_DELAY
            delivery.next_try = time.monotonic() + delivery.delay
            delivery.is_at_work = False  # before `wake`, whose thread reads it
            if _has_ended(run):
                self.wake()

    def _give_up(self, run: RunDir) -> None:
        """Stop a run's deliveries; the next supervisor continues them. A removed run is deleted from the outbox."""
        self.given_up.add(run.run_id)
        if not run.path.exists():
            outbox.leave(self.root, run)


def _has_ended(run: RunDir) -> bool:
    return (run.path / "verdict.json").exists()
