"""How much a rank is to blame for its end: real words of torch, gloo, NCCL, torchrun and programs."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.outcome.ends import Blame, blame_of, is_oom, is_victim, was_stopped, worker_was_killed
from orchestrator.protocol.rank_reports import Culprit, RankEnd, RankError

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:54321"
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, remote process exited or there "
    "was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a "
    "remote process exiting prematurely.\nLast error:\nNET/Socket: Connection closed by remote peer"
)


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("RuntimeError", "DataLoader worker (pid 812) is killed by signal: Killed. ", True),
        ("RuntimeError", "DataLoader worker (pid(s) 812, 813) exited unexpectedly", True),
        ("RuntimeError", "Pin memory thread exited unexpectedly", True),
        (
            "concurrent.futures.process.BrokenProcessPool",
            "A process in the process pool was terminated abruptly while the future was running or pending.",
            True,
        ),
        ("torch.multiprocessing.spawn.ProcessExitedException", "process 1 terminated with signal SIGKILL", True),
        ("RuntimeError", "DataLoader worker (pid 812) is killed by signal: Bus error. ", False),
        ("RuntimeError", "boom", False),
    ],
)
def test_a_process_of_the_rank_that_was_killed_is_known_by_the_ranks_error(
    kind: str, message: str, expected: bool
) -> None:
    assert worker_was_killed(RankEnd(1, 1, error=RankError(kind, message))) is expected
    assert worker_was_killed(RankEnd(1, 1, tail=("...", f"{kind}: {message}"))) is expected


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", GLOO),
        ("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection reset by peer [::1]:4"),
        ("RuntimeError", "[..] writev [127.0.0.1]:5: Broken pipe"),
        ("DistBackendError", NCCL),
        ("torch.distributed.DistBackendError", NCCL),
        ("torch.distributed.DistNetworkError", "failed to recv, got 0 bytes"),
        ("DistStoreError", "Timed out after 301 seconds waiting for clients. 2/4 clients joined."),
        ("DistNetworkError", "The client socket has failed to connect; the connection was likely closed"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException", "Process 77 got signal: 15"),
    ],
)
def test_a_rank_whose_peer_went_away_is_a_victim(kind: str, message: str) -> None:
    assert is_victim(RankEnd(0, 1, error=RankError(kind, message)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "boom"),
        ("ValueError", "Connection closed by peer"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("RuntimeError", "CUDA error: device-side assert triggered"),
        ("RuntimeError", "DataLoader worker (pid(s) 812) exited unexpectedly"),
        ("orchestrator.training.errors.DataError", "Sample 20 of the training data can't be read on rank 1: EOFError"),
        ("requests.exceptions.ConnectionError", "('Connection aborted.', ConnectionResetError(104, 'reset by peer'))"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("BrokenPipeError", "[Errno 32] Broken pipe"),
        ("urllib.error.URLError", "<urlopen error [Errno 104] Connection reset by peer>"),
        ("KeyError", "'store closed'"),
    ],
)
def test_a_programs_own_error_is_its_own(kind: str, message: str) -> None:
    assert not is_victim(RankEnd(0, 1, error=RankError(kind, message), tail=("Connection closed by peer",)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("BrokenPipeError", "[Errno 32] Broken pipe"),
        ("ConnectionAbortedError", "[Errno 103] Software caused connection abort"),
        ("EOFError", ""),
        ("asyncio.exceptions.IncompleteReadError", "0 bytes read on a total of 4 expected bytes"),
        ("requests.exceptions.ConnectionError", "('Connection aborted.', RemoteDisconnected('Remote end closed'))"),
        ("urllib3.exceptions.ProtocolError", "Connection broken: ConnectionResetError(104, 'reset')"),
        ("ssl.SSLEOFError", "EOF occurred in violation of protocol (_ssl.c:2423)"),
        ("grpc._channel._InactiveRpcError", "status = StatusCode.UNAVAILABLE details = Socket closed"),
        ("OSError", "[Errno 107] Transport endpoint is not connected"),
        ("OSError", "[Errno 113] No route to host"),
        ("TimeoutError", "[Errno 110] Connection timed out"),
    ],
)
def test_a_broken_connection_of_any_library_may_have_been_caused_by_another_end(kind: str, message: str) -> None:
    end = RankEnd(0, 1, error=RankError(kind, message))
    assert blame_of(end) is Blame.CONNECTION
    assert blame_of(end) > Blame.FAILED
    assert not is_victim(end)  # if no other rank failed, it is this rank's own error


@pytest.mark.parametrize(
    ("end", "blame"),
    [
        ({"code": 93}, Blame.NO_RETRY),
        ({"code": 93, "sent": "SIGTERM"}, Blame.AFTER_STOP),
        ({"signal": "SIGKILL"}, Blame.KILLED),
        ({"signal": "SIGKILL", "sent": "SIGTERM"}, Blame.AFTER_STOP),  # its own handler may have killed it
        ({"signal": "SIGKILL", "sent": "SIGTERM", "oom_kills": 1}, Blame.KILLED),
        ({"signal": "SIGKILL", "sent": "SIGTERM", "error": RankError("LauncherLost", "killed")}, Blame.KILLED),
        ({"signal": "SIGKILL", "sent": "SIGKILL"}, Blame.STOPPED),
        ({"signal": "SIGTERM", "sent": "SIGTERM"}, Blame.STOPPED),
        ({"signal": "SIGUSR2", "sent": "SIGUSR2"}, Blame.STOPPED),
        ({"signal": "SIGTERM"}, Blame.FAILED),  # somebody else sent it
        ({"signal": "SIGSEGV"}, Blame.FAILED),
        ({"code": 1, "error": RankError("LauncherLost", "the launcher of this node ended with code 1")}, Blame.KILLED),
        ({"code": 1, "error": RankError("ValueError", "boom")}, Blame.FAILED),
        ({"code": 1, "error": RankError("ValueError", "boom"), "sent": "SIGTERM"}, Blame.AFTER_STOP),
        ({"signal": "SIGABRT", "finished": True}, Blame.AT_EXIT),
        ({"hang": True, "in_collective": False, "error": RankError("Hang", "it stood still")}, Blame.FAILED),
        ({"hang": True, "in_collective": True, "error": RankError("Hang", "it stood still")}, Blame.HUNG),
    ],
)
def test_how_much_a_rank_is_to_blame(end: dict[str, Any], blame: Blame) -> None:
    assert blame_of(Culprit(0, **end)) is blame


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"signal": "SIGKILL", "oom_kills": 1}, True),
        ({"signal": "SIGKILL", "oom_kills": 0}, False),
        ({"signal": "SIGKILL", "oom_kills": 1, "sent": "SIGKILL"}, False),  # the launcher killed it
        ({"signal": "SIGSEGV", "oom_kills": 1}, False),
        (
            {"code": 1, "oom_kills": 1, "error": RankError("RuntimeError", "Pin memory thread exited unexpectedly")},
            True,
        ),
        ({"code": 1, "oom_kills": 1, "error": RankError("ValueError", "boom")}, False),
    ],
)
def test_the_kernel_s_kills_explain_the_ends_that_they_can_have_caused(end: dict[str, Any], expected: bool) -> None:
    assert is_oom(RankEnd(0, **end)) is expected


def test_a_rank_that_was_sent_nothing_was_not_stopped() -> None:
    assert not was_stopped(RankEnd(0, signal="SIGTERM"))
    assert was_stopped(RankEnd(0, 0, sent="SIGTERM"))
    assert was_stopped(RankEnd(0, 0, stopped=True))  # in the record of an earlier version
