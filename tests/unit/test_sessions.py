"""What `make sessions` keeps of a terminal's output."""

from __future__ import annotations

from tests.sessions import STEP, plain, shortened


def test_lines_that_were_written_over_are_as_they_were_last() -> None:
    assert plain("waiting\r\x1b[2Ksubmitted\r\n\x1b[1mdone\x1b[0m  \r\n") == "submitted\ndone\n"


def test_a_long_log_is_cut_before_its_verdict_and_nothing_else_is() -> None:
    log = [f"line {number}" for number in range(20)]
    succeeded = shortened([*log, "a-abc234 succeeded after 2 s", "  folder /x"], "orch run -- train.py")
    assert succeeded == [*log[:5], "...", *log[-5:], "a-abc234 succeeded after 2 s", "  folder /x"]
    failed = shortened([*log, "a-abc234 failed after 2 s", "reason"], "orch submit a --follow")
    assert failed == [*log[:5], "...", "a-abc234 failed after 2 s", "reason"]
    assert shortened(log, "orch events last") == log


def test_steps_are_found_with_their_blocks() -> None:
    page = (
        "a\n<!-- file x.py -->\n```python\n1\n```\n\n<!-- crash n2 -->\n<!-- recorded on ctl -->\n```\n$ ls\nx\n```\n"
    )
    assert [(step["what"], step["text"]) for step in STEP.finditer(page)] == [
        ("file x.py", "1\n"),
        ("crash n2", None),
        ("recorded on ctl", "$ ls\nx\n"),
    ]
