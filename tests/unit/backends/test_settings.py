"""What the backends read of a profile."""

from __future__ import annotations

from orchestrator.backends.settings import AgentsSettings, Host
from orchestrator.transport.address import Address
from tests.unit.profiles import profile_of


def test_the_profiles_words_hold_for_every_host_that_has_none_of_its_own() -> None:
    hosts = [{"host": "a"}, {"host": "b", "user": "you", "jump": "g"}]
    spare = {"host": "c", "addr": "10.0.0.9"}
    found = AgentsSettings.of(profile_of(hosts=hosts, user="me", port=23, nodes=2, spares=[spare]))
    assert [host.address for host in found.hosts] == [Address("a", "me", 23), Address("b", "you", 23, jump="g")]
    assert found.spares == (Host(Address("c", "me", 23), "10.0.0.9"),)


def test_what_a_profile_does_not_say_is_its_default() -> None:
    found = AgentsSettings.of(profile_of(hosts=["a"]))
    assert found == AgentsSettings((Host(Address("a")),), node_wait=1800.0)
