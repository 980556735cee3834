"""What must not leave this machine, by its value in any form, and by its own form under any name."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from orchestrator.protocol.masking import mask
from orchestrator.runs.redaction import Redaction

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
