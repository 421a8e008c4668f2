"""Certificates of a running broker: required at its start, reloaded when their files change.

Incomplete TLS settings are refused; a broker without TLS listens only on this machine, unless it is `insecure`.

Loaded certificates are never replaced by invalid ones. A renewal replaces two files, one after the other. While
certificate and key do not match, the loaded ones stay in use, and the next connection checks again. Open streams stay
open: TLS uses certificates only when a connection begins. Each new connection to the gRPC or HTTP port gets the current
certificates.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc

from venus.config import SecuritySettings, Settings
from venus.errors import ConfigError
from venus.security import pem
from venus.security.identity import IdentityDirectory, read_tokens
from venus.security.roles import roles_of

HINT = (
    "either use TLS (venus certs init makes a first set of certificates; docs/how-to/tls.md), "
    "or set insecure = true in [security], if every client that reaches this address may read and change every row"
)


def check_listeners(settings: Settings) -> None:
    """Raise ConfigError for unknown roles, for incomplete TLS settings, and for an open listener without TLS."""
    own = settings.security
    for texts in own.roles.values():
        roles_of(texts)
    if own.certificate:
        _check_complete(own)
        if settings.cluster.name and not own.ca:
            raise ConfigError(
                "this broker has a cluster and TLS, and security.ca is not set: it would trust no other broker",
                hint="name the authority of the brokers' certificates, which need the role broker",
            )
        return
    for option in ("token_file", "roles"):
        if getattr(own, option):
            raise ConfigError(
                f"security.{option} is set, and the broker has no TLS: security.certificate is not set",
                hint="roles are checked on connections with TLS only: venus certs init makes a first set",
            )
    if not own.insecure:
        _check_listeners(settings)


def _check_complete(own: SecuritySettings) -> None:
    """Raise ConfigError if the key, or what client_auth needs, is not configured."""
    if not own.key:
        raise ConfigError("security.certificate is set and security.key is not", hint="name the certificate's key")
    if own.client_auth == "certificate" and not own.ca:
        hint = 'name the authority whose clients may connect, or client_auth = "token" and a token_file'
        raise ConfigError("security.client_auth is certificate, and security.ca is not set", hint=hint)
    if own.client_auth == "token" and not own.token_file:
        hint = "venus certs token makes a line for it"
        raise ConfigError("security.client_auth is token, and security.token_file is not set", hint=hint)


def _check_listeners(settings: Settings) -> None:
    """Raise ConfigError if other machines can reach a listener, which has no TLS."""
    for option in ("listen", "http"):
        address = getattr(settings.broker, option)
        if address and not is_loopback(address.rpartition(":")[0].strip("[]")):
            raise ConfigError(f"broker.{option} {address} can be reached from other machines, without TLS", hint=HINT)


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable from this machine only; a name must have no other addresses."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return host == "localhost"
    return all(ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Material:
    """The loaded files of [security]: the broker's certificate, the clients' authority, and roles."""

    pair: pem.Pair
    #: None: clients need no certificate.
    ca: bytes | None
    directory: IdentityDirectory


class CertificateFiles:
    """The files of [security]; thread-safe."""

    def __init__(self, settings: SecuritySettings, clock: Callable[[], datetime]) -> None:
        """Read and check all files. Raises ConfigError."""
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._material = self._read()
        self._complaint = ""
        #: How often new files were loaded.
        self.renewals = 0

    def current(self) -> Material:
        """Return the material in use, after a check for new files."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._seen:
                self._renew(stamps)
            return self._material

    def _renew(self, stamps: list[tuple[int, ...]]) -> None:
        """Load changed files, unless they are invalid."""
        try:
            self._material = self._read()
        except (ConfigError, OSError) as error:  # between two files of one renewal: the next connection checks again
            if str(error) != self._complaint:
                logger.warning("renewed files of [security] are not used yet: %s", error)
            self._complaint = str(error)
            return
        self._seen, self._complaint = stamps, ""
        self.renewals += 1
        logger.info("renewed files of [security] are in use, until %s", pem.day(self._end()))

    def problems(self) -> list[str]:
        """Return the problems that need an operator."""
        material, found = self.current(), []
        if self._complaint:
            found.append(f"renewed files of [security] cannot be used: {self._complaint}")
        left = self._end() - self._clock()
        if left < pem.ENDING:
            when = f"expires on {pem.day(self._end())}" if left.total_seconds() > 0 else "has expired"
            found.append(
                f"the broker's certificate ({pem.subject_texts(material.pair.certificate)[0]}) {when}: renew it"
            )
        return found

    def _end(self) -> datetime:
        """Return when the certificate in use expires."""
        return self._material.pair.certificate.not_valid_after_utc

    def _read(self) -> Material:
        """Read and check the files of [security]. Raises ConfigError."""
        own, now = self._settings, self._clock()
        pair = pem.pair(Path(own.certificate), Path(own.key), now)
        ca = pem.authorities(Path(own.ca), now) if own.client_auth == "certificate" or own.ca else None
        tokens = read_tokens(Path(own.token_file)) if own.token_file else {}
        return Material(
            pair, ca, IdentityDirectory(tokens, {name: roles_of(texts) for name, texts in own.roles.items()})
        )

    def _stamps(self) -> list[tuple[int, ...]]:
        """Return the stamp of each configured file, which shows whether it was replaced."""
        own = self._settings
        return [_stamp(name) for name in (own.certificate, own.key, own.ca, own.token_file) if name]


