"""Certificates for tests: a separate authority, and certificates with common faults."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.message import Message
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.ports import free_port
from venus.config import BrokerSettings, SecuritySettings, Settings
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.security.authority import create_authority, issue_certificate

HOSTS = ("localhost", "127.0.0.1")
#: Validity of an authority in days, so that its certificates may be older than a test.
AGE_DAYS = 10
EVERYTHING = ("producer(*)", "consumer(*, *)", "operator")


class Authority:
    """A folder with an authority, a broker's certificate, and those that a test requests."""

    def __init__(self, folder: Path, *, hosts: tuple[str, ...] = HOSTS) -> None:
        self.folder = folder
        create_authority(folder, datetime.now(UTC) - timedelta(days=AGE_DAYS))
        self.ca = str(folder / "ca.crt")
        self.issue("broker", hosts=hosts)

    def issue(
        self,
        name: str,
        *roles: str,
        hosts: tuple[str, ...] = (),
        replace: bool = False,
        age_days: int = 0,
        days: int = 30,
    ) -> Path:
        """Issue a certificate; if `age_days` exceeds `days`, it has expired."""
        then = datetime.now(UTC) - timedelta(days=age_days)
        made, _ = issue_certificate(self.folder, name, then, roles=roles, hosts=hosts, days=days, replace=replace)
        return made

    def security(self, name: str = "broker", **options: Any) -> SecuritySettings:
        """Return the [security] section of a broker."""
        own = {"certificate": str(self.folder / f"{name}.crt"), "key": str(self.folder / f"{name}.key"), "ca": self.ca}
        return SecuritySettings(**(own | options))

    def settings(self, data_dir: Path, **options: Any) -> Settings:
        """Return the settings of a broker on free ports."""
        broker = BrokerSettings(listen=f"127.0.0.1:{free_port()}", http="127.0.0.1:0", data_dir=data_dir)
        return Settings(broker=broker, security=self.security(**options))

    def proof(self, name: str, *roles: str) -> ClientCredentials:
        """Issue a certificate with these roles; return the credentials of a client that has it."""
        path = self.folder / f"{name}.crt"
        if not path.exists():
            self.issue(name, *roles)
        return ClientCredentials(ca=self.ca, certificate=str(path), key=str(path.with_suffix(".key")))

    def address(self, text: str, name: str, *roles: str) -> BrokerAddress:
        """Return a broker's address for a client with these roles."""
        return BrokerAddress(text, self.proof(name, *roles))


def self_signed(folder: Path) -> tuple[str, str]:
    """Make a self-signed certificate, as many services do at their first start."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    certificate, secret = folder / "self.crt", folder / "self.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    secret.touch(mode=0o600)
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return str(certificate), str(secret)


def token_file(path: Path, *lines: str) -> str:
    """Write a file of tokens."""
    path.write_text("# who comes with a token\n" + "\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


def serial(address: str) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=60) as plain, context.wrap_socket(plain) as secured:
        return str(secured.getpeercert(binary_form=True))


class Answer(NamedTuple):
    """Answer of an HTTP server."""

    code: int
    text: str
    headers: Message


def get(address: str, path: str, proof: ClientCredentials, authorization: str = "") -> Answer:
    """Request a page over TLS."""
    context = ssl.create_default_context(cafile=proof.ca)
    if proof.certificate:
        context.load_cert_chain(proof.certificate, proof.key)
    request = Request(f"https://{address}{path}", headers={"Authorization": authorization} if authorization else {})
    try:
        with urlopen(request, context=context, timeout=60) as answer:
            return Answer(answer.status, answer.read().decode(), answer.headers)
    except HTTPError as error:
        return Answer(error.code, error.read().decode(), error.headers)
