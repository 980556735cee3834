"""What a rank's end tells: real words of torch, gloo, NCCL, torchrun and programs, and what is made of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.agent import channel
from orchestrator.node.launcher.rank import exit_report
from orchestrator.node.launcher.rank.exit_report import failure_report, last_lines
from orchestrator.node.launcher.rank.forked import RankStart
from orchestrator.outcome.ends import is_victim
from orchestrator.outcome.sentences import memory_in_words
from orchestrator.protocol.masking import masker
from orchestrator.protocol.rank_reports import RankEnd, RankError
from orchestrator.protocol.typed import to_json

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:54321"
WATCHDOG = """\
[rank1]:[E ProcessGroupNCCL.cpp:2057] [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: \
NCCL error: remote process exited or there was a network error, NCCL version 2.27.5
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: ...
""" + "".join(f"frame #{n}: c10d::ProcessGroupNCCL::run() + 0x{n} (in libtorch_cuda.so)\n" for n in range(15))
TORCHRUN = """\
E1121 08:00:00.000 812 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 813)
============================================================
"""
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    main()\n'


def rank_in(folder: Path) -> RankStart:
    files = {"error_file": f"{folder}/error_1.json", "stack_file": f"{folder}/stacks_1.txt"}
    return RankStart(rank=1, kind="script", target="t.py", args=(), environment={}, cwd="/", **files)


@pytest.fixture
def start(tmp_path: Path) -> RankStart:
    return rank_in(tmp_path)


def report(start: RankStart, code: int, log: str = "", error: object = None) -> RankEnd:
    folder = Path(start.error_file).parent
    (folder / "rank_1.log").write_text(log)
    if error is not None:
        Path(start.error_file).write_text(error if isinstance(error, str) else json.dumps(error))
    return failure_report(start, code)


def test_a_rank_that_ended_well_tells_nothing(start: RankStart) -> None:
    assert report(start, 0, "a log") == RankEnd(1, 0)


@pytest.mark.parametrize(
    ("code", "number", "name"),
    [(17, 17, None), (-9, None, "SIGKILL"), (-11, None, "SIGSEGV"), (-40, None, "signal 40")],
)
def test_codes_and_signals(start: RankStart, code: int, number: int | None, name: str | None) -> None:
    found = report(start, code)
    assert (found.code, found.signal, found.error) == (number, name, None)


def test_a_traceback_is_read_from_the_log(start: RankStart) -> None:
    found = report(start, 1, f"epoch 1\n{TRACEBACK}ValueError: boom: bang\n")
    assert found.error == RankError("ValueError", "boom: bang", f"{TRACEBACK}ValueError: boom: bang")
    assert found.tail[0] == "epoch 1"


def test_the_last_of_chained_tracebacks_counts(start: RankStart) -> None:
    text = f"{TRACEBACK}KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert report(start, 1, f"{text}{TRACEBACK}KeyboardInterrupt\n").error.type == "KeyboardInterrupt"


def test_torchs_prefix_is_taken_off(start: RankStart) -> None:
    """Torch prints `[rank1]: ` before every line once a process group exists."""
    text = "".join(f"[rank1]: {line}\n" for line in f"{TRACEBACK}RuntimeError: {GLOO}".splitlines())
    found = report(start, 1, text)
    assert (found.error.type, is_victim(found)) == ("RuntimeError", True)


def test_a_long_traceback_is_found_too(start: RankStart) -> None:
    frames = "".join(f'  File "t.py", line {n}, in f{n}\n    f{n}()\n' for n in range(60))
    assert report(start, 1, f"{TRACEBACK}{frames}ValueError: deep\n").error.message == "deep"


def test_a_traceback_that_the_program_survived_is_not_its_end(start: RankStart) -> None:
    log = f"{TRACEBACK}ConnectionError: will retry\n" + "".join(f"step {n}\n" for n in range(100))
    assert report(start, 17, log).error is None
    assert report(start, -9, f"{TRACEBACK}ConnectionError: will retry\nstep 1\nstep 2\n").error is None
    assert report(start, -9, f"{TRACEBACK}ValueError: then it hung\n").error.type == "ValueError"


def test_behind_torchruns_own_error_stands_its_ranks(start: RankStart) -> None:
    found = report(start, 1, f"{TRACEBACK}ValueError: boom\n{TORCHRUN}")
    assert (found.error.type, found.error.message) == ("ValueError", "boom")
    assert report(start, 1, TORCHRUN).error.type.endswith("ChildFailedError:")


def test_the_error_file_wins_over_the_log(start: RankStart) -> None:
    kept = {"type": "ValueError", "message": "boom", "traceback": "Traceback ...", "time": 1.0}
    found = report(start, 1, f"{TRACEBACK}KeyError: 1\n", kept)
    assert found.error == RankError("ValueError", "boom", "Traceback ...")


def test_torchelastics_error_file_is_understood(start: RankStart) -> None:
    info = {"py_callstack": f"{TRACEBACK}RuntimeError: {GLOO}", "timestamp": "1700000000"}
    found = report(start, 1, "", {"message": {"message": f"RuntimeError: {GLOO}", "extraInfo": info}})
    assert found.error == RankError("RuntimeError", GLOO, info["py_callstack"])
    assert is_victim(found)


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", '"x"'])
def test_a_broken_error_file_is_no_error_file(start: RankStart, broken: str) -> None:
    assert report(start, 1, f"{TRACEBACK}KeyError: 1\n", broken).error.type == "KeyError"


@pytest.mark.parametrize("odd", [{}, {"message": {}}, {"message": {"message": None, "extraInfo": None}}, {"type": 5}])
def test_an_odd_error_file_does_not_hide_the_end(start: RankStart, odd: object) -> None:
    assert report(start, 1, "", odd).code == 1


def test_ncclss_watchdog_aborts_a_victim(start: RankStart) -> None:
    assert is_victim(report(start, -6, WATCHDOG))
    assert not is_victim(report(start, -6, "Assertion `t >= 0 && t < n_classes` failed.\n"))
    assert not is_victim(report(start, -9, WATCHDOG))


def test_words_from_long_before_the_end_make_no_victim(start: RankStart) -> None:
    log = "Connection reset by peer, trying again\n" + "".join(f"step {n}\n" for n in range(20))
    assert not is_victim(report(start, 17, log))
    assert is_victim(report(start, 1, f"step 1\n{GLOO}\n"))


def test_no_secret_is_in_a_report_and_no_half_of_one(start: RankStart) -> None:
    word = "canary-9d2k-value"
    masked = masker([("KEY", word)])
    error = {"type": "KeyError", "message": f"{'m' * 1990} {word}", "traceback": f"{word} {'t' * 7990}"}
    beyond = f"{'b' * 1990} {word}"  # a line is cut in the middle of the secret
    before = f"{word}\n{'x' * (16_384 - 10)}"  # so is what is read of the log
    for log in (f"{word}\nit has {word}\n", beyond, before):
        report(start, 1, log, error)
        found = failure_report(start, 1, masked)
        assert re.search("cana|alue", json.dumps(to_json(found))) is None
    assert failure_report(start, 1).error.message.endswith(" canary-9d")
    assert last_lines(f"{start.folder}/rank_1.log", masked)[-1][:1] == "x"


def test_no_end_of_a_long_secret_is_in_a_report_of_a_log_that_repeats_the_secret(start: RankStart) -> None:
    word = "".join(f"{number:04}" for number in range(750))
    report(start, 1, f"{word}\n" * 20)
    assert set(failure_report(start, 1, masker([("KEY", word)])).tail) == {"***"}


def test_the_tail_of_a_progress_bar(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\r".join(f"{n}%".encode() for n in range(1000)) + b"\r\n\n\xff end")
    found = last_lines(str(path))
    assert found == ["999%", "\ufffd end"]
    assert last_lines(str(tmp_path / "none")) == []


@given(st.text(st.sampled_from("a\x1b\ufffd😀\ud800\n "), max_size=50), st.integers(1, 2000), st.booleans())
def test_a_report_always_fits_into_one_line_of_the_gang(
    tmp_path_factory: pytest.TempPathFactory, text: str, times: int, in_file: bool
) -> None:
    folder = tmp_path_factory.mktemp("report")
    start = rank_in(folder)
    words = text * times
    error = {"type": words, "message": words, "traceback": words} if in_file else None
    (folder / "rank_1.log").write_bytes(f"{TRACEBACK}{words}".encode("utf-8", "surrogatepass"))
    if error:
        Path(start.error_file).write_text(json.dumps(error))
    assert len(json.dumps({"kind": "exit", **to_json(failure_report(start, 1))})) < channel.MAX_LINE


def test_what_a_gpu_held_when_it_ran_out_of_memory_is_told(start: RankStart) -> None:
    held = {"allocated": 131 << 30, "reserved": 137 << 30, "total": 140 << 30, "more": "x"}
    found = report(start, 1, error={"type": "OutOfMemoryError", "message": "CUDA out of memory.", "memory": held})
    assert memory_in_words(found.error) == [
        "at its peak torch had 131.0 GiB in tensors, and 137.0 GiB of the GPU's 140.0 GiB reserved"
    ]
    error = {"type": "OutOfMemoryError", "message": "", "memory": held, "snapshot": "memory_rank_1.pickle"}
    assert (
        memory_in_words(report(start, 1, error=error).error)[1]
        == "orch outputs has a snapshot of it, memory_rank_1.pickle"
    )
    for damaged in (None, {}, {"allocated": "many", "reserved": 1, "total": True}, 7):
        found = report(start, 1, error={"type": "OutOfMemoryError", "message": "", "memory": damaged})
        assert memory_in_words(found.error) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["rank_1.log", "error_1.json"])
@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "nested", "large"])
def test_whatever_a_rank_leaves_its_end_is_told(start: RankStart, tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "private").write_text("SECRET\n" + TRACEBACK)
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "private")
    elif kind == "folder":
        path.mkdir()
    elif kind == "nested":
        path.write_text("[" * 200_000)
    else:
        path.touch()
        os.truncate(path, 1 << 30)
    said = failure_report(start, 3)
    assert (said.code, said.signal, said.error) == (3, None, None)
    assert "SECRET" not in json.dumps(to_json(said))


def test_a_sequence_that_moves_the_cursor_by_far_is_no_error_of_the_launcher(start: RankStart) -> None:
    said = report(start, 1, "before\n\x1b[" + "9" * 5000 + "A\n" + TRACEBACK + "ValueError: the user's own\n")
    assert said.unread == ""
    assert said.error.message == "the user's own"


def test_an_error_in_the_report_leaves_what_is_known_of_the_end(
    start: RankStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> list[str]:
        raise ValueError("cannot parse")

    monkeypatch.setattr(exit_report, "lines_of", broken)
    said = report(start, -9, "words")
    assert said == RankEnd(1, signal="SIGKILL", unread="ValueError: cannot parse")
