"""Watches a run on other machines: copies the files that they write, during the run and after its end.

It works with machines over SSH, each with the files of one node, and with a login node, which has the files of all
nodes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.backends.hosts import all_of, on_all
from orchestrator.backends.mirror.checkpoints import bring_newest, remote_checkpoints
from orchestrator.backends.mirror.growing import Copy, update_all
from orchestrator.backends.mirror.output_record import Left, Sizes, record_left
from orchestrator.backends.mirror.outputs import Outputs
from orchestrator.backends.settings import remote_folder
from orchestrator.errors import BackendError, JobOverError, OrchError, StoreError
from orchestrator.outcome.restart import newest_start
from orchestrator.protocol.events import AgentEnded, Cancel, GangEnded, GaveUp, Joined, LeftBehind, LostNode, of
from orchestrator.protocol.files import locked
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.files.logs import Selection, nodes_with
from orchestrator.runs.reducer import left_outputs

if TYPE_CHECKING:
    from orchestrator.runs.store import RunDir
    from orchestrator.transport.machine import Machine

POLL_SECONDS: Final = 1.0
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 15.0
JOIN_SECONDS: Final = 5.0
OUTPUTS_SECONDS: Final = (2.0, 10.0)  # between two looks: at first, and later


@dataclass(frozen=True)
class Source:
    """The files of some of a run's nodes, and the connection to the machine that has these files."""

    name: str  # the name for people
    nodes: tuple[int, ...]
    session: Callable[[], Machine]
    is_vital: bool = False  # the run gets no verdict while this machine is unreachable

    def copies(self, run: RunDir, ranks: list[int] | None) -> list[Copy]:
        """Return a Copy object for each node. `ranks` are the ranks whose logs are copied; None for all."""
        return [Copy(run, node, remote_folder(run), remote_checkpoints(run), ranks) for node in self.nodes]


# -- while the run continues


@dataclass(frozen=True)
class Update:
    """The result of one look at a machine."""

    steps: list[str] | None = None  # the committed checkpoints on the machine; None if it does not report them
    pause: float = 0.0  # seconds until the next look; 0 if the machine delays its answer until something is new
    is_news: bool = True  # False if nothing follows from it, because each pass over a run reads the files of all nodes


class Follower(ABC):
    """The interface for the work that a thread of a watcher repeats with one machine."""

    @abstractmethod
    def update(self) -> Update:
        """Copy new files, and record the facts that they contain. Raises BackendError if the machine is unreachable."""

    @abstractmethod
    def record_loss(self, error: BackendError) -> None:
        """Record that the machine is unreachable."""

    def has_moved(self) -> bool:
        """Return True if the node has been moved to another machine."""
        return False


