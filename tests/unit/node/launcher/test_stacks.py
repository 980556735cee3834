"""When a rank's dump of its stacks is whole: its writer says nothing, so that the kernel has to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orchestrator.node.launcher.stacks import STACK_SIGNAL, Asked, ask, threads_of

# Writes its answer as a signal handler does, the signal held back meanwhile, but line by line as it is told to.
SLOW = """
import signal, sys
signal.signal(int(sys.argv[1]), lambda *_: None)
print("up", flush=True)
with open(sys.argv[2], "ab", buffering=0) as file:
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, [int(sys.argv[1])])
        if line == "end\\n":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [int(sys.argv[1])])
        else:
            file.write(line.encode())
        print("done", flush=True)
"""

# Answers as a rank does, from fifty threads.
MANY = """
import sys, threading
from orchestrator.node.launcher.stacks import answer_with_stacks
answer_with_stacks(sys.argv[1])
for _ in range(50):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


def test_a_dump_is_whole_once_its_writer_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    path.write_text("an older dump\n")
    argv = [sys.executable, "-c", SLOW, str(int(STACK_SIGNAL)), str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None

        def tell(line: str) -> None:
            assert writer.stdin is not None
            assert writer.stdout is not None
            print(line, file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "done\n"

        assert writer.stdout.readline() == "up\n"
        asked = Asked.before(writer.pid, str(path))
        assert asked.answer() == ""
        tell("one")
        tell("two")
        assert (asked.answer(), asked.so_far()) == ("", "one\ntwo\n")
        tell("end")
        assert asked.answer() == "one\ntwo\n"
        writer.stdin.close()


def test_no_thread_is_missing_from_an_answer(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", MANY, str(tmp_path / "stacks")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        for _ in range(20):
            asked = ask(process.pid, str(tmp_path / "stacks"))
            assert asked is not None
            while not (text := asked.answer()):
                pass
            assert len(threads_of(text)) == 50 + 1
        process.stdin.close()


def test_who_has_gone_has_not_answered(tmp_path: Path) -> None:
    asked = Asked.before(2**22 + 1, str(tmp_path / "none"))
    assert (asked.answer(), asked.so_far()) == ("", "")
