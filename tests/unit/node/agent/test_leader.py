"""The leader's decisions, driven by hand: a clock that is a number, and lists instead of a network."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.agent.leader import SETTLE_SECONDS, Leader
from orchestrator.outcome.gang import culprit_of
from orchestrator.outcome.restart import WITHOUT_PROGRESS
from orchestrator.outcome.rules import cause_of
from orchestrator.protocol.events import GangEnded, Slept, Unused, Used
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.messages import read_report
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.rank_reports import Culprit, LeftEarly
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.protocol.typed import read
from tests.events import by_name

GLOO = {"type": "RuntimeError", "message": "[pair.cc:537] Connection closed by peer [127.0.0.1]:1234"}
VICTIM = {"code": 1, "signal": None, "error": GLOO, "tail": []}
OWN = {"code": 1, "signal": None, "error": {"type": "ValueError", "message": "boom"}, "tail": []}
KILLED = {"code": None, "signal": "SIGKILL", "error": None, "tail": []}
FINE = {"code": 0, "signal": None}
HUNG = {"error": {"type": "Hang", "message": "a rank stood still"}}
WORKER_KILLED = {**OWN, "error": {"type": "RuntimeError", "message": "Pin memory thread exited unexpectedly"}}


class Gang:
    """A leader, and what it has said and recorded."""

    def __init__(self, nnodes: int = 2, step: int | None = None, **values: Any) -> None:
        values = {"retry": {"user_error": 0, "infra": 3}, "join_timeout": 300.0, **values}
        self.task = NodeTask(
            "r-1", 0, nnodes, tuple(f"plan{n}" for n in range(nnodes)), 2, "/run", "/code", Program("script", "t.py"),
            "fork", "gloo", "python3", ("10.0.0.1",), (20000, 20000), **values,
        )  # fmt: skip
        self.now, self.step, self.strangers = 100.0, step, ""
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.leader = Leader(
            self.task,
            send=lambda node, message: self.sent.append((node, by_name(message))),
            record=lambda event: self.events.append(by_name(event)),
            progress=lambda: Progress() if self.step is None else Progress(self.step),
            strangers=lambda: self.strangers,
            started=self.now,
        )

    # -- what nodes do

    def join(self, *nodes: int, nproc: int = 2) -> None:
        for node in nodes:
            self.leader.joined(Hello(node, f"n{node}", nproc, (f"10.0.0.{node}",), 7000 + node), self.now)

    def say(self, node: int, kind: str, **values: Any) -> None:
        report = read_report({"kind": kind, **values})
        assert report is not None
        self.leader.received(node, report, self.now)

    def everyone(self, kind: str, **values: Any) -> None:
        for node in range(self.task.nnodes):
            self.say(node, kind, **values)

    def run(self, nproc: int = 2) -> None:
        """From the first hello to running ranks."""
        self.join(*range(self.task.nnodes), nproc=nproc)
        if self.task.nnodes > 1:
            self.everyone("path", error=None)
        self.ready()

    def ready(self) -> None:
        self.everyone("ready", attempt=self.leader.attempt, port=4242)
        assert self.leader.phase == "running"

    def exit(self, rank: int, how: dict[str, Any], nproc: int = 2) -> None:
        after = round(self.now - 100.0, 3) + len(self.leader.current.exits) / 1000
        self.say(rank // nproc, "exit", rank=rank, attempt=self.leader.attempt, **{"after": after, **how})

    def idle(self) -> None:
        self.everyone("idle", attempt=self.leader.attempt)

    def fail(self, how: dict[str, Any] = OWN) -> None:
        """One attempt that ends by a rank of node 1."""
        self.exit(2, how)
        self.idle()

    def pass_time(self, seconds: float) -> None:
        """Seconds in which every node beats and the leader's clock ticks."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            for node in self.leader.roster.hellos:
                if node not in self.leader.presence.lost:
                    self.say(node, "heartbeat")
            self.leader.tick(self.now)

    # -- what came of it

    def told(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        return [(node, message) for node, message in self.sent if message["kind"] == kind]

    def recorded(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def end(self) -> dict[str, Any]:
        (event,) = self.recorded("gang_ended")
        return event

    @property
    def codes(self) -> dict[int, int]:
        return {node: message["code"] for node, message in self.told("bye")}


def test_one_node_is_prepared_as_soon_as_it_has_joined() -> None:
    gang = Gang(nnodes=1)
    gang.join(0)
    assert [message["kind"] for _, message in gang.sent] == ["prepare"]


@pytest.mark.parametrize("code", [0, 2])
def test_a_run_whose_last_checkpoint_is_on_no_disk_has_failed_and_is_not_started_again(code: int) -> None:
    gang = Gang(retry={"user_error": 3, "infra": 3})
    gang.run()
    gang.exit(0, {"code": code, "signal": None, "saves": 2, "saves_failed": 2, "unsaved": "EIO"})
    for rank in (1, 2, 3):
        gang.exit(rank, FINE)
    gang.idle()
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "checkpoint")
    assert gang.end["reason"] == "training is done, and its final weights are on no disk: EIO"
    assert gang.recorded("restart") == []


def test_a_run_of_which_only_earlier_checkpoints_failed_has_succeeded() -> None:
    gang = Gang()
    gang.run()
    gang.exit(0, {**FINE, "saves": 3, "saves_failed": 2, "unsaved": ""})
    for rank in (1, 2, 3):
        gang.exit(rank, FINE)
    gang.idle()
    assert gang.end["outcome"] == "succeeded"


def test_each_node_is_asked_to_test_the_way_to_its_neighbour() -> None:
    gang = Gang(nnodes=3)
    gang.join(2, 0)
    assert gang.sent == []
    gang.join(1)
    assert {node: (m["host"], m["port"], m["addrs"]) for node, m in gang.told("check")} == {
        0: ("n1", 7001, ("10.0.0.1",)), 1: ("n2", 7002, ("10.0.0.2",)), 2: ("n0", 7000, ("10.0.0.0",)),
    }  # fmt: skip


def test_go_waits_for_every_node_and_binds_the_ranks() -> None:
    gang = Gang(nnodes=3)
    for node, nproc in ((1, 3), (0, 1), (2, 2)):
        gang.join(node, nproc=nproc)
    gang.say(0, "path", error=None)
    gang.say(1, "path", error=None)
    assert gang.told("prepare") == []
    gang.say(2, "path", error=None)
    for node in (2, 1):
        gang.say(node, "ready", attempt=0, port=1)
        assert gang.told("go") == []
    gang.say(0, "ready", attempt=0, port=4242)
    assert {node: (m["binding"].rank_offset, m["binding"].nproc, m["binding"].world_size, m["master_port"])
            for node, m in gang.told("go")} == {0: (0, 1, 6, 4242), 1: (1, 3, 6, 4242), 2: (4, 2, 6, 4242)}  # fmt: skip


def test_the_port_is_node_0s() -> None:
    gang = Gang()
    gang.join(0, 1)
    gang.everyone("path", error=None)
    gang.say(0, "ready", attempt=0, port=1000)
    gang.say(1, "ready", attempt=0, port=0)
    assert {message["master_port"] for _, message in gang.told("go")} == {1000}


def test_missing_nodes_are_named_when_the_join_timeout_ends() -> None:
    gang = Gang(nnodes=4, join_timeout=60.0)
    gang.join(0, 2)
    gang.pass_time(59)
    assert gang.leader.phase == "joining"
    gang.pass_time(1)
    assert gang.end["reason"] == "node 1 (plan1), node 3 (plan3) did not join within 60 s"
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "infra")
    assert gang.codes == {0: 1, 2: 1}


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ((0,), "node 1 (n1) did not report on the way to its neighbour"),
        ((0, 1), "node 1 (n1) did not get its launcher"),
    ],
)
def test_a_node_that_gets_stuck_later_is_named_too(paths: tuple[int, ...], words: str) -> None:
    gang = Gang(join_timeout=60.0)
    gang.join(0, 1)
    for node in paths:
        gang.say(node, "path", error=None)
    gang.say(0, "ready", attempt=0, port=1)
    gang.pass_time(61)
    assert words in gang.end["reason"]


