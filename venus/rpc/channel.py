"""Channels to a broker, with the client's end of TLS: one TCP connection for each channel, checked when it is opened.

Both ends use windows of a fixed size, without gRPC's bandwidth probe; keepalive detects silent peers. If a connection
fails, `explain_failure` says which side does not trust the other, and why.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from venus.errors import ConfigError, Denied, Unavailable, Untrusted, VenusError
from venus.rpc.address import ClientCredentials, proof_of
from venus.rpc.errors import from_rpc_error, reason
from venus.security import pem
from venus.security.secrets import read_secret

#: Limit of one gRPC message, both ways; batches stay far below it.
MESSAGE_BYTES_MAX = 16 << 20
#: Limit between brokers: a log entry with the largest body may follow smaller entries in the same frame.
REPLICA_BYTES_MAX = MESSAGE_BYTES_MAX + (2 << 20)
#: Frames are coalesced up to about this much.
FRAME_BYTES = 1 << 20
#: Bytes that a stream may send before the other end takes them: enough for 60 MB/s over a line with a round trip of 70
#: ms. gRPC begins with the same size, but would then measure each connection with pings.
WINDOW_BYTES = 4 << 20
KEEPALIVE_S = 20.0
KEEPALIVE_TIMEOUT_S = 5.0
#: Keepalive of a client that can use another broker: a machine that is gone does not close its connections.
CLUSTER_KEEPALIVE_S = 3.0
CONNECT_TIMEOUT_S = 5.0
#: Timeout for finding out why a connection failed.
EXPLAIN_TIMEOUT_S = 2.0
#: gRPC wakes a thread that waits for a message ten times a second to check for signals, which only Python 2 needed. A
#: message wakes the thread in any case.
WAKE_EVERY_S = 10.0
with contextlib.suppress(ImportError):  # the name is private: a version without it keeps its interval
    importlib.import_module("grpc._common").__dict__["MAXIMUM_WAIT_TIMEOUT"] = WAKE_EVERY_S

Options = list[tuple[str, int]]


def channel_options(
    keepalive_s: float = KEEPALIVE_S,
    timeout_s: float = KEEPALIVE_TIMEOUT_S,
    *,
    send_bytes_max: int = MESSAGE_BYTES_MAX,
    receive_bytes_max: int = MESSAGE_BYTES_MAX,
) -> Options:
    """Return the channel options that both ends set."""
    return [
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.max_send_message_length", send_bytes_max),
        ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(timeout_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(timeout_s * 1000)),  # 60 s otherwise, whatever the line above says
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),  # has an effect only without the bandwidth probe
        # Half of the shortest keepalive of a peer, so that no peer is treated as a ping flood.
        ("grpc.http2.min_ping_interval_without_data_ms", int(min(keepalive_s, CLUSTER_KEEPALIVE_S) * 500)),
    ]


def open_channel(
    address: str, *, timeout_s: float = CONNECT_TIMEOUT_S, keepalive_s: float = KEEPALIVE_S
) -> grpc.Channel:
    """Connect to a serving broker with the credentials of its address (venus.rpc.address).

    Raises Unavailable at once if there is none, Untrusted if one side does not trust the other, Denied if the broker
    knows no role of this client, ConfigError for unusable files of [security].
    """
    own = [
        ("grpc.use_local_subchannel_pool", 1),  # a broken connection's back-off must not delay the next channel
        ("grpc.enable_http_proxy", 0),
    ]
    proof = proof_of(address)
    channel = unchecked_channel(address, channel_options(keepalive_s, min(KEEPALIVE_TIMEOUT_S, keepalive_s)) + own)
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        channel.close()
        cause = from_rpc_error(error)
        if isinstance(cause, Denied):
            raise cause from error
        why = reason(error) if isinstance(cause, Unavailable) else str(cause)[:160]
        raise explain_failure(address, proof, min(timeout_s, EXPLAIN_TIMEOUT_S)) or Unavailable(
            f"broker at {address} cannot be reached; is `venus run` or `venus broker` running?",
            hint=f"check [broker] listen and address ({why})",
        ) from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        channel.close()
        raise Unavailable(f"broker at {address} is starting or stopping")
    return channel


def unchecked_channel(address: str, chosen: Options) -> grpc.Channel:
    """Return a channel without connecting. Raises ConfigError for unusable files of [security]."""
    credentials = channel_credentials(proof_of(address))
    if credentials is None:
        return grpc.insecure_channel(str(address), options=chosen)
    return grpc.secure_channel(str(address), credentials, options=chosen)


def aio_channel(address: str, chosen: Options) -> grpc.aio.Channel:
    """Return an unchecked channel for an event loop. Raises ConfigError for unusable files of [security]."""
    credentials = channel_credentials(proof_of(address))
    if credentials is None:
        return grpc.aio.insecure_channel(str(address), options=chosen)
    return grpc.aio.secure_channel(str(address), credentials, options=chosen)


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
    """Return whether a handshake happened: Python silently skips it on a connection that has been reset."""
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
    """Return a TLS context with the credentials and the authority of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cafile=proof.ca)
    if proof.certificate:
        context.load_cert_chain(proof.certificate, proof.key)
    return context


def _check_tls(plain: socket.socket, address: str) -> VenusError | None:
    """Return the error if the port speaks TLS although this client has no authority, None if it does not."""
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
    """Return the error that says why the broker's certificate is not trusted, with the remedy."""
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
    """Return the error of a client whose certificate the broker does not accept, or that has none."""
    if not proof.certificate:
        hint = "set certificate and key in [security]: venus certs issue NAME --role ROLE makes them"
        return Untrusted(f"the broker at {address} asks for a certificate, and this process has none", hint=hint)
    text = f"the broker at {address} does not accept our certificate {proof.certificate}"
    return Untrusted(text, hint="it must be signed by the broker's security.ca, and not have expired")


def _handshake_error(address: str, error: ssl.SSLError, proof: ClientCredentials) -> VenusError:
    """Return the error for a failed TLS handshake that was not about the broker's certificate."""
    reason = (error.reason or "").replace("_", " ").lower()
    if "wrong version" in reason or "record layer" in reason:
        hint = "unset security.ca, or give the broker a certificate (docs/how-to/tls.md)"
        return Untrusted(f"the broker at {address} speaks no TLS, and security.ca is set", hint=hint)
    if "alert" in reason:
        return _not_admitted_error(address, proof)
    return Unavailable(f"TLS with the broker at {address} failed: {reason or error}")
