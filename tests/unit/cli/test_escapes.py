"""What a program, a host or a user has written can't command the terminal of whoever looks at it."""

from __future__ import annotations

import re
import sys

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from orchestrator.cli.group import show, style
from orchestrator.cli.render import escapes, results, runs
from orchestrator.cli.top.app import _shown
from orchestrator.errors import printable
from orchestrator.outcome.verdict import Cause, NodeState, NodeStatus, Outcome, Verdict
from orchestrator.runs.labels import why_no_note, why_no_tag
from orchestrator.runs.state import RunState, RunStatus

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b2J\r\x08\x00\u202eforged\x1b[31mred"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ERROR = {"type": "E", "message": EVIL, "traceback": f"a\n{EVIL}"}
VERDICT = Verdict(
    Outcome.FAILED, Cause.USER_ERROR, f"it {EVIL}", rank=0, node=0, host=EVIL, hint=EVIL, error=ERROR,
    tail=(EVIL, "b\x1b[1A"),
)  # fmt: skip
STATE = RunState(f"run{EVIL}", f"name{EVIL}", f"profile{EVIL}", 0.0, RunStatus.FAILED, verdict=VERDICT,
                 nodes=(NodeState(0, f"host{EVIL}\nforged row", NodeStatus.ENDED, exits={0: EVIL}),))  # fmt: skip
LIVE = RunState("r", "n", "p", 0.0, RunStatus.PENDING, detail=f"{EVIL}\nforged row", master=EVIL)
RESULT = {"accuracy": 0.5, "data": f"{EVIL}\nforged row"}


@pytest.mark.parametrize("at_a_terminal", [True, False])
def test_no_page_lets_a_control_character_through(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at_a_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: at_a_terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    node = {
        "host": EVIL,
        "spare": False,
        "cores": 1,
        "gpus": 0,
        "free": 1,
        "places": {"0": {"user": EVIL, "run": EVIL}},
    }
    for page in (
        runs.status_page(STATE, None, RESULT, EVIL, 1.0, style),
        runs.status_page(LIVE, {"step": 1}, RESULT, EVIL, 1.0, style),
        runs.status_page(LIVE, None, None, EVIL, 1.0, style, last_line=EVIL, width=80),
        runs.status_lines([runs.status_line(each, None, 1.0, EVIL) for each in (STATE, LIVE)], style, 80),
        runs.verdict_page(STATE, style),
        "\n".join(runs.notify_lines([{"event": EVIL, "state": "failed", "problem": EVIL}])),
        results.nodes_page([node, {"host": "n2", "spare": False, "problem": EVIL}], style),
    ):
        show(page)
    said = capsys.readouterr().out
    assert "forged" in said
    assert not any(line.startswith("forged row") for line in said.splitlines())
    ours = said.replace(click.style("", fg="red", reset=False), "").replace("\x1b[0m", "")
    assert "\\x1b[31mred" in said
    assert CONTROL.findall(ours) == []


@given(st.text(st.characters(codec="utf-8", include_characters="\x1b[]0m;\x07\x9b\r\n")))
def test_of_any_text_only_colours_and_line_ends_are_left(text: str) -> None:
    assert CONTROL.findall(re.sub(r"\x1b\[(3[0-7]|0)m", "", escapes.page(text))) == []
    assert CONTROL.findall(re.sub(r"\x1b\[[0-9;:]*m", "", escapes.log_line(text))) == []
    assert CONTROL.findall(escapes.one_line(text)) == []
    assert "\n" not in escapes.one_line(text)


# One of each range, and the letters and marks beside them, which are visible.
UNSEEN = (
    "\u034f\u115f\u1160\u17b4\u180b\u180e\u180f\u2800\u3164\ufe00\ufe0f\uffa0\U000e0100\U000e01ef\u200b\u2060\U000e0041"
)


def test_characters_that_nobody_can_see_are_escaped_everywhere() -> None:
    for show_of in (printable, escapes.page, escapes.one_line, escapes.log_line, escapes.plain):
        assert show_of(f"a{UNSEEN}b") == f"a{ascii(UNSEEN)[1:-1]}b"
        assert show_of("äß\u0301 漢字 한 \u28ff é🙂") == "äß\u0301 漢字 한 \u28ff é🙂"
    for char in UNSEEN:
        assert why_no_tag(f"a{char}") is not None
        assert why_no_note(f"a{char}") is not None
    assert [line.plain for line in (_shown(Text(f"a{UNSEEN[0]}ä\x1b"), is_ascii=each) for each in (False, True))] == [
        "a?ä?", "a???",
    ]  # fmt: skip


def test_a_log_keeps_its_colours_and_they_end_with_the_line() -> None:
    assert escapes.log_line("\x1b[1;31mloss\x1b[0m 0.5") == "\x1b[1;31mloss\x1b[0m 0.5\x1b[0m"
    assert escapes.log_line("\x1b[32mok") == "\x1b[32mok\x1b[0m"
    assert escapes.log_line("a\x1b[2K\x1b]0;title\x07b\x1b[3A\tc") == "ab\tc"
    assert escapes.log_line("\x1b]52;c;cm0gLXJm") == "\\x1b]52;c;cm0gLXJm"
