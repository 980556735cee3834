"""The page's port is had at both loopback addresses, or not at all."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from orchestrator.errors import UsageError
from orchestrator.web import listening
from orchestrator.web.listening import close, listen, port_of


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


@needs_ipv6
def test_both_addresses_have_the_port() -> None:
    listeners = listen(0)
    assert [each.getsockname()[0] for each in listeners] == ["127.0.0.1", "::1"]
    assert {each.getsockname()[1] for each in listeners} == {port_of(listeners)}
    port = port_of(listeners)
    with pytest.raises(UsageError):
        listen(port)
    close(listeners)
    close(listen(port))


@needs_ipv6
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_that_is_taken_at_one_address_is_refused_and_its_user_named(family: int, host: str) -> None:
    with socket.create_server((host, 0), family=family) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            listen(port)
    assert f"port {port} of {host}: Address already in use" in caught.value.message
    assert f"(uid {os.geteuid()}) listens there" in caught.value.message
    close(listen(port))  # nothing of the first try is left


@needs_ipv6
def test_a_free_port_is_free_at_both_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, real = list[int](), listening._bound

    def bound(family: int, host: str, port: int) -> socket.socket:
        if family == socket.AF_INET6 and len(taken) < 3:
            taken.append(port)
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return real(family, host, port)

    monkeypatch.setattr(listening, "_bound", bound)
    listeners = listen(0)
    assert len(taken) == 3
    assert len(listeners) == 2
    close(listeners)


def test_a_machine_without_ipv6_has_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    real = listening._bound

    def bound(family: int, host: str, port: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(family, host, port)

    monkeypatch.setattr(listening, "_bound", bound)
    listeners = listen(0)
    assert len(listeners) == 1
    close(listeners)