class RunWatcher:
    """The threads of the supervisor that watch one run.

    There is one thread for each follower, one that copies checkpoints, and one that copies outputs. `sources` returns
    the reachable machines, node 0's first, from which checkpoints are copied.
    """

    def __init__(self, run: RunDir, followers: Iterable[Follower], sources: Callable[[], Sequence[Source]]) -> None:
        self.run, self.followers, self.sources = run, tuple(followers), sources
        self.ended, self.changed, self.new_step = threading.Event(), threading.Event(), threading.Event()
        self.steps: list[str] = []
        self.threads = [threading.Thread(target=self.follow, args=(each,), daemon=True) for each in self.followers]
        self.threads.append(threading.Thread(target=self._bring_checkpoints, daemon=True))
        self.threads.append(threading.Thread(target=self._bring_outputs, daemon=True))
        for thread in self.threads:
            thread.start()

    def _bring_outputs(self) -> None:
        """Copy outputs while the run continues. Copying takes at most a tenth of the time."""
        outputs: dict[int, Outputs] = {}
        pause, shortest = OUTPUTS_SECONDS[0], OUTPUTS_SECONDS[0]
        while not self.ended.wait(pause):
            begun, shortest = time.monotonic(), min(2 * shortest, OUTPUTS_SECONDS[1])
            sizes = Sizes(self.run, range(self.run.record().nnodes))
            for source in self._sources_of_outputs():
                node = source.nodes[0]
                mine = outputs.setdefault(node, Outputs(self.run, node, stop=self.ended.is_set))
                with contextlib.suppress(Exception):  # all outputs are tried again at the end, with errors reported
                    mine.bring(source.session(), final=False, sizes=sizes)
            pause = max(shortest, 9 * (time.monotonic() - begun))

    def _sources_of_outputs(self) -> Sequence[Source]:
        """Return the machines that have outputs. If the machines share the folder, node 0's machine has all outputs."""
        sources = self.sources()
        return [each for each in sources if each.nodes[0] == 0] if self.run.record().profile.shared else sources

    def wait(self, timeout: float) -> None:
        """Return when a file or an agent has changed, or after `timeout` seconds."""
        self.changed.wait(timeout)
        self.changed.clear()

    def stop(self) -> None:
        """Stop the threads. A copy that is in progress is interrupted."""
        self.ended.set()
        self.new_step.set()
        for thread in self.threads:
            thread.join(JOIN_SECONDS)

    def follow(self, follower: Follower) -> None:
        """Repeat the follower's `update` until the watcher is stopped. The pauses grow while the machine is
        unreachable.
        """
        backoff = FIRST_PAUSE
        while not self.ended.is_set():
            is_news = True
            try:
                found = follower.update()
                pause, backoff, is_news = found.pause, FIRST_PAUSE, found.is_news
                if found.steps is not None and found.steps != self.steps:
                    self.steps = found.steps
                    self.new_step.set()
            except Exception as error:  # noqa: BLE001 (after any error, such as a full disk, the thread continues)
                with contextlib.suppress(Exception):  # for example, the disk is full; the next update tries again
                    follower.record_loss(_in_words(error))
                pause, backoff = backoff, min(LONGEST_PAUSE, backoff * 2)
            if is_news:
                self.changed.set()
            if self.rest(follower, pause):
                backoff = FIRST_PAUSE

    def rest(self, follower: Follower, seconds: float) -> bool:
        """Wait for this number of seconds. Return True as soon as the follower's machine has changed, and False if the
        time is over or the watcher was stopped.
        """
        while seconds > 0 and not self.ended.wait(min(seconds, POLL_SECONDS)):
            if follower.has_moved():
                return True
            seconds -= POLL_SECONDS
        return False

    def _bring_checkpoints(self) -> None:
        """Copy the run's newest committed checkpoint whenever there is a new one, until the watcher is stopped."""
        while True:
            self.new_step.wait()
            self.new_step.clear()
            if self.ended.is_set():
                return
            with contextlib.suppress(Exception):  # the followers report any error; the next step tries again
                for source in self.sources()[:1]:
                    bring_newest(self.run, source.session(), remote_checkpoints(self.run), self.steps, most=1)


def _in_words(error: Exception) -> BackendError:
    """Turn the exception that stopped the work with a machine into a BackendError."""
    if isinstance(error, BackendError):
        return error
    if isinstance(error, OrchError):
        return BackendError(error.message, error.hint)
    return BackendError(f"the data that the node sent could not be stored: {type(error).__name__}: {error}")


@contextlib.contextmanager
def watching_logs(run: RunDir, sources: Sequence[Source], selection: Selection) -> Iterator[None]:
    """Copy the chosen logs within the block, and once more at the end of the block.

    Only machines that have some of these logs are contacted, so the log of one rank among a thousand nodes needs one
    connection.
    """
    watch = _LogWatch(run, sources, selection)
    try:
        yield
    finally:
        watch.stop()


