"""Who is answered: each rule alone keeps somebody out, and who keeps to all of them comes in."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orchestrator.web.access import MOST_SESSIONS, Access, Asked, Session, has_bearer

PORT = 8001


@pytest.fixture
def access() -> Access:
    return Access()


@pytest.fixture
def session(access: Access) -> Session:
    found = access.redeem(access.new_code())
    assert found is not None
    return found


@pytest.fixture
def asked(access: Access, session: Session) -> Asked:
    """What the page itself sends."""
    cookie = f"other=1; {access.cookie_name}={session.cookie}"
    return Asked("GET", "/api/runs", host=host_of(access), cookie=cookie, session=session.token)


def host_of(access: Access) -> str:
    return f"{access.host_name}:{PORT}"


def status(access: Access, asked: Asked) -> int | None:
    refusal = access.refusal(asked)
    return None if refusal is None else refusal.status


def test_the_page_is_answered(access: Access, asked: Asked) -> None:
    assert status(access, asked) is None
    assert status(access, replace(asked, path="/", session="")) is None
    assert status(access, replace(asked, method="POST", origin=f"http://{asked.host}")) is None
    forwarded = f"{access.host_name}:9"  # ssh -L 9:127.0.0.1:8001
    assert status(access, replace(asked, host=forwarded, origin=f"http://{forwarded}")) is None
    assert status(access, replace(asked, host=access.host_name, origin=f"http://{access.host_name}")) is None


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
        ({"path": "/codes"}, 401),
        ({"path": "/codes", "authorization": "Bearer x"}, 401),
        ({"method": "POST"}, 403),
        ({"method": "DELETE"}, 403),
        ({"method": "POST", "origin": "null"}, 403),
        ({"method": "POST", "origin": "http://127.0.0.1:8002"}, 403),
        ({"method": "POST", "path": "/enter"}, 403),
        ({"origin": "https://127.0.0.1:8001"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"host": "evil.example:8001"}, 421),
        ({"host": "127.0.0.1:8001"}, 421),
        ({"host": "localhost:8001"}, 421),
        ({"host": "orch-0000000000000000.localhost:8001"}, 421),
        ({"host": "NAME.evil.example"}, 421),
        ({"host": "evil.example@NAME"}, 421),
        ({"host": "evil.NAME"}, 421),
        ({"host": "NAME:8001/x"}, 421),
        ({"host": "NAME:x"}, 421),
        ({"host": "NAME:"}, 421),
        ({"host": "NAME:8001:8001"}, 421),
        ({"host": ""}, 421),
    ],
    ids=str,
)
def test_who_breaks_a_rule_is_refused(access: Access, asked: Asked, change: dict[str, str], expected: int) -> None:
    change = {name: value.replace("NAME", access.host_name) for name, value in change.items()}
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
    orch = Asked("POST", "/codes", host=host_of(access), authorization=f"Bearer {access.key}")
    assert status(access, orch) is None
    assert status(access, replace(orch, method="GET", path="/api/runs")) == 401
    assert status(access, replace(orch, host="evil.example")) == 421


def test_each_server_has_a_host_name_of_its_own() -> None:
    names = {Access().host_name for _ in range(9)}
    assert len(names) == 9
    assert all(re.fullmatch(r"orch-[0-9a-f]{16}\.localhost", name) for name in names)


@pytest.mark.parametrize(
    "other",
    [
        "a,b=1", "state={\"a\": [1, 2]}", "a[0]=1", "é=ü", "=", "plain", ";;", "$Version=1", 'open="', "a=b=c",
        "\\x=\\", "tab\tbed=1", "NAME=", "NAME=x", "NAME", "NAME =x",
    ],
)  # fmt: skip
def test_cookies_of_other_programs_are_no_hindrance(access: Access, asked: Asked, other: str) -> None:
    other = other.replace("NAME", access.cookie_name)
    for cookie in (f"{other}; {asked.cookie}", f"{asked.cookie}; {other}", f"{other};{asked.cookie};{other}"):
        assert status(access, replace(asked, cookie=cookie)) is None
    assert status(access, replace(asked, cookie=other)) == 401


def test_a_bearer_has_the_whole_token() -> None:
    assert has_bearer("Bearer token", "token")
    assert has_bearer("bearer  token ", "token")
    for given in ("", "Bearer", "Bearer x", "Basic token", "token", "Bearer é"):
        assert not has_bearer(given, "token"), given