def test_a_broken_way_between_two_nodes_ends_the_gang_with_its_sentence() -> None:
    gang = Gang()
    gang.join(0, 1)
    gang.say(1, "path", error="node 1 (n1) can't reach its neighbour n0: 10.0.0.0:7000: refused")
    assert gang.end["reason"] == "node 1 (n1) can't reach its neighbour n0: 10.0.0.0:7000: refused"
    assert gang.told("prepare") == []


def test_trouble_on_a_node_ends_the_gang_with_its_cause() -> None:
    gang = Gang()
    gang.join(0, 1)
    gang.say(1, "trouble", reason="python3 can't import torch", cause="user_error", tail=["ImportError: torch"])
    assert (gang.end["cause"], gang.end["reason"]) == ("user_error", "node 1 (n1): python3 can't import torch")
    assert (gang.end["failed_node"], gang.end["tail"]) == (1, ("ImportError: torch",))


TIMM = {"type": "ModuleNotFoundError", "message": "No module named 'timm.data'", "traceback": ""}
LACKS = {**OWN, "error": TIMM}


def ready_with(gang: Gang, *pythons: str, missing: str = "") -> None:
    gang.join(*range(gang.task.nnodes))
    gang.everyone("path", error=None)
    for node, python in enumerate(pythons):
        gang.say(node, "ready", attempt=0, port=4242, python=python, missing=missing)


def test_a_module_that_every_rank_needs_and_no_node_has_ends_the_gang_before_any_rank() -> None:
    gang = Gang(nnodes=3)
    ready_with(gang, "/usr/bin/python3", "/usr/bin/python3", "/opt/python", missing="torch")
    assert gang.told("go") == []
    assert (gang.end["cause"], gang.end["reason"]) == (
        "user_error",
        "the module torch is missing on all 3 machines (n0, n1, n2); "
        "python there: /usr/bin/python3 (n0, n1); /opt/python (n2)",
    )


def test_nodes_that_can_run_no_rank_end_the_gang_before_any_rank() -> None:
    gang = Gang(nnodes=3)
    gang.join(0, 1, 2)
    gang.everyone("path", error=None)
    for node, unfit in enumerate(("it has no eth9", "", "it has no eth9")):
        gang.say(node, "ready", attempt=0, port=4242, unfit=unfit)
    assert gang.told("go") == []
    assert (gang.end["cause"], gang.end["reason"]) == ("user_error", "node 0 (n0), node 2 (n2): it has no eth9")


def test_a_module_that_a_rank_lacks_is_looked_for_on_every_node() -> None:
    gang = Gang(nnodes=3)
    ready_with(gang, *["/usr/bin/python3"] * 3)
    gang.exit(2, LACKS)
    assert [node for node, _ in gang.told("find_module")] == [0, 1, 2]
    gang.say(0, "found", module="timm", is_there=False)
    gang.exit(4, LACKS)  # this node's answer is late
    gang.idle()
    (failed,) = gang.recorded("attempt_failed")
    assert failed["culprit"]["lacks"] == (
        "the module timm is missing on all 3 machines (n0, n1, n2); python there: /usr/bin/python3"
    )


def test_a_module_that_one_node_lacks_is_that_nodes_alone() -> None:
    gang = Gang(nnodes=3)
    ready_with(gang, *["/usr/bin/python3"] * 3)
    gang.exit(2, LACKS)
    for node in (0, 2):
        gang.say(node, "found", module="timm", is_there=True)
    gang.idle()
    (failed,) = gang.recorded("attempt_failed")
    assert failed["culprit"]["lacks"] == (
        "the module timm is missing on node 1 (n1), and not on the others; python there: /usr/bin/python3"
    )


def test_all_ranks_ended_well() -> None:
    gang = Gang()
    gang.run()
    for rank in range(4):
        gang.exit(rank, FINE)
    gang.say(0, "idle", attempt=0)
    assert gang.recorded("gang_ended") == []
    gang.say(1, "idle", attempt=0)
    assert gang.end["outcome"] == "succeeded"
    assert gang.codes == {0: 0, 1: 0}


# -- blame


def test_the_first_real_failure_stops_the_others() -> None:
    gang = Gang()
    gang.run()
    gang.exit(2, OWN)
    assert [node for node, _ in gang.told("stop")] == [0, 1]
    gang.exit(3, {**KILLED, "sent": "SIGKILL"})  # by our own stop
    gang.exit(0, {**OWN, "error": {"type": "SystemExit", "message": ""}, "sent": "SIGTERM"})
    gang.idle()
    (failed,) = gang.recorded("attempt_failed")
    assert (failed["culprit"]["rank"], failed["culprit"]["node"], failed["culprit"]["host"]) == (2, 1, "n1")


@given(st.permutations([0, 1, 2, 3]), st.sampled_from([OWN, KILLED]), st.floats(0, SETTLE_SECONDS - 0.1))
def test_the_culprit_is_blamed_in_whatever_order_the_words_arrive(order: list[int], how: dict, late: float) -> None:
    gang = Gang(nnodes=2, retry={})
    gang.run()
    for rank in order:
        if rank == 1:
            gang.pass_time(late)
        gang.exit(rank, how if rank == 1 else VICTIM)
    gang.idle()
    assert gang.recorded("attempt_failed")[0]["culprit"]["rank"] == 1


SOCKET = {**OWN, "error": {"type": "ConnectionResetError", "message": "[Errno 104] Connection reset by peer"}}
LAUNCHER_LOST = {**KILLED, "error": {"type": "LauncherLost", "message": "the launcher of this node was killed"}}
ENDS = st.sampled_from([OWN, KILLED, VICTIM, SOCKET, LAUNCHER_LOST, FINE, {"code": 93}, {"code": 95}, {"code": 17}])
ENDS_OF_NODES = st.lists(st.tuples(ENDS, ENDS, st.booleans()), min_size=3, max_size=3)
AFTER = st.lists(st.sampled_from([0.0, 0.1, 0.2]), min_size=6, max_size=6)


