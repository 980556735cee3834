"""Mutual TLS 1.3 between the nodes of a run. All nodes share one key pair, and a peer that has it is a member."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from asyncio import sslproto
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.node.agent.channel import MAX_LINE, Channel, ChannelError
from orchestrator.node.system.host import lacks_tls

if TYPE_CHECKING:  # some builds of Python lack ssl, which a run on one node does not need
    import ssl

CONNECT_SECONDS = 3.0
PROOF_SECONDS = 10.0  # the time for a peer to authenticate itself; if many have not, the oldest are closed sooner
ANSWER_SECONDS = 20.0  # long, because the other side may have to answer a thousand nodes at once
BUFFER_BYTES = (
    32 << 10
)  # of TLS data that asyncio reads at once; its default is 256 KiB per connection, or 256 MiB for a thousand nodes


class NoTlsError(Exception):
    """This Python does not support TLS 1.3."""


@dataclass(frozen=True)
class Tls:
    """The credentials of one start of a run, for connections in both directions."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: bytes  # DER

    @staticmethod
    def of(credentials: str) -> Tls:
        """Load credentials (PEM). Raises NoTlsError with the reason if this Python can't use TLS 1.3."""
        if lack := lacks_tls():
            raise NoTlsError(lack)
        import ssl

        if hasattr(sslproto.SSLProtocol, "max_size"):  # before Python 3.11, asyncio has no setting for this
            sslproto.SSLProtocol.max_size = BUFFER_BYTES
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False  # the certificate contains no host name, because all nodes share it
        server.num_tickets = 0  # no session is resumed, so each connection authenticates itself
        # OpenSSL can read a key only from a file. This file has no name, and is deleted when it is closed.
        with tempfile.TemporaryFile() as file:
            file.write(credentials.encode())
            file.flush()
            for context in (server, client):
                context.minimum_version = ssl.TLSVersion.TLSv1_3
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
                context.load_verify_locations(cadata=_certificate_of(credentials))
        return Tls(server, client, ssl.PEM_cert_to_DER_cert(_certificate_of(credentials)))

    async def accept(self, sock: socket.socket) -> Channel:
        """Return the channel to a member that has connected. Raises OSError or ChannelError if the peer is no
        member.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=self.server, ssl_handshake_timeout=PROOF_SECONDS
        )
        return self._proven(Channel(reader, asyncio.StreamWriter(transport, protocol, reader, loop)))

    async def connect(self, addr: str, port: int) -> Channel:
        """Connect to a member at this address, and return the channel. Raises OSError, TimeoutError or ChannelError
        on failure.
        """
        sock = await asyncio.wait_for(_dialled(addr, port), CONNECT_SECONDS)
        streams = await asyncio.open_connection(
            sock=sock, limit=MAX_LINE, ssl=self.client, server_hostname="", ssl_handshake_timeout=ANSWER_SECONDS
        )
        return self._proven(Channel(*streams))

    def _proven(self, channel: Channel) -> Channel:
        """Return the channel if the peer's certificate is the run's own. A certificate that the run's certificate has
        signed is refused.
        """
        shown = channel.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if shown != self.certificate:
            channel.writer.transport.abort()
            raise ChannelError("the program that listens at this address does not have this run's certificate")
        return channel


def _certificate_of(credentials: str) -> str:
    end = "-----END CERTIFICATE-----\n"
    return credentials.partition(end)[0] + end


async def _dialled(addr: str, port: int) -> socket.socket:
    """Resolve the host name, and return a connection to the first of its addresses on which a process listens."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"{addr} has no address")
    try:
        found = await loop.getaddrinfo(addr, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {addr!r}") from error
    for family, kind, protocol, _, where in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, where)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


def in_words(error: BaseException) -> str:
    """Return a text that explains why a member could not be reached."""
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionAbortedError):  # asyncio raises this if a handshake takes too long
        return f"it did not prove to belong to this run within {ANSWER_SECONDS:g} s"
    if isinstance(error, ConnectionError):
        return "it closed the connection before it had proved to belong to this run"
    reason = getattr(error, "reason", None)  # only OpenSSL's errors have this attribute
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return "the program that listens at this address does not have this run's certificate"
    return "something else listens there" if reason is not None else str(error)