class _LogWatch:
    """The threads that copy chosen logs: one for each machine with such logs, and one that finds these machines."""

    def __init__(self, run: RunDir, sources: Sequence[Source], selection: Selection) -> None:
        self.run, self.sources, self.selection = run, sources, selection
        self.ended, self.known = threading.Event(), FileCache()
        self.nodes: set[int] | None = set()
        self.asks_all = False  # because it is unknown which machines have them
        self.threads: dict[int, threading.Thread] = {}
        self._look()
        self.looking = threading.Thread(target=self._look_again, daemon=True)
        self.looking.start()

    def stop(self) -> None:
        """Copy once more, then stop the threads."""
        self.ended.set()
        self.looking.join(JOIN_SECONDS)
        for thread in list(self.threads.values()):
            thread.join(JOIN_SECONDS)

    def _look_again(self) -> None:
        if self.nodes == set():
            self._ask_node_0()
            self._look()
        while not self.ended.wait(POLL_SECONDS):
            self._look()

    def _ask_node_0(self) -> None:
        """Copy node 0's events, which tell on which node each rank is. The supervisor may not have copied them yet."""
        try:
            for source in self.sources[:1]:
                update_all(source.copies(self.run, [0])[:1], source.session())
        except Exception:  # noqa: BLE001 (any machine may be unreachable or answer nonsense)
            self.asks_all = True

    def _look(self) -> None:
        """Find the nodes with chosen logs, and start to copy from machines on which such logs have appeared."""
        with contextlib.suppress(StoreError):  # not readable, or removed meanwhile: the command reports that
            nodes = nodes_with(self.run, self.selection, self.known)
            self.nodes = None if nodes == set() and self.asks_all else nodes
        for number, source in enumerate(self.sources):
            if number not in self.threads and any(map(self._is_chosen, source.nodes)):
                self.threads[number] = threading.Thread(target=self._copy, args=(source,), daemon=True)
                self.threads[number].start()

    def _is_chosen(self, node: int) -> bool:
        return self.nodes is None or node in self.nodes

    def _copy(self, source: Source) -> None:
        copies = source.copies(self.run, self.selection.ranks)
        while True:
            is_last, has_waited = self.ended.is_set(), False
            chosen = [copy for copy in copies if self._is_chosen(copy.node)]
            with contextlib.suppress(Exception):  # unreachable, or this disk is full: the watcher reports it
                update_all(chosen, source.session(), 0.0 if is_last else POLL_SECONDS, only_logs=True)
                has_waited = len(chosen) == 1
            if is_last:
                return
            if not has_waited:
                self.ended.wait(POLL_SECONDS)


# -- after the end of the run


def finish(
    run: RunDir, sources: Iterable[Source], unreachable: Collection[int] = (), former: Iterable[Source] = (),
    patience: float = 0.0,
) -> None:  # fmt: skip
    """Copy all files of an ended run, then remove its folders on the other machines. Does nothing if the run's result
    (verdict.json) is recorded.

    Raises BackendError if a connection breaks, so that the caller tries again. The caller tries a vital machine (a
    login node) without a limit. It tries a node whose agent has ended for `patience` seconds after the first failure,
    unless the run is cancelled. After that, the machine keeps its folder, as it does if some of its outputs could not
    be copied. The events `left_behind` and `outputs_left` record that.

    The nodes in `unreachable`, whose agents must not have ended (see `nodes_ended`), and `former` (machines of earlier
    starts) are not contacted, and the result does not wait for them.
    """
    with locked(run.path / "collect.lock"):
        if not (run.path / "verdict.json").exists():
            bring_home(run, sources, unreachable, patience=patience)
            for source in former:
                _record_left_behind(run, source, "it left the run before its outputs were copied")


def nodes_ended(run: RunDir) -> set[int | None]:
    """Return the nodes whose agents have ended in the run's newest start: those that have reported their end and, after
    the end of the gang, those that had joined and were not lost. Perhaps the last events of these were not copied yet.
    """
    events = newest_start(run.events())
    led = [event for event in events if event.node == 0]
    joined = {event.joined for event in of(led, Joined)} if of(led, GangEnded) else set()
    reported = {event.node for event in of(events, AgentEnded, GaveUp)}
    return reported | (joined - {event.lost for event in of(led, LostNode)})


