"""Addresses as people write them, and the command that reaches the same machine by hand."""

from __future__ import annotations

import pytest

from orchestrator.errors import BackendError
from orchestrator.specs.profile import SshProfile
from orchestrator.transport.address import Address, parse_address
from orchestrator.transport.connection import _in_words
from orchestrator.transport.openssh import Resolved
from tests.profiles import valid_profile


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("n1", Address("n1")),
        ("carol@n1:2222", Address("n1", "carol", 2222)),
        ("fd00::2", Address("fd00::2")),
        ("[fd00::2]", Address("fd00::2")),
        ("carol@[fd00::2]:2222", Address("fd00::2", "carol", 2222)),
    ],
)
def test_an_address_may_be_of_ipv6(text: str, address: Address) -> None:
    assert parse_address(text) == address
    profile = valid_profile({"kind": "ssh", "name": "lab", "hosts": [text], "nproc_per_node": 1})
    assert isinstance(profile, SshProfile)
    (host,) = profile.hosts
    assert (host.host, host.user, host.port) == (address.host, address.user, address.port)


def test_a_hint_logs_in_as_orch_does() -> None:
    address = Address("n1", "carol", 2222, None, "gate")
    assert address.ssh_command == "ssh -p 2222 -J gate carol@n1"
    error = _in_words(address, Resolved("10.0.0.1", "carol", 2222), TimeoutError())
    assert isinstance(error, BackendError)
    assert error.hint == "try: ssh -p 2222 -J gate carol@n1"


def test_a_key_that_does_not_exist_is_named() -> None:
    error = _in_words(Address("n1", key="/nowhere/key"), Resolved("10.0.0.1"), OSError("No methods available"))
    assert error.message == "n1 (10.0.0.1:22): the key /nowhere/key does not exist"
