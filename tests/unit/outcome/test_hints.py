"""Advice for the failures that everybody meets, and silence for the rest."""

from __future__ import annotations

import pytest

from orchestrator.outcome.rule import Seen
from orchestrator.outcome.rules import hint_for, hint_of
from tests.events import culprit


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("torch.OutOfMemoryError CUDA out of memory. Tried to allocate 2.00 GiB", "lower global_batch"),
        ("RuntimeError unable to mmap 4096 bytes: Cannot allocate memory (12)", "the host ran out of memory"),
        ("OSError [Errno 28] No space left on device", "a disk is full"),
        ("RuntimeError DataLoader worker is killed by signal: Bus error", "shared memory"),
        ("the module timm is missing on all 3 machines (a, b, c); python there: /x", "orch doctor -p PROFILE"),
        (
            "node 1 (b): it has no network interface eth9, which the profile names; its interfaces: lo",
            "leave `interface`",
        ),
        (
            "the agent of node 0 (a) vanished without a word: killed, or its machine went down",
            "memory was short",
        ),
        ("node 1 (b) was lost: its agent closed the connection", "memory was short"),
        ("ModuleNotFoundError No module named 'wandb'", "an import failed"),
        ("RuntimeError EADDRINUSE, Address already in use", "MASTER_PORT"),
        ("RuntimeError Watchdog caught collective operation timeout", "a collective timed out"),
        ("FloatingPointError Loss is nan", "learning rate"),
        ("KeyError 'LOCAL_RANK'", "write torchrun in place of python"),
        ("ValueError env:// rendezvous: environment variable RANK expected, but not set", "write torchrun"),
        (
            "ValueError not enough values\nstty: 'standard input': Inappropriate ioctl for device",
            "a rank has no terminal",
        ),
        ("PermissionError [Errno 13] Permission denied: '/data'", "owner and mode"),
        ("FileNotFoundError [Errno 2] No such file or directory: 'x'", "only the code folder"),
        ("the launcher can't be started with /opt/python: [Errno 2] No such file or directory", "set `python` in the"),
        ("node 1 (b) can't reach node 0: 10.0.0.1: timed out (ports 20000)", "firewall"),
        ("node 0 (a) can't reach its neighbour b: no answer within 20 s; is the MTU smaller on the way?", "same MTU"),
        ("node 1 (b) can't reach its neighbour c: 10.0.0.3:7000: timed out", "firewall"),
        (
            "You set `devices=2` in Lightning, but the product (2 * 1) does not match the world size (3).",
            "devices=int(os.environ['LOCAL_WORLD_SIZE'])",
        ),
        ("the launcher can't be started with python3: [Errno 7] Argument list too long: 'python3'", "into a file"),
        ("node 1 (b): setup line 1 failed: module load cuda: module: command not found", "/etc/profile.d/modules.sh"),
        (
            "node 0 (a): setup line 1 failed: module load x: ERROR: Unable to locate a modulefile for 'x'",
            "module avail",
        ),
        ("node 0 (a): setup line 2 failed: conda activate x: CondaError: Run 'conda init' before", "conda.sh"),
        ("node 0 (a): setup line 1 failed: . ~/env.sh: /root/env.sh: No such file or directory", "bash -lc"),
        ("node 1 (b): input data can't be fetched from http://x: timed out", "set the input's `source`"),
    ],
)
def test_words(words: str, advice: str) -> None:
    assert advice in hint_for(words)


@pytest.mark.parametrize(
    ("code", "signal", "advice"),
    [
        (None, "SIGKILL", "ran out of memory"),
        (137, None, "ran out of memory"),
        (None, "SIGBUS", "shared memory"),
        (None, "SIGSEGV", "faulthandler"),
        (127, None, "not found"),
        (126, None, "can't be executed"),
    ],
)
def test_codes_and_signals(code: int | None, signal: str | None, advice: str) -> None:
    assert advice in hint_of(Seen(culprit(code=code, signal=signal), ""))


@pytest.mark.parametrize("words", ["ValueError boom", "KeyError 'finance'", "", "AssertionError banana"])
def test_silence_where_no_rule_fits(words: str) -> None:
    assert hint_for(words) == ""
