"""Who proves to belong to a run, and who does not: certificates, clocks, versions, buffers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from orchestrator.node.agent import channel as agent_channel
from orchestrator.node.agent import tls as agent_tls
from orchestrator.node.agent.channel import Channel, ChannelError
from orchestrator.node.agent.tls import BUFFER_BYTES, NoTlsError, Tls, in_words
from orchestrator.node.system import host
from orchestrator.protocol.messages import Trouble
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.transport.credentials import credentials_for, with_credentials
from tests.unit.node.agent.members import ANOTHER, CREDENTIALS, TLS, join, leader, raw, run

KEY = serialization.load_pem_private_key(CREDENTIALS[CREDENTIALS.index("-----BEGIN PRIVATE") :].encode(), None)
CERTIFICATE = x509.load_pem_x509_certificate(CREDENTIALS.encode())


def signed_by_the_run() -> Tls:
    """Contexts with a certificate that the run's key has signed, and that the run's nodes would therefore trust."""
    assert isinstance(KEY, ec.EllipticCurvePrivateKey)
    own = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")]))
        .issuer_name(CERTIFICATE.subject)
        .public_key(own.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made = Tls.of((certificate.public_bytes(pem) + key).decode())
    for context in (made.server, made.client):
        context.load_verify_locations(cadata=CREDENTIALS)
    return replace(made, certificate=TLS.certificate)


def test_a_peer_that_does_not_take_leave_holds_up_nobody_who_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_channel, "CLOSE_SECONDS", 0.1)

    async def main() -> None:
        one, other = socket.socketpair()
        silent, streams = await asyncio.gather(
            asyncio.to_thread(TLS.server.wrap_socket, one, server_side=True),
            asyncio.open_connection(sock=other, ssl=TLS.client, server_hostname=""),
        )
        channel, sock = Channel(*streams), streams[1].get_extra_info("socket")
        await asyncio.gather(channel.close(), channel.close())  # as the members' keeper and the listener do
        silent.close()
        for _ in range(3):  # an abort takes a turn of the loop; TLS alone would have waited for the peer for 30 s
            await asyncio.sleep(0)
        assert sock.fileno() == -1

    run(main)


def test_a_member_and_its_leader_speak_tls_1_3_with_the_runs_certificate() -> None:
    async def main() -> None:
        async with leader() as heard:
            channel = await join(heard.port)
            spoken = channel.writer.get_extra_info("ssl_object")
            assert (spoken.version(), spoken.getpeercert(binary_form=True)) == ("TLSv1.3", TLS.certificate)
            assert not spoken.session.has_ticket  # nothing is there to be resumed

    run(main)


@pytest.mark.parametrize("stranger", [ANOTHER, signed_by_the_run()], ids=["another run's", "signed by the run's key"])
def test_another_certificate_is_refused_on_both_sides(stranger: Tls) -> None:
    async def main() -> None:
        async with leader() as heard, leader(stranger) as impostor:
            with pytest.raises((ssl.SSLError, ChannelError)) as caught:
                await TLS.connect("127.0.0.1", impostor.port)
            assert (
                in_words(caught.value)
                == "the program that listens at this address does not have this run's certificate"
            )
            with pytest.raises(ChannelError):
                await join(heard.port, tls=stranger)
            assert (heard.joined, impostor.joined) == ([], [])

    run(main)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(), "refused"),
        (ConnectionAbortedError(), f"it did not prove to belong to this run within {agent_tls.ANSWER_SECONDS:g} s"),
        (ConnectionResetError(), "it closed the connection before it had proved to belong to this run"),
        (OSError("no route to host"), "no route to host"),
    ],
)
def test_why_a_member_could_not_be_reached_is_named(error: OSError, words: str) -> None:
    assert in_words(error) == words


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_one_without_a_certificate_is_told_nothing(version: ssl.TLSVersion) -> None:
    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, version
        async with leader() as heard:
            said = b""
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", heard.port, ssl=context)
                writer.write(b'{"to": "leader", "hello": {"node_rank": 1, "host": "x", "nproc": 1}}\n')
                said = await reader.read()
                writer.close()
            except OSError:
                pass
            assert (said, heard.joined, heard.told[:1]) == (b"", [], [{"127.0.0.1": 1}])

    run(main)


@pytest.mark.parametrize(
    "line",
    [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\n", b"{}\n{}\n", b"[" * 100_000 + b"\n", b"x" * 600_000],
    ids=["http", "half a hello", "json", "nested", "long"],
)
def test_garbage_is_turned_away_and_harms_nobody(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_tls, "PROOF_SECONDS", 0.3)

    async def main() -> None:
        async with leader() as heard:
            reader, writer = await raw(heard.port)
            said = b""
            try:
                writer.write(line)
                said = await reader.read()
            except ConnectionError:
                pass
            writer.close()
            assert b"{" not in said
            monkeypatch.setattr(agent_tls, "PROOF_SECONDS", 30.0)  # the short one was for the stranger
            await join(heard.port)
            assert len(heard.joined) == 1
            assert heard.listener.words() == "1 connection from 127.0.0.1 could not prove to belong to this run"

    run(main)


def test_no_clock_is_too_slow_or_too_fast_for_a_runs_certificate() -> None:
    assert CERTIFICATE.not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)
    assert CERTIFICATE.not_valid_after_utc == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_connection_keeps_no_quarter_of_a_mebibyte() -> None:
    async def main() -> None:
        async with leader() as heard:
            channel = await join(heard.port)
            for each in (channel, heard.server.members[1]):
                protocol = each.writer.transport._ssl_protocol  # type: ignore[attr-defined]
                assert isinstance(protocol, sslproto.SSLProtocol)
                assert len(protocol._ssl_buffer) == BUFFER_BYTES  # type: ignore[attr-defined]
            channel.send(Trouble("x" * 200_000).to_json())  # what is larger than that arrives all the same
            await heard.until(lambda: bool(heard.messages))
            assert heard.messages[0][1] == Trouble("x" * 200_000)

    run(main)


def test_a_python_without_tls_1_3_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.lacks_tls() == ""
    monkeypatch.setattr(ssl, "HAS_TLSv1_3", False)
    monkeypatch.setattr(ssl, "OPENSSL_VERSION", "OpenSSL 1.0.2k-fips")
    assert host.lacks_tls() == "its Python has OpenSSL 1.0.2k-fips, without TLS 1.3"
    with pytest.raises(NoTlsError, match="without TLS"):
        Tls.of(CREDENTIALS)


def test_only_a_start_with_several_nodes_has_credentials_and_all_its_nodes_the_same() -> None:
    assert credentials_for(1) == ""
    tasks = tuple(
        NodeTask(
            "r", node, 2, ("a", "b"), 1, "/r", "/c", Program("script", "t.py"), "fork", "gloo", "python3", (), (1, 2)
        )
        for node in range(2)
    )
    told = with_credentials(tasks, credentials_for(2), {"KEY": "value"})
    assert {task.credentials for task in told} != {""}
    assert len({task.credentials for task in told}) == 1
    assert [task.secrets for task in told] == [{"KEY": "value"}] * 2
    assert credentials_for(2) != told[0].credentials
