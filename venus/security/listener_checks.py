"""Start-up check of a broker's listeners: complete TLS settings, or none and no listener beyond this machine."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from venus.config import SecuritySettings, Settings
from venus.errors import ConfigError
from venus.security.roles import roles_of

HINT = (
    "either use TLS (venus certs init makes a first set of certificates; docs/how-to/tls.md), "
    "or set insecure = true in [security], if every client that reaches this address may read and change every row"
)


def check_listeners(settings: Settings) -> None:
    """Raise ConfigError for roles that do not exist, for half a configuration, and for an open listener without TLS."""
    own = settings.security
    for texts in own.roles.values():
        roles_of(texts)
    if own.certificate:
        _check_whole(own)
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


def _check_whole(own: SecuritySettings) -> None:
    if not own.key:
        raise ConfigError("security.certificate is set and security.key is not", hint="name the certificate's key")
    if own.client_auth == "certificate" and not own.ca:
        hint = 'name the authority whose clients may connect, or client_auth = "token" and a token_file'
        raise ConfigError("security.client_auth is certificate, and security.ca is not set", hint=hint)
    if own.client_auth == "token" and not own.token_file:
        hint = "venus certs token makes a line for it"
        raise ConfigError("security.client_auth is token, and security.token_file is not set", hint=hint)


def _check_listeners(settings: Settings) -> None:
    for option in ("listen", "http"):
        address = getattr(settings.broker, option)
        if address and not is_loopback(address.rpartition(":")[0].strip("[]")):
            raise ConfigError(f"broker.{option} {address} can be reached from other machines, without TLS", hint=HINT)


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable from this machine only; a name counts by all of its addresses."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return host == "localhost"
    return all(ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)
