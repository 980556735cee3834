"""Machines reached over SSH: each node is an agent there, detached from the connection that started it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.base import NodeProof
from orchestrator.backends.hosts import (
    Handle,
    Host,
    all_of,
    hosts_of,
    on_all,
    read_handle,
    task_json,
    workdir_of,
)
from orchestrator.backends.terminal import over_ssh
from orchestrator.errors import BackendError
from orchestrator.starts import newest_start, pending_start
from orchestrator.store import RunDir, read_lines
from orchestrator.wire import NodeTask

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from pathlib import Path

    from orchestrator.backends.laying import Order
    from orchestrator.backends.watching import Watch
    from orchestrator.plan import LaunchPlan, Place
    from orchestrator.session import Session, Ways
    from orchestrator.starts import Again

AWAY_SECONDS: Final = 12.0  # an agent without its gang has ended its ranks by then
SECRETS: Final = "secrets.json"


def places_needed(task: NodeTask, gpus: int, slots: int | None) -> int:
    """How many GPUs or slots a node's ranks hold; ranks that train on the CPU beside GPUs hold none."""
    if gpus:
        nproc = task.nproc or gpus
        return nproc if task.backend != "gloo" and nproc <= gpus else 0
    return (task.nproc or slots) if slots else 0


def visible(places: list[str]) -> dict[str, str]:
    """What the ranks are shown of the GPUs that they hold."""
    numbers = [name.removeprefix("gpu-") for name in places if name.startswith("gpu-")]
    return {"CUDA_VISIBLE_DEVICES": ",".join(numbers)} if numbers else {}