def ended(ends: list[tuple[Any, Any, bool]], after: list[float], order: list[int]) -> list[dict[str, Any]]:
    """What a leader decides on these ends of three nodes, the last of each the loss of its agent or its own last word.
    Each node's reports arrive in its own order, and `order` says whose is next.
    """
    gang = Gang(nnodes=3, retry={"infra": 1, "user_error": 1})
    gang.run()
    said = dict.fromkeys(range(3), 0)
    for node in order:
        number, rank = said[node], 2 * node + said[node]
        said[node] += 1
        if number < 2:
            gang.exit(rank, {**ends[node][number], "after": after[rank], "left": 1 - number})
        elif node and ends[node][2]:
            gang.leader.left(node, "its agent closed the connection", gang.now)
        else:
            gang.say(node, "idle", attempt=0)
        gang.pass_time(0.15)
    return [event for event in gang.events if event["kind"] in ("attempt_failed", "restart", "gang_ended")]


@settings(max_examples=300)
@given(ENDS_OF_NODES, AFTER, st.permutations([0, 1, 2] * 3), st.permutations([0, 1, 2] * 3))
def test_the_leader_decides_the_same_in_whatever_order_ends_and_losses_arrive(
    ends: list[Any], after: list[float], one: list[int], other: list[int]
) -> None:
    decided = ended(ends, after, one)
    assert decided
    assert decided == ended(ends, after, other)


def test_a_culprit_that_speaks_after_the_settle_time_is_still_blamed() -> None:
    """It takes its time to die: its words come after the others have been stopped."""
    gang = Gang(retry={})
    gang.run()
    gang.exit(0, VICTIM)
    gang.pass_time(SETTLE_SECONDS + 0.5)
    gang.exit(2, OWN)
    gang.idle()
    assert gang.recorded("attempt_failed")[0]["culprit"]["rank"] == 2


def test_checkpoints_that_a_spare_may_have_to_read_are_hashed_with_sha256() -> None:
    gang = Gang(has_spares=True)
    gang.join(0, 1)
    gang.everyone("path", error=None)
    gang.everyone("ready", attempt=0, port=4242, checksums=["sha256", "blake3"])
    assert [message["checksum"] for _, message in gang.told("go")] == ["sha256"] * 2


@pytest.mark.parametrize(("sent", "culprit"), [("", 2), ("SIGTERM", 2), ("SIGKILL", 0)])
def test_a_kill_that_is_heard_of_late_is_told_apart_from_our_own(sent: str, culprit: int) -> None:
    gang = Gang(retry={})
    gang.run()
    gang.exit(0, VICTIM)
    gang.pass_time(SETTLE_SECONDS + 0.5)
    gang.exit(2, {**KILLED, "sent": sent})
    gang.idle()
    assert gang.recorded("attempt_failed")[0]["culprit"]["rank"] == culprit


def test_a_rank_that_kills_itself_when_it_is_stopped_is_not_blamed_for_the_error_of_another() -> None:
    gang = Gang(retry={})
    gang.run()
    gang.exit(3, OWN)
    gang.exit(0, {**KILLED, "sent": "SIGTERM"})
    gang.idle()
    (failed,) = gang.recorded("attempt_failed")
    assert (failed["culprit"]["rank"], failed["cause"]) == (3, "user_error")


def test_a_victim_alone_stops_the_gang_after_the_settle_time() -> None:
    gang = Gang(retry={})
    gang.run()
    gang.exit(3, VICTIM)
    gang.pass_time(SETTLE_SECONDS - 0.5)
    assert gang.told("stop") == []
    gang.pass_time(1)
    assert len(gang.told("stop")) == 2
    gang.idle()
    assert gang.recorded("attempt_failed")[0]["culprit"]["rank"] == 3


LEAVER_FIRST, LEAVER_SECOND = [(3, FINE), (0, VICTIM)], [(0, VICTIM), (3, FINE)]


@pytest.mark.parametrize("order", [LEAVER_FIRST, LEAVER_SECOND])
def test_a_rank_that_leaves_with_0_while_others_wait_for_it_is_to_blame(order: list[tuple[int, Any]]) -> None:
    """Its words may come after those of its victims, from another node."""
    gang = Gang(retry={"user_error": 0, "infra": 3})
    gang.run()
    for rank, how in order:
        gang.exit(rank, how)
    gang.pass_time(SETTLE_SECONDS + 1)
    for rank in (1, 2):
        gang.exit(rank, {**KILLED, "sent": "SIGKILL"})
    gang.idle()
    (failed,) = gang.recorded("attempt_failed")
    culprit = failed["culprit"]
    assert (culprit["rank"], culprit["node"], culprit["code"], failed["cause"]) == (3, 1, 0, "user_error")
    assert culprit["left_early"] == by_name(LeftEarly((3,), (0,), f"RuntimeError: {GLOO['message']}"))
    assert (gang.end["cause"], gang.recorded("restart")) == ("user_error", [])


@pytest.mark.parametrize(
    ("leaver", "failure", "blamed"),
    [
        ({}, {**VICTIM, "rank": 0}, 1),
        ({}, {**HUNG, "rank": 0, "hang": True, "in_collective": True}, 1),
        ({}, {**HUNG, "rank": 0, "hang": True, "in_collective": False}, 0),  # it waits for nobody
        ({}, {**OWN, "rank": 0}, 0),
        ({}, {**KILLED, "rank": 0}, 0),
        ({"sent": "SIGTERM"}, {**VICTIM, "rank": 0}, 0),  # orch had asked it to
        ({"code": 95}, {**VICTIM, "rank": 0}, 0),
    ],
)
def test_whom_a_rank_that_ended_with_0_stands_for(leaver: dict, failure: dict, blamed: int) -> None:
    exits = [{**FINE, "rank": 1, **leaver}, failure]
    for order in (exits, exits[::-1]):
        culprit = culprit_of([read(Culprit, end) for end in order])
        assert culprit is not None
        assert culprit.rank == blamed


def test_a_rank_that_left_is_not_blamed_for_a_lost_node() -> None:
    gang = Gang(nnodes=3)
    gang.run()
    gang.exit(0, {**FINE, "left": 1})
    gang.exit(2, VICTIM)
    gang.leader.left(2, "its agent closed the connection", gang.now)
    gang.exit(1, {**KILLED, "left": 0, "sent": "SIGKILL"})
    gang.exit(3, {**KILLED, "left": 0, "sent": "SIGKILL"})
    for node in (0, 1):
        gang.say(node, "idle", attempt=0)
    assert (gang.end["cause"], gang.end["reason"]) == ("infra", "node 2 (n2) was lost: its agent closed the connection")


def test_ranks_that_we_killed_are_not_blamed_for_it() -> None:
    exits = [{**VICTIM, "rank": 0}, {**KILLED, "rank": 1, "sent": "SIGKILL"}]
    culprit = culprit_of([read(Culprit, end) for end in exits])
    assert culprit is not None
    assert culprit.rank == 0


