"""Who is answered: each rule alone keeps somebody out, and who keeps to all of them comes in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.web.access import MOST_SESSIONS, Access, Asked, Session

HOST = "127.0.0.1:8001"


@pytest.fixture
def access() -> Access:
    return Access("for-prometheus")


@pytest.fixture
def session(access: Access) -> Session:
    found = access.redeem(access.new_code())
    assert found is not None
    return found


@pytest.fixture
def asked(access: Access, session: Session) -> Asked:
    """What the page itself sends."""
    cookie = f"other=1; {access.cookie_name}={session.cookie}"
    return Asked("GET", "/api/runs", host=HOST, cookie=cookie, session=session.token)


def status(access: Access, asked: Asked) -> int | None:
    refusal = access.refusal(asked)
    return None if refusal is None else refusal.status


def test_the_page_is_answered(access: Access, asked: Asked) -> None:
    assert status(access, asked) is None
    assert status(access, replace(asked, path="/", session="")) is None
    assert status(access, replace(asked, method="POST", origin=f"http://{HOST}")) is None
    assert status(access, replace(asked, host="localhost:9", origin="http://localhost:9")) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cookie": ""}, 401),
        ({"cookie": "orch_ui=x"}, 401),
        ({"cookie": "\x00;="}, 401),
        ({"session": ""}, 403),
        ({"session": "x"}, 403),
        ({"session": "é"}, 403),
        ({"path": "/", "cookie": ""}, 401),
        ({"path": "/static/main.js", "cookie": ""}, 401),
        ({"path": "/api/events", "session": ""}, 403),
        ({"path": "/metrics", "cookie": ""}, 401),
        ({"path": "/metrics", "cookie": "", "authorization": "Bearer x"}, 401),
        ({"path": "/metrics", "cookie": "", "authorization": "Basic for-prometheus"}, 401),
        ({"path": "/codes"}, 401),
        ({"path": "/codes", "authorization": "Bearer for-prometheus"}, 401),
        ({"method": "POST"}, 403),
        ({"method": "DELETE"}, 403),
        ({"method": "POST", "origin": "null"}, 403),
        ({"method": "POST", "origin": "http://127.0.0.1:8002"}, 403),
        ({"method": "POST", "path": "/enter"}, 403),
        ({"origin": "https://127.0.0.1:8001"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"host": "evil.example:8001"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "evil.example@127.0.0.1"}, 421),
        ({"host": "127.0.0.1:8001/x"}, 421),
        ({"host": "127.0.0.1:x"}, 421),
        ({"host": ""}, 421),
    ],
    ids=str,
)
def test_who_breaks_a_rule_is_refused(access: Access, asked: Asked, change: dict[str, str], expected: int) -> None:
    assert status(access, replace(asked, **change)) == expected


def test_a_code_opens_one_session_and_only_the_newest(access: Access) -> None:
    first = access.new_code()
    second = access.new_code()
    assert access.redeem(first) is None
    assert access.redeem("") is None
    assert access.redeem(second) is not None
    assert access.redeem(second) is None


def test_another_session_has_another_token(access: Access, asked: Asked) -> None:
    other = access.redeem(access.new_code())
    assert other is not None
    assert status(access, replace(asked, session=other.token)) == 403


def test_the_oldest_of_many_sessions_ends(access: Access, asked: Asked) -> None:
    for _ in range(MOST_SESSIONS):
        assert status(access, asked) is None
        access.redeem(access.new_code())
    assert status(access, asked) == 401


def test_programs_have_keys_of_their_own(access: Access) -> None:
    program = Asked("GET", "/metrics", host=HOST, authorization="Bearer for-prometheus")
    assert status(access, program) is None
    assert status(access, replace(program, path="/api/runs")) == 401
    orch = Asked("POST", "/codes", host=HOST, authorization=f"Bearer {access.key}")
    assert status(access, orch) is None
    assert status(access, replace(orch, path="/metrics")) == 403
    assert status(access, replace(orch, host="evil.example")) == 421