class SshBackend:
    """Agents on machines of the user's; what they write is copied here by the supervisor."""

    starts_again = True
    collects = True

    def __init__(self) -> None:
        self._ways: Ways | None = None
        self._watches: dict[str, Watch] = {}
        self._lock = threading.Lock()

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """A folder of the run in orch's folder on every node."""
        from orchestrator.plan import Place  # noqa: PLC0415 (loads pydantic)

        top = workdir or "~/.orch"
        folder = f"{top}/runs/{run.run_id}"
        return Place(folder, f"{folder}/code", f"{top}/inputs", "python3", "python3")

    def session(self, host: Host, workdir: str) -> Session:
        """The open session with a host."""
        with self._lock:
            if self._ways is None:
                from orchestrator.session import Ways  # noqa: PLC0415 (loads fabric)

                self._ways = Ways()
        return self._ways.session(host.address, workdir)

    # -- starting

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Check every node, send the code, then start all agents; nothing is started while one node can't take part."""
        from orchestrator.backends.sending import with_given_checkpoint  # noqa: PLC0415 (loads fabric)

        hosts, _ = hosts_of(plan.profile)
        if tasks[0].secrets:
            run.write(SECRETS, {"secrets": tasks[0].secrets}, private=True)  # for another start; gone with the verdict
        tasks = with_given_checkpoint(tasks)
        try:
            self.start_all(run, plan.profile, dict(enumerate(hosts)), tasks, 0, tuple(range(len(hosts))))
        except BackendError:
            if read_handle(run) is None:  # no agent was to be started yet, so nobody else removes what was sent
                workdir, remote = workdir_of(plan.profile), tasks[0].run_dir
                everybody = dict(enumerate(hosts))
                on_all(lambda _, host: self._remove(host, workdir, remote, run.run_id), everybody)
            raise

    def _remove(self, host: Host, workdir: str, remote: str, run_id: str) -> None:
        self.session(host, workdir).call("remove", run_dir=remote, run_id=run_id)

    def start_all(
        self,
        run: RunDir,
        profile: Mapping[str, Any],
        hosts: Mapping[int, Host],
        tasks: tuple[NodeTask, ...],
        start: int,
        seats: tuple[int, ...],
    ) -> None:
        """Start the agents of one start of the run on these hosts; BackendError names each that can't take part.

        `seats` says which of the plan's nodes each of them is.
        """
        from orchestrator.backends.sending import check_shared, checkpoint_to_give, prepare_node  # noqa: PLC0415 (loads fabric)

        workdir = workdir_of(profile)
        given, before = checkpoint_to_give(run, tasks[0]), read_handle(run)

        def prepare(node: int, host: Host) -> dict[str, Any]:
            session = self.session(host, workdir)
            is_new = start > 0 and (before is None or before.hosts[node : node + 1] != (host,))
            return prepare_node(session, run, tasks[node], workdir, given if node == 0 else None, is_new=is_new)

        hellos, failed = on_all(prepare, hosts)
        if failed:
            raise all_of(failed)
        if profile.get("shared"):
            check_shared({node: self.session(hosts[node], workdir) for node in sorted(hosts)}, tasks[0], workdir)
        places = self._lease(run, hosts, tasks, hellos, workdir, slots=profile.get("slots"), wait=start > 0)
        addresses = self.leader_addresses(hosts[0], hellos[0])
        everybody = tuple(hosts[node].name for node in sorted(hosts))
        tasks = tuple(
            replace(task, leader_addrs=addresses, hosts=everybody, env={**task.env, **visible(places[task.node_rank])})
            for task in tasks
        )
        handle = Handle("intent", start, tuple(hosts[node] for node in sorted(hosts)), {}, seats)
        handle.write(run)

        def begin(node: int, host: Host) -> tuple[int, int]:
            reply, _ = self.session(host, workdir).call("begin", task_json(tasks[node]))
            return reply["pid"], reply["started"]

        agents, failed = on_all(begin, hosts)
        replace(handle, state="intent" if failed else "submitted", agents=agents).write(run)
        if failed:
            raise all_of(failed)

    def _lease(
        self,
        run: RunDir,
        hosts: Mapping[int, Host],
        tasks: tuple[NodeTask, ...],
        hellos: Mapping[int, Mapping[str, Any]],
        workdir: str,
        *,
        slots: int | None,
        wait: bool,
    ) -> dict[int, list[str]]:
        """The GPUs or slots of every node, all or none; in the order of the hosts' names, so that two can't block."""
        wait = wait or bool((run.read("run.json") or {}).get("waits"))
        places: dict[int, list[str]] = {}
        try:
            for node in sorted(hosts, key=lambda node: (hosts[node].name, node)):
                count = places_needed(tasks[node], hellos[node]["gpus"], slots)
                session = self.session(hosts[node], workdir)
                places[node] = []
                if count:
                    reply, _ = session.call(
                        "lease", timeout=None, run_id=run.run_id, count=count, slots=slots, wait=wait
                    )
                    places[node] = reply["places"]
        except BackendError as error:
            for node in places:
                self.session(hosts[node], workdir).call("release", run_id=run.run_id)
            raise BackendError(error.message, error.hint or "orch nodes shows who; --wait-for-gpus waits") from error
        return places

    def leader_addresses(self, host: Host, hello: Mapping[str, Any]) -> tuple[str, ...]:
        """Where the other nodes may reach node 0: its `addr`, else what ssh and the machine itself call it."""
        if host.addr:
            return (host.addr,)
        from orchestrator.openssh import resolve  # noqa: PLC0415 (loads fabric)

        own = [addr for addr in hello["addresses"] if not addr.startswith("127.")]
        return tuple(dict.fromkeys([resolve(host.address).hostname, *own]))

    def start_again(self, run: RunDir, again: Again) -> None:
        """Start the agents anew, in the background: on the same hosts, with a spare for one that is out of reach."""
        handle = read_handle(run)
        if handle is None or (handle.start >= again.start and handle.state == "submitted"):
            return
        self.watch(run).begin_again(again)

    # -- looking

    def alive(self, run: RunDir) -> Mapping[int, bool | None]:
        """As the supervisor saw it last; a node out of reach counts as gone once the gang went on without it."""
        handle, decided = read_handle(run), pending_start(read_lines(run.path / "events.jsonl"))
        if handle is None or (decided is not None and decided.start > handle.start):
            return {}  # what is known of agents is of the start before
        seen = {node: run.read(f"nodes/{node}/seen.json") or {} for node in range(len(handle.hosts))}
        found: dict[int, bool | None] = {}
        for node, each in seen.items():
            if each.get("start") == handle.start:
                found[node] = each.get("alive")
            elif node in handle.agents or handle.state == "submitted":
                found[node] = None
        if any(alive is None for alive in found.values()):
            self._count_out(run, seen, found)
        return found

    def _count_out(self, run: RunDir, seen: Mapping[int, Mapping[str, Any]], found: dict[int, bool | None]) -> None:
        events = newest_start(run.events())
        over = any(event["kind"] == "gang_ended" and event.get("node") == 0 for event in events)
        deserted = any(event["kind"] == "gave_up" and event.get("node") != 0 for event in events)
        for node, alive in found.items():
            away = seen[node].get("away")
            is_long = isinstance(away, float) and time.time() - away > AWAY_SECONDS
            if alive is None and is_long and (over or (node == 0 and deserted)):
                found[node] = False

    def hosts(self, run: RunDir) -> list[str] | None:
        """What the nodes' machines are called; a spare may have taken the place of one."""
        handle = read_handle(run)
        return [host.name for host in handle.hosts] if handle else None

    def watch(self, run: RunDir) -> Watch:
        """The threads that copy what the run's nodes write; started when first asked for."""
        from orchestrator.backends.watching import Watch  # noqa: PLC0415 (loads fabric)

        with self._lock:
            if run.run_id not in self._watches:
                self._watches[run.run_id] = Watch(run, self)
            return self._watches[run.run_id]

    def wait(self, run: RunDir, timeout: float) -> None:
        """Copy what is new until something has changed, or for `timeout` seconds."""
        if read_handle(run) is None:  # its submit is still at work, for as long as an image is pulled
            time.sleep(timeout)
            return
        self.watch(run).wait(timeout)

    @contextlib.contextmanager
    def bringing_logs(self, run: RunDir, ranks: list[int] | None) -> Iterator[None]:
        """While it lasts, the logs of these ranks (None: of all) are copied here too."""
        from orchestrator.backends.watching import log_watch  # noqa: PLC0415 (loads fabric)

        with log_watch(run, self, ranks):
            yield

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """By ssh, to the machine that the node is now."""
        handle = read_handle(run)
        if handle is None:
            raise BackendError(f"run {run.run_id} has reached no machine yet")
        return over_ssh(handle.hosts[node].address, argv, terminal=terminal)

    def lay_out(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """In a folder beside the runs' on the node's machine; the run's own may be gone."""
        from orchestrator.backends.sending import lay_out  # noqa: PLC0415 (loads fabric)

        handle, workdir = read_handle(run), workdir_of((run.read("run.json") or {})["profile"])
        assert handle is not None, "reach() has refused"
        return lay_out(self.session(handle.hosts[node], workdir), run, workdir, name, checkpoint, order)

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Leave the recorded cancel on every node and TERM its agent; one that is out of reach hears of it later."""
        cancel = run.read("cancel.json") or {}

        def one(node: int, session: Session, remote: str) -> None:
            session.call("cancel", run_dir=remote, node=node, cancel=cancel)

        self._on_nodes(run, one)

    def sweep(self, run: RunDir) -> list[NodeProof]:
        """KILL what is left on every node; a node that is out of reach is named among the survivors."""

        def one(node: int, session: Session, remote: str) -> NodeProof:
            reply, _ = session.call("sweep", run_dir=remote, run_id=run.run_id, node=node)
            return NodeProof(node, reply["host"], reply["ended"], tuple(reply["survivors"]))

        handle, away = read_handle(run), self.away(run)
        proofs, failed = self._on_nodes(run, one, without=away)
        for node in {*failed, *away}:
            host = handle.hosts[node].name if handle else "?"
            proofs[node] = NodeProof(node, host, 0, is_away=True)
        return [proofs[node] for node in sorted(proofs)]

    def away(self, run: RunDir) -> set[int]:
        """The nodes that this process has been watching, and that are out of reach now."""
        handle = read_handle(run)
        if handle is None or run.run_id not in self._watches:
            return set()
        seen = {node: run.read(f"nodes/{node}/seen.json") or {} for node in range(len(handle.hosts))}
        return {node for node, each in seen.items() if each.get("away") is not None}

    def collect(self, run: RunDir) -> None:
        """Bring what is not here yet, then remove the run's folder on the nodes; what stays behind is recorded."""
        from orchestrator.backends.watching import finish  # noqa: PLC0415 (loads fabric)

        away = self.away(run)
        with self._lock:
            watch = self._watches.pop(run.run_id, None)
        if watch is not None:
            watch.stop()
        finish(run, self, away)

    def _on_nodes(
        self, run: RunDir, work: Any, without: Collection[int] = ()
    ) -> tuple[dict[int, Any], dict[int, BackendError]]:
        handle, record = read_handle(run), run.read("run.json") or {}
        if handle is None or not isinstance(record.get("profile"), dict):
            return {}, {}
        workdir = workdir_of(record["profile"])
        remote = f"{workdir}/runs/{run.run_id}"
        hosts = {node: host for node, host in enumerate(handle.hosts) if node not in without}
        return on_all(lambda node, host: work(node, self.session(host, workdir), remote), hosts)