@pytest.mark.parametrize(
    ("others", "at_exit", "blamed", "cause"),
    [
        ([FINE, {**KILLED, "signal": "SIGTERM", "finished": True, "sent": "SIGTERM"}], True, 1, "no_retry"),
        ([FINE, {**KILLED, "sent": "SIGKILL"}], False, 1, "infra"),  # it may not have saved all
        ([FINE, OWN], False, 3, "user_error"),
        ([FINE, VICTIM], False, 1, "infra"),
    ],
)
def test_a_death_after_all_programs_had_ended_is_not_repaired_by_another_start(
    others: list[dict], at_exit: bool, blamed: int, cause: str
) -> None:
    aborted = {"rank": 1, "signal": "SIGABRT", "finished": True}
    ends = [aborted, *({**each, "rank": rank} for rank, each in enumerate(others, 2))]
    culprit = culprit_of([read(Culprit, end) for end in ends])
    assert culprit is not None
    assert (culprit.at_exit, culprit.rank, cause_of(culprit)) == (at_exit, blamed, cause)


def test_a_rank_that_dies_after_its_program_had_ended_stops_no_other() -> None:
    gang = Gang(retry={"infra": 3})
    gang.run()
    gang.exit(0, {"signal": "SIGABRT", "finished": True, "left": 1})
    assert not gang.told("stop")
    for rank, left in ((1, 0), (2, 1), (3, 0)):
        gang.exit(rank, {**FINE, "left": left})
    gang.idle()
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "no_retry")
    assert "rank 0" in gang.end["reason"] or not gang.end["reason"]


def test_nobody_is_blamed_for_ranks_that_ended_well_or_ask_to_be_started_again() -> None:
    assert culprit_of([Culprit(0, 0), Culprit(1, 95)]) is None


@pytest.mark.parametrize(
    ("report", "cause"),
    [
        (OWN, "user_error"),
        (KILLED, "infra"),
        ({"code": 17, "error": None}, "user_error"),
        ({"code": 93, "error": OWN["error"]}, "no_retry"),
        ({"signal": "SIGABRT", "error": OWN["error"]}, "user_error"),  # died while tearing down after an exception
        ({"signal": "SIGKILL", "error": {"type": "LauncherLost"}}, "infra"),
        (WORKER_KILLED, "user_error"),
        ({**WORKER_KILLED, "oom_kills": 1}, "infra"),  # the kernel killed a DataLoader's worker
        (VICTIM, "infra"),  # blamed only where nobody else failed: then it was the network
    ],
)
def test_which_budget_a_failure_draws_on(report: dict[str, Any], cause: str) -> None:
    assert cause_of(read(Culprit, {"rank": 0, **report})) == cause


# -- restarts


def test_an_infrastructure_failure_is_started_again_until_its_budget_is_used() -> None:
    gang = Gang(retry={"infra": 2})
    gang.run()
    for attempt in range(2):
        assert gang.leader.attempt == attempt
        gang.step = attempt  # each attempt leaves a new checkpoint
        gang.fail(KILLED)
        assert [m["attempt"] for _, m in gang.told("prepare")][-2:] == [attempt + 1] * 2
        gang.ready()
    gang.step = 9
    gang.fail(KILLED)
    assert gang.end == by_name(GangEnded(2, "failed", "infra", "", step=9))
    assert [event["from_step"] for event in gang.recorded("restart")] == [0, 1]


ECC = {**OWN, "error": {"type": "torch.AcceleratorError", "message": "CUDA error: uncorrectable ECC error encountered"}}


def test_a_broken_gpu_is_started_again_and_elsewhere_where_there_is_a_spare() -> None:
    gang = Gang()
    gang.run()
    gang.fail(ECC)
    assert [event["cause"] for event in gang.recorded("restart")] == ["infra"]
    gang = Gang(has_spares=True)
    gang.run()
    gang.fail(ECC)
    assert (gang.recorded("restart"), gang.end["outcome"], gang.end["cause"]) == ([], "failed", "infra")
    gang = Gang(has_spares=True)
    gang.run()
    gang.fail(KILLED)
    assert len(gang.recorded("restart")) == 1


def test_budgets_are_counted_by_cause() -> None:
    gang = Gang(retry={"infra": 1, "user_error": 1})
    gang.run()
    for how in (KILLED, OWN):
        gang.fail(how)
        gang.ready()
    gang.fail(OWN)
    assert gang.end["cause"] == "user_error"


def test_an_error_of_the_program_is_not_started_again_by_default() -> None:
    gang = Gang()
    gang.run()
    gang.fail(OWN)
    assert gang.recorded("restart") == []
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "user_error")


def test_exit_93_is_never_started_again() -> None:
    gang = Gang(retry={"user_error": None, "infra": None, "no_retry": 5})
    gang.run()
    gang.fail({"code": 93, "signal": None})
    assert (gang.recorded("restart"), gang.end["cause"]) == ([], "no_retry")


def test_an_unlimited_budget_lasts_while_there_is_progress() -> None:
    gang = Gang(retry={"infra": None})
    gang.run()
    for attempt in range(50):
        gang.step = attempt
        gang.fail(KILLED)
        gang.ready()
    assert gang.recorded("gang_ended") == []


def test_attempts_without_a_new_checkpoint_end_an_unlimited_budget() -> None:
    gang = Gang(retry={"infra": None}, step=5)
    gang.run()
    for _ in range(WITHOUT_PROGRESS - 1):
        gang.fail(KILLED)
        gang.ready()
    gang.fail(KILLED)
    assert (gang.end["cause"], gang.end["reason"]) == (
        "no_progress",
        "3 attempts in a row ended without a new checkpoint",
    )


def test_progress_starts_the_count_anew() -> None:
    gang = Gang(retry={"infra": None}, step=5)
    gang.run()
    for step in (5, 5, 6, 6, 6):
        gang.step = step
        gang.fail(KILLED)
        gang.ready()
    gang.fail(KILLED)
    assert gang.end["cause"] == "no_progress"
    assert gang.end["attempt"] == 5


def test_an_attempt_begins_when_all_nodes_have_what_it_goes_on_from() -> None:
    gang = Gang(nnodes=3)
    gang.join(0, 1, 2)
    gang.everyone("path", error=None)
    a, b, older = ["code/a", "5"], ["code/b", "10"], ["code/b", "5"]
    for node, found in enumerate(([b, a], [older, a], [a, b])):
        gang.say(node, "ready", attempt=0, port=4242, checkpoints=found)
    ((node, asked),) = gang.told("hand_over")
    assert (node, asked["checkpoint"], asked["to"]) == (0, "code/b", ((1, ("10.0.0.1",), 7001),))
    gang.pass_time(400)  # longer than a launcher may take
    assert gang.told("go") == []
    gang.say(0, "handed_over", attempt=0, given=[1], failed=[])
    assert [message["resume_from"] for _, message in gang.told("go")] == ["code/b"] * 3
    assert gang.recorded("handed_over")[0]["to"] == (1,)


@pytest.mark.parametrize(
    ("of_node_1", "expected"), [(["sha256", "blake3"], "blake3"), (["sha256"], "sha256"), (None, "sha256")]
)
def test_checkpoints_are_hashed_with_what_all_nodes_have(of_node_1: list[str] | None, expected: str) -> None:
    gang = Gang()
    gang.join(0, 1)
    gang.everyone("path", error=None)
    gang.say(0, "ready", attempt=0, port=4242, checksums=["sha256", "blake3"])
    gang.say(1, "ready", attempt=0, port=0, **({} if of_node_1 is None else {"checksums": of_node_1}))
    assert [message["checksum"] for _, message in gang.told("go")] == [expected] * 2


