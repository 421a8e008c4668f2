"""Private certificate authority for a first set-up: it signs certificates for brokers and adapters only."""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from venus.errors import ConfigError, Refused
from venus.security.identity import roles_in
from venus.security.pem import certificates, check_time, private_key, public_bytes
from venus.security.pem import hosts as hosts_of
from venus.security.roles import parse
from venus.security.secrets import read_secret

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
#: Clocks differ, so a certificate is valid from shortly before it was made.
EARLIER = timedelta(minutes=5)
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
#: Limit of X.509 for a common name and for an organisational unit.
TEXT_CHARS_MAX = 64


def create_authority(folder: Path, now: datetime, *, days: int = AUTHORITY_DAYS) -> Path:
    """Create an authority in a folder and return its certificate.

    Raises Refused if the folder has an authority, ConfigError if the folder cannot be created.
    """
    if (folder / CA_KEY).exists() or (folder / CA_CERTIFICATE).exists():
        raise Refused(f"{folder} has an authority already", hint="venus certs issue NAME makes certificates with it")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be created: {error.strerror}", hint="name another folder") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "VENUS private authority")])
    usage = {"key_cert_sign": True, "crl_sign": True}
    builder = (
        _builder(name, name, key, now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(**usage), critical=True)
    )
    _write_private(folder / CA_KEY, _pem(key))
    return _write(folder / CA_CERTIFICATE, builder.sign(key, hashes.SHA256()))


def issue_certificate(
    folder: Path,
    name: str,
    now: datetime,
    *,
    roles: Seq[str] = (),
    hosts: Seq[str] = (),
    days: int = CERTIFICATE_DAYS,
    replace: bool = False,
) -> tuple[Path, Path]:
    """Make NAME.crt and NAME.key, signed by the folder's authority.

    Raises ConfigError for an invalid role or host and for an authority that cannot sign, Refused if the files exist
    and `replace` is not set.
    """
    subject = _subject(name, roles)
    authority, authority_key = _authority(folder, now)
    if (now + timedelta(days=days)) > authority.not_valid_after_utc:
        days = (authority.not_valid_after_utc - now).days
    certificate, secret = folder / f"{name}.crt", folder / f"{name}.key"
    if not replace and (certificate.exists() or secret.exists()):
        raise Refused(f"{certificate} is there already", hint="--renew replaces certificate and key")
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = (
        _builder(subject, authority.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(_issuer(authority), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    signed = builder.sign(authority_key, hashes.SHA256())
    _write_private(secret, _pem(key))
    return _write(certificate, signed), secret


def describe_certificate(certificate: Path) -> tuple[list[str], list[str]]:
    """Return the roles and hosts of an existing certificate. Raises ConfigError."""
    found = certificates(certificate, "certificate")[0]
    return sorted(map(str, roles_in(found))), hosts_of(found)


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority's certificate and key. Raises ConfigError."""
    if not (folder / CA_KEY).exists():
        hint = f"venus certs init {folder}, or -d FOLDER"
        raise ConfigError(f"{folder} has no authority: {CA_KEY} is missing", hint=hint)
    certificate = certificates(folder / CA_CERTIFICATE, "authority")[0]
    check_time(certificate, f"authority {folder / CA_CERTIFICATE}", now)
    key = private_key(read_secret(folder / CA_KEY, "authority's key"), folder / CA_KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or public_bytes(key.public_key()) != public_bytes(
        certificate.public_key()
    ):
        raise ConfigError(f"{folder / CA_KEY} does not belong to {CA_CERTIFICATE}", hint="restore both from one backup")
    return certificate, key


def _subject(name: str, roles: Seq[str]) -> x509.Name:
    """Return the subject of a certificate. Raises ConfigError for an invalid name or role."""
    if not name or len(name) > TEXT_CHARS_MAX or not name.isprintable() or "/" in name or name.startswith("."):
        hint = f"1 to {TEXT_CHARS_MAX} printable characters, no slash: it is also the name of its files"
        raise ConfigError(f"{name!r} cannot be the name of a certificate", hint=hint)
    if f"{name}.crt" == CA_CERTIFICATE:
        raise ConfigError(f"{name!r} is the authority's own name", hint="choose another name")
    written = [str(parse(role)) for role in roles]
    for role in written:
        if len(role) > TEXT_CHARS_MAX:
            hint = f'give it to the name instead: [security.roles] "{name}" = ["{role}"]'
            raise ConfigError(f"role {role} is too long for a certificate ({TEXT_CHARS_MAX} characters)", hint=hint)
    units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role) for role in written]
    return x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    """Return a host name or IP address in the form of a certificate. Raises ConfigError."""
    try:
        return x509.IPAddress(ip_address(text.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a host name", hint="a name in ASCII, or an IP address") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    """Return a certificate builder with the common fields set."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _issuer(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the extension that names the authority's key."""
    own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _usage(**allowed: bool) -> x509.KeyUsage:
    """Return the extension that allows these uses of the key and no others."""
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM without a password."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically; no other user can read it at any moment."""
    _replace(path, content, 0o600)


def _write(path: Path, certificate: x509.Certificate) -> Path:
    """Write a certificate as PEM."""
    return _replace(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _replace(path: Path, content: bytes, mode: int) -> Path:
    """Replace a file atomically. Raises ConfigError if it cannot be written."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="name a folder with -d FOLDER") from error
    return path