def bring_home(
    run: RunDir, sources: Iterable[Source], unreachable: Collection[int] = (),
    *, limited: bool = True, patience: float = 0.0,
) -> None:  # fmt: skip
    """Copy all files of a run to this machine, then remove its folders on the other machines. The run's result may
    be known already. If `limited` is False, copy outputs of any size. Raises BackendError as `finish` does.
    """
    checkpoints, remote = remote_checkpoints(run), remote_folder(run)
    by_node = {source.nodes[0]: source for source in sources}

    def connected(source: Source) -> Machine:
        try:
            return source.session()
        except BackendError as error:  # the machine could be reached before; only a scheduler's job is over for good
            error.transient = not isinstance(error, JobOverError)
            raise

    def bring(_: int, source: Source) -> None:
        session, copies = connected(source), source.copies(run, None)
        update_all(copies, session)
        if source.nodes[0] == 0:
            bring_newest(run, session, checkpoints, copies[0].steps)

    def outputs(node: int, source: Source) -> Left:
        try:
            return Outputs(run, node).bring(connected(source), final=True, limited=limited, sizes=sizes)
        except BackendError as error:
            if error.transient:
                raise
            return Left(None, 0, error.message)
        except OSError as error:  # an error with the records on this machine
            return Left(None, 0, f"{error.filename or run.path}: {error.strerror or error}")

    def of_those(failed: Collection[int]) -> dict[int, Source]:
        return {node: each for node, each in by_node.items() if node not in failed}

    _, failed = on_all(bring, of_those(unreachable))
    failed |= {node: BackendError(f"{by_node[node].name}: out of reach", transient=True)
               for node in by_node.keys() & set(unreachable)}  # fmt: skip
    left: dict[int, Left] = {}
    sizes = Sizes(run, by_node)
    # Node 0's outputs come first: the others are compared with them. In a shared folder, node 0 has all outputs.
    stages = [{0}] if run.record().profile.shared else [{0}, set(by_node) - {0}]
    for stage in stages:
        found, lost = on_all(outputs, {node: each for node, each in of_those(failed).items() if node in stage})
        left |= found
        failed |= lost
    if vital := {node: error for node, error in failed.items() if by_node[node].is_vital}:
        raise all_of(vital)
    ended = nodes_ended(run) if patience else ()
    if awaited := {node: error for node, error in failed.items() if error.transient and node in ended}:
        events = run.events()
        known = {each.node for each in left_outputs(events)} & {each.left for each in of(events, LeftBehind)}
        for node in awaited.keys() - known:
            _record_left_behind(run, by_node[node], failed[node].message)
        if _is_worth_waiting(run, patience):
            raise all_of(awaited)
    record_left(run, left, {node: by_node[node].name for node in left}, remote)
    held = {node for node, each in left.items() if each.is_something}
    is_whole = not run.record().profile.shared or not ({0} & (held | failed.keys()))
    _, kept = on_all(
        lambda _, source: source.session().call("remove", run_dir=remote, run_id=run.run_id),
        of_those({*failed, *held}) if is_whole else {},
    )
    for node, error in {**failed, **kept}.items():
        _record_left_behind(run, by_node[node], error.message, files=0 if node in kept else None)


def _record_left_behind(run: RunDir, source: Source, why: str, files: int | None = None) -> None:
    left, folder = source.nodes[0], remote_folder(run)
    run.append_event(LeftBehind(left=left, host=source.name, folder=folder, reason=why, files=files))


def _is_worth_waiting(run: RunDir, patience: float) -> bool:
    """Return True for `patience` seconds after the first failure to copy the files of an ended run, unless the run was
    cancelled.
    """
    events = run.events()
    first = min(event.time for event in of(events, LeftBehind))
    return time.time() - first < patience and not of(events, Cancel)


def bring_outputs(run: RunDir, sources: Iterable[Source]) -> None:
    """Copy to this machine all outputs that exist only on other machines, whatever their size. If the run has ended,
    remove its folders on those machines.

    While the run continues, only files that do not change are copied. Raises BackendError if a machine is unreachable.
    """
    if (run.path / "verdict.json").exists():
        left = {each.node for each in left_outputs(run.events())}
        chosen = [source for source in sources if left & {source.nodes[0]}]
        with locked(run.path / "collect.lock"):
            bring_home(run, chosen, limited=False)
        return
    for source in sources:
        outputs = Outputs(run, source.nodes[0])
        for _ in range(2):  # a file that is the same in both looks is not being written
            outputs.bring(source.session(), final=False, limited=False)