def test_a_node_that_can_not_be_given_it_ends_the_gang() -> None:
    gang = Gang()
    gang.join(0, 1)
    gang.everyone("path", error=None)
    for node in range(2):
        gang.say(node, "ready", attempt=0, port=4242, checkpoints=[] if node else [["code/b", "5"]])
    gang.say(0, "handed_over", attempt=0, given=[], failed=[[1, "can't be given code/b: No space left on device"]])
    assert (gang.end["cause"], gang.end["reason"]) == (
        "infra", "node 1 (n1) can't be given code/b: No space left on device",
    )  # fmt: skip
    assert gang.told("go") == []


def test_words_of_an_old_attempt_are_not_heard() -> None:
    gang = Gang(retry={"infra": 1})
    gang.run()
    gang.fail(KILLED)
    gang.everyone("ready", attempt=0, port=1)
    assert gang.leader.phase == "preparing"
    gang.ready()
    gang.say(0, "exit", rank=0, attempt=0, **OWN)
    gang.everyone("idle", attempt=0)
    assert gang.leader.phase == "running"


# -- lost nodes


def test_a_silence_shorter_than_the_limit_costs_nothing() -> None:
    gang = Gang()
    gang.run()
    back = gang.now + 9.5
    while gang.now < back:
        gang.now += 0.5
        gang.say(0, "heartbeat")
        gang.leader.tick(gang.now)
    gang.say(1, "heartbeat")
    gang.pass_time(30)
    assert (gang.leader.phase, gang.leader.presence.lost) == ("running", {})


@pytest.mark.parametrize("first", ["a tick", "a heartbeat"])
def test_a_leader_that_did_not_run_itself_holds_its_sleep_against_nobody(first: str) -> None:
    gang = Gang(time_limit=1000)
    gang.run()
    gang.pass_time(5)
    gang.now += 3600
    if first == "a heartbeat":
        gang.say(0, "heartbeat")
    gang.leader.tick(gang.now)
    gang.pass_time(3)
    assert gang.leader.phase == "running"
    assert gang.leader.presence.lost == {}
    assert gang.recorded("slept") == [by_name(Slept(3600.0))]
    silent = gang.now
    while gang.leader.phase == "running":
        gang.now += 0.5
        gang.say(0, "heartbeat")
        gang.leader.tick(gang.now)
    assert gang.now - silent < gang.task.link_timeout + 1  # who is silent after it is lost as ever
    assert list(gang.leader.presence.lost) == [1]


@pytest.mark.parametrize("first", ["a tick", "the end of the connection"])
def test_the_node_that_left_a_frozen_leader_is_not_blamed(first: str) -> None:
    gang = Gang()
    gang.run()
    gang.pass_time(5)
    gang.now += 40
    if first == "a tick":
        gang.leader.tick(gang.now)
    gang.leader.left(1, "its agent closed the connection", gang.now)
    gang.say(0, "idle", attempt=0)
    assert gang.end["reason"] == "node 0 (n0) did not run for 40 s (stopped, or suspended), and node 1 (n1) left it"
    (lost,) = gang.recorded("lost_node")
    assert lost["slept"] == 40.0


def test_a_short_sleep_after_a_long_one_does_not_hide_it() -> None:
    gang = Gang()
    gang.run()
    for asleep in (40, 3):
        gang.now += asleep
        gang.leader.tick(gang.now)
    gang.leader.left(1, "its agent closed the connection", gang.now)
    gang.now += 2.5
    gang.leader.tick(gang.now)
    gang.say(0, "idle", attempt=0)
    assert gang.end["reason"].startswith("node 0 (n0) did not run for 40 s")


@pytest.mark.parametrize(("asleep", "later"), [(8.0, 0.0), (40.0, 30.0)])
def test_a_node_that_is_lost_after_a_short_sleep_or_long_after_it_is_blamed(asleep: float, later: float) -> None:
    gang = Gang()
    gang.run()
    gang.now += asleep
    gang.leader.tick(gang.now)
    gang.pass_time(later)
    gang.leader.left(1, "its agent closed the connection", gang.now)
    (lost,) = gang.recorded("lost_node")
    assert lost["slept"] is None
    assert (
        gang.leader.presence.who_was_lost(gang.leader.roster.names)
        == "node 1 (n1) was lost: its agent closed the connection"
    )


def test_strangers_are_named_beside_the_nodes_that_are_missing() -> None:
    gang = Gang(join_timeout=60.0)
    gang.strangers = "70 connections from 10.0.0.9 could not prove to belong to this run"
    gang.join(0)
    gang.pass_time(60)
    assert gang.end["reason"] == f"node 1 (plan1) did not join within 60 s; {gang.strangers}"


def go_by(reached: dict[int, str]) -> tuple[str, list[str]]:
    """(where the store listens, each MASTER_ADDR) where the nodes have reached node 0 by these addresses."""
    gang = Gang(nnodes=len(reached) + 1)
    gang.join(0)
    for node, addr in reached.items():
        gang.leader.joined(Hello(node, f"n{node}", 2, (f"10.0.0.{node}",), 7000), gang.now, addr)
    gang.everyone("path", error=None)
    gang.everyone("ready", attempt=0, port=1000)
    (store,) = {message["store_addr"] for _, message in gang.told("prepare")}
    return store, [message["master_addr"] for _, message in sorted(gang.told("go"), key=lambda each: each[0])]


def test_the_ranks_dial_the_address_at_which_their_node_has_reached_node_0() -> None:
    assert go_by({1: "10.0.0.1", 2: "10.0.0.1"}) == ("10.0.0.1", ["10.0.0.1"] * 3)
    assert go_by({1: "10.0.0.1", 2: "10.1.0.1"}) == ("", ["10.0.0.1", "10.0.0.1", "10.1.0.1"])  # two networks


def test_one_node_alone_keeps_to_itself() -> None:
    assert go_by({}) == ("127.0.0.1", ["127.0.0.1"])


def test_a_leader_that_slept_while_nodes_joined_waits_for_them_as_long_as_ever() -> None:
    gang = Gang(join_timeout=300.0)
    gang.join(0)
    gang.now += 400
    gang.leader.tick(gang.now)
    assert gang.leader.phase == "joining"
    gang.pass_time(301)
    assert gang.end["reason"] == "node 1 (plan1) did not join within 300 s"


@pytest.mark.parametrize(("values", "seconds"), [({}, 10), ({"link_timeout": 20.0}, 20)])
def test_a_silent_node_is_lost_and_named(values: dict[str, float], seconds: int) -> None:
    gang = Gang(**values)
    gang.run()
    end = gang.now + gang.task.link_timeout + 1
    while gang.now < end:
        gang.now += 0.5
        gang.say(0, "heartbeat")
        gang.leader.tick(gang.now)
    assert [node for node, _ in gang.told("stop")] == [0]
    gang.say(0, "idle", attempt=0)
    assert gang.end["reason"] == f"node 1 (n1) was lost: no heartbeat for {seconds} s"
    assert gang.codes == {0: 1}


