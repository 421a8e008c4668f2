"""Certificates and keys in files, checked before they are used: each error is one line with its remedy.

The library for certificates is imported only where it is used: it takes 9 MiB and more time to import than all of
VENUS, and a process without TLS does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from venus.errors import ConfigError
from venus.security.secrets import read_file, read_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

#: A certificate that ends within this time is an alarm.
ENDING = timedelta(days=21)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, as PEM; `chain` begins with the certificate itself."""

    chain: bytes
    key: bytes
    certificate: Certificate


def certificates(path: Path, option: str) -> list[Certificate]:
    """Read the certificates of a PEM file. Raises ConfigError."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(read_file(path, option))
    except ValueError:
        hint = "a certificate begins with -----BEGIN CERTIFICATE-----"
        raise ConfigError(f"{option} {path} holds no certificate in PEM form", hint=hint) from None


def pair(certificate: Path, key: Path, now: datetime, section: str = "security.") -> Pair:
    """Read a certificate and its key. Raises ConfigError if the two do not match or may not be used now.

    `section` is the prefix of the options `certificate` and `key`.
    """
    first = certificates(certificate, f"{section}certificate")[0]
    check_time(first, f"{section}certificate {certificate}", now)
    secret = read_secret(key, f"{section}key")
    if public_bytes(private_key(secret, key, section).public_key()) != public_bytes(first.public_key()):
        raise ConfigError(
            f"{section}key {key} does not belong to {section}certificate {certificate}",
            hint="name the two files that were made together",
        )
    return Pair(read_file(certificate, f"{section}certificate"), secret, first)


def private_key(content: bytes, path: Path, section: str = "security.") -> PrivateKeyTypes:
    """Return a private key. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        return serialization.load_pem_private_key(content, password=None)
    except TypeError:
        hint = f"openssl pkey -in {path} -out plain.key; chmod 600 plain.key"
        raise ConfigError(f"{section}key {path} is encrypted; VENUS needs it without a passphrase", hint=hint) from None
    except (ValueError, UnsupportedAlgorithm):
        hint = "a key begins with -----BEGIN PRIVATE KEY----- or -----BEGIN EC PRIVATE KEY-----"
        raise ConfigError(f"{section}key {path} holds no private key in PEM form", hint=hint) from None


def public_bytes(key: object) -> bytes:
    """Return a public key in one comparable form."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined, no-any-return]


def authorities(path: Path, now: datetime, section: str = "security.") -> bytes:
    """Read the trusted authorities. Raises ConfigError if none of them is valid now."""
    found = certificates(path, f"{section}ca")
    if all(each.not_valid_after_utc <= now for each in found):
        check_time(found[0], f"{section}ca {path}", now)
    return read_file(path, f"{section}ca")


def check_time(certificate: Certificate, what: str, now: datetime) -> None:
    """Raise ConfigError for a certificate that has expired or is not valid yet."""
    if certificate.not_valid_after_utc <= now:
        hint = "renew it (venus certs issue, or your own authority), and put the new files in its place"
        raise ConfigError(f"{what} expired on {day(certificate.not_valid_after_utc)}", hint=hint)
    if certificate.not_valid_before_utc > now:
        begin = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise ConfigError(f"{what} is not valid before {begin}", hint="check the clock of this machine")


def check_host(certificate: Certificate, host: str) -> None:
    """Raise ConfigError if a client that asks for this host would refuse the certificate."""
    names = hosts(certificate)
    if not any(_fits(name, host) for name in names):
        raise ConfigError(
            f"security.certificate is for {', '.join(names) or 'no host'}, and clients ask for {host}",
            hint=f"venus certs issue NAME --host {host}, or set broker.address to a host that it names",
        )


def hosts(certificate: Certificate) -> list[str]:
    """Return the hosts and addresses that a certificate is for."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _fits(name: str, host: str) -> bool:
    """Return whether a name in a certificate, perhaps with a wildcard, covers a host."""
    try:
        return ip_address(name) == ip_address(host)
    except ValueError:
        name, host = name.lower(), host.lower()
        return name == host or (name.startswith("*.") and host.partition(".")[2] == name[2:])


def subject_texts(certificate: Certificate) -> tuple[str, list[str]]:
    """Return the common name, or the whole subject without one, and the organisational units."""
    from cryptography.x509.oid import NameOID

    names = [str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return (names[0] if names else certificate.subject.rfc4514_string()), [str(unit.value) for unit in units]


def day(moment: datetime) -> str:
    """Format a date as YYYY-MM-DD."""
    return f"{moment.astimezone(UTC):%Y-%m-%d}"
