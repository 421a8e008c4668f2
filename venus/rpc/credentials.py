"""The client's end of TLS: its credentials, and the reasons why one side does not trust the other."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import grpc

from venus.errors import ConfigError, Unavailable, Untrusted, VenusError
from venus.rpc.address import ClientCredentials
from venus.security import pem
from venus.security.reading import read_secret

#: First bytes of an HTTP/2 client; a broker that does not trust the client answers with a TLS alert.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
RENEW = "renew the broker's certificate (venus certs issue NAME --renew); a running broker reloads it"


def channel_credentials(proof: ClientCredentials) -> grpc.ChannelCredentials | None:
    """Read the files and return the credentials of a channel, None without TLS. Raises ConfigError."""
    token = token_of(proof)
    if not proof.ca:
        if token:
            hint = "set security.ca to the authority of the broker's certificate"
            raise ConfigError("a token is set and security.ca is not: it would cross the network readable", hint=hint)
        return None
    now = datetime.now(UTC)
    ca = pem.authorities(Path(proof.ca), now)
    pair = own_pair(proof, now)
    shown = (pair.key, pair.chain) if pair is not None else ()
    made = grpc.ssl_channel_credentials(ca, *shown)
    if token:
        made = grpc.composite_channel_credentials(made, grpc.access_token_call_credentials(token))
    return made


def own_pair(proof: ClientCredentials, now: datetime) -> pem.Pair | None:
    """Return this process's own certificate, None if it has none. Raises ConfigError."""
    if not proof.certificate:
        return None
    if not proof.key:
        raise ConfigError("security.certificate is set and security.key is not", hint="name the certificate's key")
    return pem.pair(Path(proof.certificate), Path(proof.key), now)


def token_of(proof: ClientCredentials) -> str:
    """Return the token to send, "" if there is none. Raises ConfigError."""
    if proof.token_file:
        return read_secret(Path(proof.token_file), "security.client_token_file").decode(errors="replace").strip()
    return proof.token.get_secret_value()


def explain_failure(address: str, proof: ClientCredentials, timeout_s: float) -> VenusError | None:
    """Return why a connection that failed was refused by TLS, None if TLS is not the reason.

    gRPC reports too little, so this connects once more with Python's own TLS.
    """
    host, _, port = str(address).rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as plain:
            if not proof.ca:
                return _check_tls(plain, address)
            try:
                with _context(proof).wrap_socket(plain, server_hostname=host) as secured:
                    served = not _has_handshake(secured) or _is_served(secured)
                    return None if served else _not_admitted_error(address, proof)
            except ssl.SSLCertVerificationError as error:
                return _untrusted_error(address, host, error, proof)
            except ssl.SSLError as error:
                return _handshake_error(address, error, proof)
    except (OSError, ValueError):
        return None


def _has_handshake(secured: ssl.SSLSocket) -> bool:
    """Return whether a handshake happened: Python silently skips it on a connection that was reset meanwhile."""
    return secured.version() is not None


def _is_served(secured: ssl.SSLSocket) -> bool:
    """Return whether the broker continues after the handshake; gRPC's server disconnects untrusted clients."""
    try:
        secured.sendall(PREFACE)
        return bool(secured.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


def _context(proof: ClientCredentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cafile=proof.ca)
    if proof.certificate:
        context.load_cert_chain(proof.certificate, proof.key)
    return context


def _check_tls(plain: socket.socket, address: str) -> VenusError | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain) as secured:
            if not _has_handshake(secured):
                return None
    except ssl.SSLError as error:
        if error.reason is None or "ALERT" not in error.reason:
            return None
    hint = "set ca in [security], and certificate and key or a token (docs/how-to/tls.md)"
    return Untrusted(f"the broker at {address} speaks TLS, and security.ca is not set", hint=hint)


def _untrusted_error(
    address: str, host: str, error: ssl.SSLCertVerificationError, proof: ClientCredentials
) -> VenusError:
    text = error.verify_message
    if "expired" in text:
        return Untrusted(f"the certificate of the broker at {address} has expired", hint=RENEW)
    if "not yet valid" in text:
        what = f"the certificate of the broker at {address} is not valid yet"
        return Untrusted(what, hint="check the clocks of both machines")
    if "ostname mismatch" in text or "IP address mismatch" in text:
        hint = f"use a host that it names as broker.address, or issue one for it: venus certs issue NAME --host {host}"
        return Untrusted(f"the certificate of the broker at {address} is not for {host}", hint=hint)
    if "self" in text and "signed" in text:
        what = f"the certificate of the broker at {address} is self-signed or signed by an unknown authority"
    else:
        what = f"the certificate of the broker at {address} is not signed by security.ca {proof.ca}"
    return Untrusted(what, hint="set security.ca to the file of the authority that has signed it")


def _not_admitted_error(address: str, proof: ClientCredentials) -> VenusError:
    if not proof.certificate:
        hint = "set certificate and key in [security]: venus certs issue NAME --role ROLE makes them"
        return Untrusted(f"the broker at {address} asks for a certificate, and this process has none", hint=hint)
    text = f"the broker at {address} does not accept our certificate {proof.certificate}"
    return Untrusted(text, hint="it must be signed by the broker's security.ca, and not have expired")


def _handshake_error(address: str, error: ssl.SSLError, proof: ClientCredentials) -> VenusError:
    reason = (error.reason or "").replace("_", " ").lower()
    if "wrong version" in reason or "record layer" in reason:
        hint = "unset security.ca, or give the broker a certificate (docs/how-to/tls.md)"
        return Untrusted(f"the broker at {address} speaks no TLS, and security.ca is set", hint=hint)
    if "alert" in reason:
        return _not_admitted_error(address, proof)
    return Unavailable(f"TLS with the broker at {address} failed: {reason or error}")