def test_a_node_whose_connection_closes_is_lost_even_where_the_others_complain_first() -> None:
    gang = Gang()
    gang.run()
    gang.exit(0, VICTIM)
    gang.leader.left(1, "its agent closed the connection", gang.now)
    gang.exit(1, VICTIM)
    gang.say(0, "idle", attempt=0)
    assert (gang.end["cause"], gang.end["reason"]) == ("infra", "node 1 (n1) was lost: its agent closed the connection")
    assert gang.recorded("restart") == []  # there is nobody to start it with


def test_a_node_that_is_lost_after_its_last_rank_ended_well_takes_nothing_back() -> None:
    gang = Gang()
    gang.run()
    gang.exit(2, {**FINE, "left": 1})
    gang.exit(3, {**FINE, "left": 0})
    gang.leader.left(1, "no heartbeat for 10 s", gang.now)
    assert gang.told("stop") == []  # rank 0 may be saving
    for rank, left in ((1, 1), (0, 0)):
        gang.exit(rank, {**FINE, "left": left})
    gang.say(0, "idle", attempt=0)
    assert gang.end["outcome"] == "succeeded"
    assert gang.codes == {0: 0}


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_signal_after_the_last_exit_takes_nothing_back(cancelled: bool) -> None:
    gang = Gang(time_limit=60)
    gang.run()
    for rank in range(4):
        gang.exit(rank, {**FINE, "left": 1 - rank % 2})
    gang.say(1, "signal", name="SIGTERM", cancelled=cancelled)
    gang.pass_time(100.0)
    gang.idle()
    assert (gang.end["outcome"], gang.recorded("restart")) == ("succeeded", [])
    assert gang.codes == {0: 0, 1: 0}


def test_ranks_that_exit_with_0_because_they_were_stopped_have_not_succeeded() -> None:
    gang = Gang()
    gang.run()
    gang.say(1, "signal", name="SIGTERM", cancelled=False)
    for rank in range(4):
        gang.exit(rank, {**FINE, "left": 1 - rank % 2, "sent": "SIGTERM"})
    gang.idle()
    assert gang.end["outcome"] == "preempted"


@pytest.mark.parametrize("last", [{**KILLED, "left": 0}, {**FINE, "left": 1}], ids=["killed", "one is left"])
def test_a_node_that_is_lost_before_that_is_a_lost_node(last: dict[str, Any]) -> None:
    gang = Gang()
    gang.run()
    gang.exit(2, last)
    gang.leader.left(1, "no heartbeat for 10 s", gang.now)
    for rank, left in ((1, 1), (0, 0)):
        gang.exit(rank, {**FINE, "left": left})
    gang.say(0, "idle", attempt=0)
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "infra")


def test_a_rank_that_fails_after_another_node_was_lost_that_had_ended_well_is_to_blame() -> None:
    gang = Gang()
    gang.run()
    for rank, left in ((2, 1), (3, 0)):
        gang.exit(rank, {**FINE, "left": left})
    gang.leader.left(1, "no heartbeat for 10 s", gang.now)
    gang.exit(0, {**OWN, "left": 1})
    gang.exit(1, {**FINE, "left": 0})
    gang.say(0, "idle", attempt=0)
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "user_error")


def test_the_term_that_srun_sends_for_a_lost_node_does_not_take_the_blame() -> None:
    gang = Gang()
    gang.run()
    gang.leader.left(1, "its agent closed the connection", gang.now)
    gang.say(0, "signal", name="SIGTERM", cancelled=False)
    gang.say(0, "idle", attempt=0)
    assert (gang.end["cause"], gang.end["reason"]) == ("infra", "node 1 (n1) was lost: its agent closed the connection")


def test_a_cancel_after_the_loss_of_a_node_is_one() -> None:
    gang = Gang()
    gang.run()
    gang.leader.left(1, "its agent closed the connection", gang.now)
    gang.say(0, "signal", name="SIGTERM", cancelled=True)
    gang.say(0, "idle", attempt=0)
    assert gang.end["outcome"] == "cancelled"


def test_a_node_lost_before_the_ranks_run_ends_the_gang_at_once() -> None:
    gang = Gang(nnodes=3)
    gang.join(0, 1)
    gang.leader.left(1, "its agent closed the connection", gang.now)
    assert gang.end["reason"].startswith("node 1 (n1) was lost")
    assert gang.codes == {0: 1}


# -- signals


@pytest.mark.parametrize(("cancelled", "outcome", "code"), [(True, "cancelled", 1), (False, "preempted", 95)])
def test_a_signal_stops_the_ranks_with_their_grace(cancelled: bool, outcome: str, code: int) -> None:
    gang = Gang(grace=30.0)
    gang.run()
    gang.everyone("signal", name="SIGTERM", cancelled=cancelled)
    assert [(node, message["grace"]) for node, message in gang.told("stop")] == [(0, 30.0), (1, 30.0)]
    for rank in range(4):
        gang.exit(rank, {"code": 95, "signal": None})
    gang.idle()
    assert gang.end["outcome"] == outcome
    assert gang.codes == {0: code, 1: code}
    assert gang.recorded("restart") == []


def test_a_run_counts_as_idle_once_all_its_nodes_are_and_only_while_they_are() -> None:
    gang = Gang(idle={"after": 60, "do": "report"})
    gang.run()
    gang.say(0, "unused", attempt=0, seconds=60, use="GPU 3 %")
    assert gang.recorded("unused") == []
    gang.say(1, "unused", attempt=0, seconds=80, use="CPU 1 %")
    assert gang.recorded("unused") == [by_name(Unused(0, 60, "GPU 3 %, CPU 1 %"))]
    gang.say(1, "used", attempt=0, seconds=0, use="GPU 90 %")
    gang.say(0, "used", attempt=0, seconds=0, use="GPU 90 %")
    assert gang.recorded("used") == [by_name(Used(0, 1))]
    assert gang.told("stop") == []


def test_an_idle_run_is_ended_where_the_job_says_so_and_not_started_again() -> None:
    gang = Gang(idle={"after": 60, "do": "cancel"}, grace=30.0)
    gang.run()
    gang.say(0, "unused", attempt=0, seconds=1800, use="GPU 3 %")
    gang.say(1, "unused", attempt=1, seconds=1800, use="GPU 3 %")  # of another attempt
    assert gang.told("stop") == []
    gang.say(1, "unused", attempt=0, seconds=1900, use="GPU 3 %")
    assert [(node, message["grace"]) for node, message in gang.told("stop")] == [(0, 30.0), (1, 30.0)]
    for rank in range(4):
        gang.exit(rank, {"code": 95, "signal": None})
    gang.idle()
    assert gang.end["outcome"] == "cancelled"
    assert gang.end["reason"] == "it was idle (GPU 3 %) on all nodes for 30 min, and the job says idle.do: cancel"
    assert gang.recorded("restart") == []
    assert gang.codes == {0: 1, 1: 1}


def test_a_cancel_wins_over_a_preemption_and_an_impatient_one_over_both() -> None:
    gang = Gang(grace=30.0)
    gang.run()
    gang.say(1, "signal", name="SIGTERM", cancelled=False)
    gang.say(1, "signal", name="SIGTERM", cancelled=True)
    gang.say(1, "signal", name="SIGTERM", cancelled=False)
    gang.say(0, "signal", name="SIGTERM", cancelled=True, now=True)
    assert [message["grace"] for node, message in gang.told("stop") if node == 0] == [30.0, 30.0, 0.0]
    gang.idle()
    assert gang.end["outcome"] == "cancelled"


