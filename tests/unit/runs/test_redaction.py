"""What must not leave this machine, by its value in any form, and by its own form under any name."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from orchestrator.protocol.masking import mask
from orchestrator.runs.redaction import Redaction, redaction

VALUE = "s3cr&t/valüe+1 2"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\nZXktdjE=\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize("before", ["", "u:", "me:", "user:"])
def test_a_known_value_is_found_in_every_form(before: str) -> None:
    raw = VALUE.encode()
    forms = [VALUE, quote(raw), quote(raw, safe=""), quote_plus(raw), raw.hex(), json.dumps(VALUE)]
    for form in forms:
        assert mask(f"it sent {form}!", {"TOKEN": VALUE}).replace('"', "") == "it sent ***!"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        coded = encode(f"{before}{VALUE}:after".encode()).decode()
        left = mask(coded, {"TOKEN": VALUE})
        assert "***" in left
        assert len(left) <= len(coded) - len(raw)


def test_a_short_value_goes_only_with_its_name() -> None:
    text = 'PIN=1234567 {"PIN": "1234567"} 1234567'
    assert mask(text, {"PIN": "1234567"}, shortest=8) == 'PIN=*** {"PIN": "***"} 1234567'


@pytest.mark.parametrize(
    "token",
    [
        "ghp_" + "aB3" * 12, "gho_" + "aB3" * 12,
        "github_pat_" + "11ABC_de" * 8, "glpat-" + "aB3-" * 5, "hf_" + "aBc" * 11,
        "sk-" + "aB3" * 16, "sk-proj-" + "aB-3_" * 10, "xoxb-123456789012-abcdef", "AKIAIOSFODNN7EXAMPLE", KEY,
        KEY.replace("\n", "\\n"), KEY.replace("OPENSSH ", ""), KEY.replace("OPENSSH", "RSA"),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl-_", KEY.partition("-----END")[0].strip(),
    ],
)  # fmt: skip
def test_what_has_the_form_of_a_token_is_taken_out(token: str) -> None:
    assert Redaction().text(f"x {token}\n(done)").replace("\n", "") in ("x ***(done)", "x *** (done)")


def test_addresses_and_netrc() -> None:
    text = Redaction().text("POST https://hooks.slack.com/services/T0/B0/abc now")
    assert text == "POST https://hooks.slack.com/*** now"
    netrc = "machine a.org login me password hunter2 machine b.org\n  login you\n  password hunter3\n"
    assert Redaction().text(netrc) == netrc.replace("hunter2", "***").replace("hunter3", "***")


@pytest.mark.parametrize(
    "text",
    [
        "the password is wrong", "login failed: password refused by host", "sk-learn-contrib-is-a-long-package-name",
        "hf_hub", "step_00000001", "AKIAB", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "eyJ.eyJ.x",
    ],
)  # fmt: skip
def test_innocent_words_stay(text: str) -> None:
    assert Redaction().text(text) == text


@pytest.mark.parametrize(
    "piece",
    ["-----BEGIN PRIVATE KEY-----", "sk-", "eyJaaaaaaaaaa.", "login a ", "password ", "hf_a", "ghp_", "A" * 50 + "/+="],
)
def test_no_text_takes_long(piece: str) -> None:
    """Not a duration: what grows with the square of the text would not come back from this."""
    text = piece * (2_000_000 // len(piece))
    assert len(Redaction(frozenset({"TOKEN": VALUE}.items())).text(text)) <= len(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["--api-key", "x", "kept"], ["--api-key", "***", "kept"]),
        (["--token=x", "kept"], ["--token=***", "kept"]),
        (["api-key", "kept"], ["api-key", "kept"]),
        (["token=x", "kept"], ["token=***", "kept"]),
        (["--lr", "kept", "-token", 5], ["--lr", "kept", "-token", "***"]),
        ([5, "kept", None], [5, "kept", None]),
        (("--token", ["x"]), ["--token", "***"]),
        ([], []),
        ({"token": "x", "names": ["x"]}, {"token": "***", "names": ["x"]}),
        ({"token": "", "auth": 5, "keys": ["x", ""]}, {"token": "", "auth": 5, "keys": ["***", ""]}),
        ({"secrets": ["HF_TOKEN"], "secret_names": "HF_TOKEN"}, {"secrets": ["HF_TOKEN"], "secret_names": "HF_TOKEN"}),
        ({f"of {VALUE}": [VALUE, {"text": VALUE}]}, {"of ***": ["***", {"text": "***"}]}),
        ([{"text": "a"}, {"text": 5}, {}], [{"text": "a"}, {"text": 5}, {}]),
        ([f"{KEY}\n", "b", "c"], ["***\n\n\n\n", "b", "c"]),
    ],
)  # fmt: skip
def test_json_is_redacted_by_the_names_of_fields_and_options(value: object, shown: object) -> None:
    assert Redaction(frozenset({("TOKEN", VALUE)})).json(value) == shown


@pytest.mark.parametrize("wrap", [str, lambda line: {"offset": 1, "text": line}])
def test_a_key_over_several_lines_of_a_list_is_taken_out_and_the_lines_stay(wrap: Callable[[str], object]) -> None:
    lines = ["before", *KEY.splitlines(), "after"]
    shown = ["before", "***", "", "", "", "after"]
    assert Redaction().json([wrap(line) for line in lines]) == [wrap(line) for line in shown]


def test_lines_that_a_value_joins_stay_in_their_places() -> None:
    redact = Redaction(frozenset({("TWO", "first line\nsecond line")}))
    assert redact.json(["a", "first line", "second line", "b"]) == ["a", "***", "***", "b"]


def test_a_file_of_json_lines_keeps_its_lines() -> None:
    text = 'x token=y\n\n  \n{"token": "y", "a": 1}\n[1\n'
    assert Redaction().lines(text) == 'x token=***\n\n  \n{"token": "***", "a": 1}\n[1\n'


@pytest.mark.parametrize(
    ("home", "user", "text", "shown"),
    [
        ("/home/jo", "jo", "/home/jo/x /home/jo.bak /home/john jo-1 ajo", "~/x /home/USER.bak /home/john USER-1 ajo"),
        ("/", "j", "/ /x j", "/ /x j"),
        ("/root", "root", "root has /root and /root/x", "root has ~ and ~/x"),
        ("", "", "any text", "any text"),
    ],
)
def test_the_home_folder_and_the_users_name(home: str, user: str, text: str, shown: str) -> None:
    assert Redaction(home=home, user=user).text(text) == shown
    assert Redaction(home=home, user=user).known(text) == text


def test_names_alone_mask_no_command() -> None:
    line = "--max-tokens 5 key=1 https://me:pw@host/"
    assert Redaction().known(line) == "--max-tokens 5 key=1 https://***@host/"


@pytest.mark.parametrize("words", ["['--api-key', 'x', 'y']", '["--api-key", "x", "y"]'])
def test_a_list_that_is_printed_is_redacted_like_a_list(words: str) -> None:
    quote_mark = words[1]
    assert Redaction().text(words) == words.replace(f"{quote_mark}x{quote_mark}", "***")
    assert Redaction().text(words.replace("x", "--lr")) == words.replace("x", "--lr")


def test_what_is_taken_out_follows_from_all_environments_and_names() -> None:
    one = {"PIN": "1234", "A_TOKEN": "12345678", "B_TOKEN": "1234567", "WORD": "plain-word"}
    other = {"A_TOKEN": "another-token", "PIN": "5678"}
    third = {"A_TOKEN": "a-third-token"}
    found = redaction([one, other, third], ["PIN", "ABSENT"], "/h", "u", ["https://x/abc", "short"])
    assert (found.home, found.user) == ("/h", "u")
    assert {value for _, value in found.values} == {
        "1234", "5678", "12345678", "another-token", "a-third-token", "https://x/abc"
    }  # fmt: skip


def test_a_secret_that_is_too_short_for_any_text_goes_with_its_name_of_each_run() -> None:
    found = redaction([{"PIN": "12"}, {"PIN": "34"}], ["PIN"], "", "")
    assert found.known('12 34 PIN=12 PIN=34 "PIN": "34"') == '12 34 PIN=*** PIN=*** "PIN": "***"'
