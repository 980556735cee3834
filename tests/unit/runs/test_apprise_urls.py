"""URLs of apprise: what a submit refuses says no word of them."""

from __future__ import annotations

import pytest

from orchestrator.errors import UsageError
from orchestrator.runs.notifications import hidden_values
from orchestrator.runs.record import NotifyEntry

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what apprise's plug-ins import
ENTRIES = (NotifyEntry(("failed",), apprise_env="CHANNELS"),)


def test_urls_that_apprise_knows_are_kept_under_their_variable() -> None:
    shell = {"CHANNELS": "json://me:canary@127.0.0.1/x ntfy://topic"}
    assert hidden_values(ENTRIES, shell) == shell


@pytest.mark.parametrize(
    ("urls", "said"),
    [("json://h nothing://canary", "URL 2 of 2 in CHANNELS"), ("canary", "URL 1 of 1"), ("", "notify: CHANNELS is")],
)
def test_others_are_refused_and_not_repeated(
    urls: str, said: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        hidden_values(ENTRIES, {"CHANNELS": urls})
    assert "canary" not in "".join([str(raised.value), *capfd.readouterr(), caplog.text])
    assert hidden_values(ENTRIES, {"CHANNELS": urls}, is_supervised_here=False) == {
        "CHANNELS": urls
    }  # looked at where it is used


def test_a_variable_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="notify needs CHANNELS"):
        hidden_values(ENTRIES, {})