def test_a_cancel_during_a_failure_forbids_the_restart() -> None:
    gang = Gang(retry={"infra": 3})
    gang.run()
    gang.exit(2, KILLED)
    gang.say(0, "signal", name="SIGTERM", cancelled=True)
    gang.idle()
    assert gang.end["outcome"] == "cancelled"


@pytest.mark.parametrize("phase", ["joining", "checking", "preparing"])
@pytest.mark.parametrize(("cancelled", "outcome"), [(True, "cancelled"), (False, "preempted")])
def test_a_signal_before_the_ranks_start_ends_the_gang_at_once(phase: str, cancelled: bool, outcome: str) -> None:
    gang = Gang()
    gang.join(*((0,) if phase == "joining" else (0, 1)))
    if phase == "preparing":
        gang.everyone("path", error=None)
    assert gang.leader.phase == phase
    gang.say(0, "signal", name="SIGTERM", cancelled=cancelled)
    assert gang.end["outcome"] == outcome
    assert gang.end["reason"] == f"{outcome} before the ranks were started"
    assert gang.told("go") == []


def test_the_time_limit_stops_the_ranks_and_asks_to_be_started_again() -> None:
    gang = Gang(time_limit=60, grace=20.0)
    gang.run()
    gang.pass_time(59)
    assert gang.told("stop") == []
    gang.pass_time(1)
    assert [message["grace"] for _, message in gang.told("stop")] == [20.0, 20.0]
    gang.idle()
    assert gang.end["outcome"] == "timeout"
    assert gang.codes == {0: 95, 1: 95}


def test_ranks_that_stop_by_themselves_at_a_step_boundary_ask_to_be_started_again() -> None:
    gang = Gang()
    gang.run()
    for rank in range(4):
        gang.exit(rank, {"code": 95, "signal": None})
    gang.idle()
    assert (gang.end["outcome"], gang.codes) == ("preempted", {0: 95, 1: 95})


def test_who_joins_after_the_end_is_told() -> None:
    gang = Gang(nnodes=3)
    gang.join(0)
    gang.say(0, "trouble", reason="no disk", cause="infra")
    gang.join(1)
    assert gang.codes == {0: 1, 1: 1}


# -- whatever happens


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_random_walk_always_ends_with_at_most_one_bye_a_node(seed: int, nnodes: int) -> None:
    chance = random.Random(seed)
    gang = Gang(nnodes=nnodes, retry={"infra": None, "user_error": 1}, time_limit=chance.choice([None, 30]))
    outside, alive = set(range(nnodes)), set[int]()
    ready: dict[int, set[int]] = {}

    def answer(node: int, message: dict[str, Any]) -> None:
        """What a node does when it is told something; it may also do nothing, or answer late."""
        attempt = message.get("attempt", 0)
        if message["kind"] == "check":
            gang.say(node, "path", error=chance.choice([None] * 20 + ["refused"]))
        elif message["kind"] == "prepare":
            ready.setdefault(attempt, set()).add(node)
            gang.say(node, "ready", attempt=attempt, port=node + 1)
        elif message["kind"] == "go":
            assert ready[attempt] == set(range(nnodes)), "go before all are ready"
            how = chance.choice([FINE, FINE, OWN, KILLED, VICTIM, {"code": 95}])
            gang.say(node, "exit", rank=2 * node, attempt=attempt, **how)
            if how in (FINE, {"code": 95}):
                gang.say(node, "idle", attempt=attempt)
        elif message["kind"] == "stop":
            gang.say(node, "idle", attempt=attempt)

    read = 0
    for _ in range(2_000):
        gang.now += chance.choice([0.0, 0.1, 1.0])
        what = chance.random()
        if what < 0.002 and alive:
            gang.leader.left(alive.pop(), "gone", gang.now)
        elif what < 0.3 and outside:
            node = outside.pop()
            alive.add(node)
            gang.join(node)
        elif what > 0.997 and alive:
            gang.say(chance.choice(sorted(alive)), "signal", name="SIGTERM", cancelled=chance.random() < 0.5)
        elif read < len(gang.sent) and what < 0.9:
            node, message = gang.sent[read]
            read += 1
            if node in alive:
                answer(node, message)
        for node in alive:
            gang.say(node, "heartbeat")
        gang.leader.tick(gang.now)
        if gang.leader.phase == "ended" and not outside:
            break
    else:
        pytest.fail(f"still {gang.leader.phase}: {gang.events[-3:]}")
    told = [node for node, _ in gang.told("bye")]
    assert len(told) == len(set(told))
    assert set(told) == set(gang.leader.roster.hellos) - set(gang.leader.presence.lost)
    assert len(gang.recorded("gang_ended")) == 1
    assert [event["attempt"] for event in gang.recorded("go")] == list(range(len(gang.recorded("go"))))


def test_nodes_that_are_silent_from_one_moment_on_are_named_together_before_the_ranks_start() -> None:
    gang = Gang(nnodes=8)
    gang.join(*range(8))
    for node in range(8):
        gang.now += 0.1  # no two are heard at the same moment
        gang.say(node, "heartbeat")
    silent_from = gang.now
    while gang.leader.phase != "ended" and gang.now < silent_from + 20:
        gang.now += 0.25
        for node in (0, 6, 7):
            gang.say(node, "heartbeat")
        gang.leader.tick(gang.now)
    assert gang.now <= silent_from + 10.5
    assert [event["lost"] for event in gang.recorded("lost_node")] == [1, 2, 3, 4, 5]
    assert gang.end["reason"] == "nodes 1-5 (n[1-5]) were lost: no heartbeat for 10 s"


def test_ranks_do_not_start_without_a_node_that_is_lost_while_others_are_doubtful() -> None:
    gang = Gang(nnodes=4)
    gang.join(*range(4))
    gang.everyone("path", error=None)
    for node in range(4):
        gang.say(node, "ready", attempt=0, port=4242) if node != 1 else None
    for _ in range(6):
        gang.now += 1
        for node in (0, 1):
            gang.say(node, "heartbeat")
        gang.leader.tick(gang.now)
    gang.leader.left(3, "gone", gang.now)
    assert gang.leader.phase == "preparing"  # node 2 may be gone as well
    gang.say(1, "ready", attempt=0, port=1)
    assert gang.told("go") == []
    gang.say(2, "heartbeat")
    gang.leader.tick(gang.now)
    assert gang.end["reason"] == "node 3 (n3) was lost: gone"


def test_what_is_said_of_many_lost_nodes_grows_with_their_reasons_alone() -> None:
    gang = Gang(nnodes=300)
    gang.run()
    for node in range(100, 200):
        gang.leader.left(node, "no heartbeat for 10 s", gang.now)
    gang.leader.left(250, "its agent closed the connection", gang.now)
    gang.idle()
    assert gang.end["reason"] == (
        "nodes 100-199 (n[100-199]) were lost: no heartbeat for 10 s; "
        "node 250 (n250) was lost: its agent closed the connection"
    )


# -- ranks that stand still

