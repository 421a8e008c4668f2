"""Channels to a broker: one TCP connection for each channel, checked when it is opened.

Both ends use windows of a fixed size, without gRPC's bandwidth probe; keepalive detects silent peers.
"""

from __future__ import annotations

import contextlib
import importlib

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from venus.errors import Denied, Unavailable
from venus.rpc.address import NONE, ClientCredentials, proof_of
from venus.rpc.errors import from_rpc_error

#: Of one gRPC message, both ways; batches stay far below it.
MESSAGE_BYTES_MAX = 16 << 20
#: Between brokers: a body as large as a message may be, in its log entry, behind a frame of smaller ones.
REPLICA_BYTES_MAX = MESSAGE_BYTES_MAX + (2 << 20)
#: Frames are coalesced up to about this much.
FRAME_BYTES = 1 << 20
#: What a stream may have on its way before the other end takes it: 60 MB/s over a line with 70 ms there and back. gRPC
#: begins with as much. It would then find out by pings behind data what a line can take, on every connection.
WINDOW_BYTES = 4 << 20
KEEPALIVE_S = 20.0
KEEPALIVE_TIMEOUT_S = 5.0
#: Of a client that can go to another broker: a machine that is gone says nothing, not even that it is.
CLUSTER_KEEPALIVE_S = 3.0
CONNECT_TIMEOUT_S = 5.0
#: For finding out why a connection failed.
EXPLAIN_TIMEOUT_S = 2.0
#: gRPC wakes a thread that waits for a message ten times a second, so that it sees signals: Python 2 needed that. What
#: a thread waits for wakes it all the same.
WAKE_EVERY_S = 10.0
with contextlib.suppress(ImportError):  # it is private: a version without it wakes them as it likes
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
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),  # counts only without the probe
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
        from venus.rpc.credentials import explain_failure

        raise explain_failure(address, proof, min(timeout_s, EXPLAIN_TIMEOUT_S)) or Unavailable(
            f"broker at {address} cannot be reached; is `venus run` or `venus broker` running?",
            hint=f"check [broker] listen and address ({str(cause)[:160]})",
        ) from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        channel.close()
        raise Unavailable(f"broker at {address} is starting or stopping")
    return channel


def unchecked_channel(address: str, chosen: Options) -> grpc.Channel:
    """Return a channel without connecting. Raises ConfigError for unusable files of [security]."""
    credentials = _credentials(proof_of(address))
    if credentials is None:
        return grpc.insecure_channel(str(address), options=chosen)
    return grpc.secure_channel(str(address), credentials, options=chosen)


def aio_channel(address: str, chosen: Options) -> grpc.aio.Channel:
    """Return an unchecked channel for an event loop. Raises ConfigError for unusable files of [security]."""
    credentials = _credentials(proof_of(address))
    if credentials is None:
        return grpc.aio.insecure_channel(str(address), options=chosen)
    return grpc.aio.secure_channel(str(address), credentials, options=chosen)


def _credentials(proof: ClientCredentials) -> grpc.ChannelCredentials | None:
    if proof == NONE:
        return None
    from venus.rpc.credentials import channel_credentials  # with a library that takes longer to import than all of ours

    return channel_credentials(proof)