def _stamp(name: str) -> tuple[int, ...]:
    """Return the file's attributes that change when it is replaced; () if it does not exist."""
    try:
        found = os.stat(name)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


def open_files(settings: SecuritySettings, advertised: str, clock: Callable[[], datetime]) -> CertificateFiles:
    """Return the files of a broker that clients reach as `advertised`. Raises ConfigError."""
    files = CertificateFiles(settings, clock)
    if host := _host(advertised):
        pem.check_host(files.current().pair.certificate, host)
    return files


def _host(advertised: str) -> str:
    """Return the host that clients connect to; "" for a wildcard address."""
    host = advertised.rpartition(":")[0].strip("[]")
    return "" if host in ("", "0.0.0.0", "::") else host


def grpc_credentials(files: CertificateFiles, on_begin: Callable[[], None]) -> grpc.ServerCredentials:
    """Return the credentials of the gRPC port; `on_begin` is called for each connection, from a thread of gRPC.

    gRPC replaces its handshakers for each configuration that it is given, and counts their references without a lock:
    with a new configuration for each connection, some hundred simultaneous handshakes ended the process (grpcio 1.85).
    So gRPC gets a new configuration only after a renewal of the files.
    """
    first = files.current()
    lock, given = threading.Lock(), [first]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Return the renewed certificates at the start of a connection, None if they have not changed."""
        on_begin()
        with lock:
            current = files.current()
            if current is given[0]:
                return None
            given[0] = current
        return _configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first),
        fetch,  # type: ignore[arg-type]  # None is no change, which the stubs do not say
        require_client_authentication=first.ca is not None,
    )


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    """Return the certificates in the form of gRPC."""
    return grpc.ssl_server_certificate_configuration([(material.pair.key, material.pair.chain)], material.ca)


class HttpContext(ssl.SSLContext):
    """Context of the HTTP port: passes each connection to a context made of the newest files.

    A context cannot forget an authority that it has loaded, so a renewal needs a new context. Browsers mostly have no
    certificate: one is used if present, and otherwise a token suffices.
    """

    _files: CertificateFiles
    _made_of: Material | None
    _now: ssl.SSLContext

    @classmethod
    def of(cls, files: CertificateFiles) -> HttpContext:
        """Return a context for these files."""
        self = cls(ssl.PROTOCOL_TLS_SERVER)
        self._files, self._made_of = files, None
        self._renew()
        return self

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:  # asyncio's own call for each connection
        """Start TLS on a connection."""
        return self._renew().wrap_bio(*arguments, **options)

    def _renew(self) -> ssl.SSLContext:
        """Return the context of the newest files."""
        material = self._files.current()
        if material is not self._made_of:
            self._now, self._made_of = _context(material), material
        return self._now


def _context(material: Material) -> ssl.SSLContext:
    """Return a TLS context of the HTTP port with these certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if material.ca is not None:
        context.load_verify_locations(cadata=material.ca.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
    with tempfile.TemporaryDirectory(prefix="venus-") as folder:  # 0700: Python reads chains from files only
        chain, key = Path(folder, "chain"), Path(folder, "key")
        chain.write_bytes(material.pair.chain)
        key.touch(mode=0o600)
        key.write_bytes(material.pair.key)
        context.load_cert_chain(chain, key)
    return context