HANG = {"action": "auto", "train": 60.0, "medians": 10.0, "other": 1800.0}
OF_A_STEP = {"phase": "train", "step": 7, "limit": 60.0, "between_steps": True}
OF_A_SAVE = {"phase": "save", "step": 7, "limit": 1800.0, "between_steps": False}


def stacks(gang: Gang, **where: dict[str, Any]) -> None:
    """Each node's launcher answers with its two ranks' stacks."""
    found = {f"rank{rank}": {"state": "S", "in_collective": True, "where": "line 9"} for rank in range(4)} | where
    for node in range(2):
        ranks = {rank: found[f"rank{rank}"] for rank in (2 * node, 2 * node + 1)}
        gang.say(node, "stacks", attempt=gang.leader.attempt, ranks=ranks)


@pytest.mark.parametrize("ranks", [None, 3, {"x": {}}, {"1": "text"}])
def test_a_hostile_launcher_s_stacks_end_nothing(ranks: Any) -> None:
    gang = Gang(hang=HANG)
    gang.run()
    gang.say(1, "stacks", attempt=gang.leader.attempt, **({} if ranks is None else {"ranks": ranks}), recorders=ranks)
    gang.say(1, "found", attempt=gang.leader.attempt)
    assert gang.leader.current.hang.stacks == {}


def stall(gang: Gang, rank: int, seconds: float, how: dict[str, Any] = OF_A_STEP) -> None:
    full = seconds >= how["limit"]
    gang.say(rank // 2, "stall", attempt=gang.leader.attempt, rank=rank, seconds=seconds, full=full, **how)


def be_patient(gang: Gang, node: int, seconds: float) -> None:
    gang.say(node, "patience", attempt=gang.leader.attempt, seconds=seconds)


def test_no_rank_between_two_steps_is_blamed_while_another_saves_and_a_rank_that_moves_on_never() -> None:
    gang = Gang(hang=HANG)
    gang.run()
    be_patient(gang, 0, 1800.0)  # rank 0 saves, alone
    gang.pass_time(61)
    for rank in (1, 2, 3):
        stall(gang, rank, 60.5)
    gang.pass_time(500)
    be_patient(gang, 0, 0.0)  # it has saved
    gang.pass_time(50)  # the others have as long as a step may take
    for rank in (1, 2, 3):
        gang.say(rank // 2, "moved", attempt=0, rank=rank)
    gang.pass_time(500)
    assert gang.leader.phase == "running"
    assert gang.recorded("stall") == []


def test_a_hang_after_a_long_save_is_found_one_limit_later() -> None:
    gang = Gang(hang=HANG)
    gang.run()
    be_patient(gang, 0, 1800.0)
    gang.pass_time(61)
    stall(gang, 2, 60.5)
    gang.pass_time(200)
    be_patient(gang, 0, 0.0)
    gang.pass_time(59)
    assert gang.recorded("stall") == []
    gang.pass_time(15)
    assert [(event["rank"], event["full"]) for event in gang.recorded("stall")] == [(2, True)]
    assert gang.leader.current.exits[0].rank == 2
    assert len(gang.told("stop")) == 2


@pytest.mark.parametrize("knows_stacks", [True, False])
def test_a_rank_that_hangs_in_its_save_is_blamed_after_the_limit_of_saves(knows_stacks: bool) -> None:
    gang = Gang(hang=HANG)
    gang.run()
    be_patient(gang, 0, 1800.0)
    gang.pass_time(61)
    for rank in (1, 2, 3):
        stall(gang, rank, 60.5)
    gang.pass_time(1740)
    assert gang.leader.phase == "running"
    stall(gang, 0, 1800.5, OF_A_SAVE)
    if knows_stacks:
        stacks(gang, rank0={"state": "D", "in_collective": False, "where": "save"})
    gang.pass_time(15)
    assert [(each.rank, each.error and each.error.type) for each in gang.leader.current.exits] == [(0, "Hang")]
    assert "in save at step 7 for 1800 s (limit 1800 s)" in str(gang.leader.current.exits[0].error)


def test_a_rank_that_hangs_in_a_step_while_another_waits_for_it_in_its_save_is_blamed_in_the_end() -> None:
    gang = Gang(hang=HANG)
    gang.run()
    be_patient(gang, 0, 1800.0)
    gang.pass_time(61)
    stall(gang, 3, 60.5)
    gang.pass_time(1740)
    stall(gang, 0, 1800.5, OF_A_SAVE)
    stacks(gang, rank3={"state": "S", "in_collective": False, "where": "line 4"})
    gang.pass_time(15)
    assert [each.rank for each in gang.leader.current.exits] == [3]


def test_a_node_that_is_through_or_lost_keeps_nobody_from_the_blame() -> None:
    for end in ("through", "lost"):
        gang = Gang(nnodes=3, hang=HANG)
        gang.run()
        be_patient(gang, 2, 1800.0)
        for left in (1, 0):
            gang.say(2, "exit", rank=5 - left, attempt=0, left=left, **FINE)
        if end == "lost":
            gang.leader.left(2, "its agent closed the connection", gang.now)
        gang.pass_time(61)
        stall(gang, 1, 60.5)
        gang.pass_time(15)
        assert [each.rank for each in gang.leader.current.exits if each.hang] == [1], end


def test_a_rank_that_moves_on_before_it_is_blamed_is_not() -> None:
    gang = Gang(hang=HANG)
    gang.run()
    gang.pass_time(61)
    stall(gang, 2, 60.5)
    gang.pass_time(1)
    gang.say(1, "moved", attempt=0, rank=2)
    gang.pass_time(60)
    assert gang.leader.phase == "running"
    assert [(event["kind"], event["rank"]) for event in gang.events if "rank" in event] == [("stall", 2), ("moved", 2)]


def test_ranks_that_wait_for_a_node_without_heartbeats_hang_once_its_longest_limit_has_passed_too() -> None:
    gang = Gang(hang=HANG)
    gang.run()
    gang.say(0, "folder_lost", path="/run", with_heartbeats=True)
    gang.pass_time(61)
    for rank in (2, 3):
        stall(gang, rank, 60.5)
    gang.pass_time(HANG["other"] + 1)
    assert {event["rank"] for event in gang.recorded("stall")} == {2, 3}
    assert [event["with_heartbeats"] for event in gang.recorded("folder_lost")] == [True]


@pytest.mark.parametrize("how", [OWN, "hang"])
def test_what_follows_the_loss_of_the_runs_folder_is_no_hang_and_no_error_of_the_user(how: Any) -> None:
    gang = Gang(hang=HANG)
    gang.run()
    gang.say(0, "folder_lost", path="/run", with_heartbeats=True)
    if how == "hang":  # the heartbeats of node 0's ranks are gone: rank 0 may be saving
        gang.pass_time(61)
        for rank in (2, 3):
            stall(gang, rank, 60.5)
        gang.pass_time(1700)
        assert gang.leader.phase == "running"
        assert gang.recorded("stall") == []
    gang.fail(OWN)
    assert [(event["of"], event["host"], event["path"]) for event in gang.recorded("folder_lost")] == [
        (0, "n0", "/run")
    ]
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "infra")
    assert gang.end["reason"].startswith("node 0 (n0) lost the run's folder: /run was removed during the run")
