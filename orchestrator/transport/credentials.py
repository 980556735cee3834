"""The key pair of one start of a run. Only the run's nodes have the pair, so a node proves with it that it belongs
to the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.protocol.task import NodeTask


def new_credentials() -> str:
    """Make a private key on the curve P-256 and its self-signed certificate, both as PEM.

    The certificate is valid at all times, because a node's clock may be wrong and a run has no maximum length.
    """
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orch run")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(1970, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return (certificate.public_bytes(pem) + private).decode()


def credentials_for(nnodes: int) -> str:
    """Make the credentials for a start with this number of nodes; "" for a single node, which connects to no other
    node.
    """
    return new_credentials() if nnodes > 1 else ""


def with_credentials(tasks: tuple[NodeTask, ...], credentials: str, secrets: Mapping[str, str]) -> tuple[NodeTask, ...]:
    """Return the tasks, completed with the start's credentials and the values of the secrets. Only the nodes may
    receive these tasks.
    """
    return tuple(replace(task, credentials=credentials, secrets=dict(secrets)) for task in tasks)
