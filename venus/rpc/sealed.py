"""Messages with a seal: the xxh3_64 of all their bytes, as their last field (protos/venus/wire/broker.proto).

Bodies carry their own digests from the producer to the consumer. The seal protects everything else on one connection:
batch numbers, verdicts, offsets, acknowledgements, key ranges. TCP's checksum has only 16 bits.
Every call of every service uses this module, at both ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import xxhash
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from venus.codec.stored_rows import SealedChunk
from venus.errors import DigestMismatch, ProtocolError, VenusError
from venus.rpc import limits
from venus.rpc.errors import from_rpc_error, to_status
from venus.wire import broker_pb2, network_pb2, overlay_pb2, replica_pb2

M = TypeVar("M", bound=Message)

#: Field 15, fixed64.
TAG = b"\x79"
SEAL_BYTES = 9

PRODUCE = "/venus.wire.Ingest/Produce"
SUBSCRIBE = "/venus.wire.Delivery/Subscribe"
LISTEN = "/venus.wire.Delivery/Listen"
#: Methods that only read, and may be called by a tool without seals (docs/explanation/decisions.md).
UNSEALED_ALLOWED = ("/venus.wire.Admin/Status",)

OLDER_HINT = "run the same version of VENUS on both sides"


class _NoMessage:
    """Placeholder for invalid data in a stream."""


UNSEALED: Final = _NoMessage()
UNPARSED: Final = _NoMessage()


@dataclass(frozen=True, slots=True)
class SealedMessage:
    """Message of a stream that is serialised and sealed once, for many receivers."""

    content: bytes


def seal(message: Message) -> bytes:
    """Return the message's bytes with their seal."""
    content = message.SerializeToString()
    return content + TAG + xxhash.xxh3_64_digest(content)[::-1]


def unseal(kind: type[M], data: bytes, what: str) -> M:
    """Return the message without its seal. Raises DigestMismatch for a broken seal, ProtocolError without one."""
    if _is_whole(data):
        try:
            return kind.FromString(data[:-SEAL_BYTES])
        except DecodeError as error:
            raise ProtocolError(f"{what} is intact, but not a {kind.DESCRIPTOR.name}: {error}") from error
    if _has_seal(data):
        raise DigestMismatch(f"{what} arrived damaged: its seal is broken")
    raise ProtocolError(f"{what} has no seal: its sender is an older VENUS, or none", hint=OLDER_HINT)


def _is_whole(data: bytes) -> bool:
    """Return whether the seal matches the bytes before it."""
    return data[-SEAL_BYTES:] == TAG + xxhash.xxh3_64_digest(memoryview(data)[:-SEAL_BYTES])[::-1]


def _has_seal(data: bytes) -> bool:
    """Return whether there is or was a seal: a single flipped bit leaves either its tag or its hash intact."""
    tail = data[-SEAL_BYTES:]
    return tail[:1] == TAG or tail[1:] == xxhash.xxh3_64_digest(memoryview(data)[:-SEAL_BYTES])[::-1]


# -- streams ---------------------------------------------------------------------------------------------------------


def opener(kind: type[M]) -> Callable[[bytes], M]:
    """Return a parser for sealed messages, which returns None for a broken seal: a gRPC client then ends the call."""

    def parse(data: bytes) -> M:
        return kind.FromString(data) if _is_whole(data) else None  # type: ignore[return-value]  # no message either

    return parse


def frame_opener(kind: type[M]) -> Callable[[bytes], M | _NoMessage | None]:
    """Return a parser for callers that pass each frame to `check_frame_seal`: servers, and clients with a loop."""

    def parse(data: bytes) -> M | _NoMessage | None:
        """Return the message; None for a broken seal, a placeholder for other invalid data."""
        if _is_whole(data):
            try:
                return kind.FromString(data)
            except DecodeError:
                return UNPARSED
        return None if _has_seal(data) else UNSEALED

    return parse


def stream_types(path: str) -> tuple[type[Message], type[Message]]:
    """Return the kinds of frames of a stream's method: from its client, and to it."""
    service, _, name = path.lstrip("/").partition("/")
    found = broker_pb2.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[name]
    return GetMessageClass(found.input_type), GetMessageClass(found.output_type)


def check_frame_seal(frame: Any, what: str) -> Any:
    """Return a frame that a server has read, after checks. Raises the errors of `unseal`, and ProtocolError."""
    if frame is None:
        raise DigestMismatch(f"{what} arrived damaged: its seal is broken")
    if frame is UNSEALED:
        raise ProtocolError(f"{what} has no seal: its sender is an older VENUS, or none", hint=OLDER_HINT)
    if frame is UNPARSED:
        raise ProtocolError(f"{what} is intact, but unknown to this version", hint=OLDER_HINT)
    if frame is not grpc.aio.EOF:
        limits.check(frame)
    return frame


def produce(
    channel: grpc.Channel, frames: Iterable[broker_pb2.ProducerFrame]
) -> grpc._CallIterator[broker_pb2.BrokerFrame]:
    """Open a producer's stream."""
    call: grpc.StreamStreamMultiCallable[broker_pb2.ProducerFrame, broker_pb2.BrokerFrame] = channel.stream_stream(
        PRODUCE, request_serializer=seal, response_deserializer=opener(broker_pb2.BrokerFrame)
    )
    return call(iter(frames))


def subscribe(
    channel: grpc.Channel, frames: Iterable[broker_pb2.ConsumerFrame]
) -> grpc._CallIterator[broker_pb2.DeliveryFrame]:
    """Open a consumer's stream."""
    call: grpc.StreamStreamMultiCallable[broker_pb2.ConsumerFrame, broker_pb2.DeliveryFrame] = channel.stream_stream(
        SUBSCRIBE, request_serializer=seal, response_deserializer=opener(broker_pb2.DeliveryFrame)
    )
    return call(iter(frames))


def listen(
    channel: grpc.Channel, frames: Iterable[broker_pb2.ListenerFrame]
) -> grpc._CallIterator[broker_pb2.ChangesFrame]:
    """Open a stream of subscriptions by content."""
    call: grpc.StreamStreamMultiCallable[broker_pb2.ListenerFrame, broker_pb2.ChangesFrame] = channel.stream_stream(
        LISTEN, request_serializer=seal, response_deserializer=opener(broker_pb2.ChangesFrame)
    )
    return call(iter(frames))


# -- calls with one request ------------------------------------------------------------------------------------------


def ask(channel: grpc.Channel, method: str, request: Message, kind: type[M], *, timeout_s: float) -> M:
    """Call `Service/Method` and return its answer. Raises the broker's error, DigestMismatch or ProtocolError."""
    call: grpc.UnaryUnaryMultiCallable[Message, bytes] = channel.unary_unary(
        f"/venus.wire.{method}", request_serializer=seal, response_deserializer=None
    )
    try:
        data = call(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
    answer = unseal(kind, data, f"the broker's answer to {method.rpartition('/')[2]}")
    limits.check(answer, "from the broker: ")
    return answer


def read_split(
    channel: grpc.Channel, request: broker_pb2.ReadSplitRequest
) -> grpc._CallIterator[broker_pb2.SnapshotChunk]:
    """Start reading a key range; a chunk has a digest in place of a seal."""
    call: grpc.UnaryStreamMultiCallable[broker_pb2.ReadSplitRequest, broker_pb2.SnapshotChunk] = channel.unary_stream(
        "/venus.wire.Delivery/ReadSplit",
        request_serializer=seal,
        response_deserializer=broker_pb2.SnapshotChunk.FromString,
    )
    return call(request, wait_for_ready=False)


_FILES = (broker_pb2.DESCRIPTOR, network_pb2.DESCRIPTOR, overlay_pb2.DESCRIPTOR, replica_pb2.DESCRIPTOR)

# -- servers ---------------------------------------------------------------------------------------------------------


def handlers(service: str, servicer: object) -> grpc.GenericRpcHandler:
    """Return the handlers of one service, in place of the generated ones."""
    found = next(s for file in _FILES for name, s in file.services_by_name.items() if name == service)
    return grpc.method_handlers_generic_handler(
        found.full_name, {method.name: _handler(method, getattr(servicer, method.name)) for method in found.methods}
    )


def _handler(method: Any, serve: Callable[..., Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """Return gRPC's handler of one method, which checks the seals of requests and seals answers."""
    kind = GetMessageClass(method.input_type)
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(
            serve, request_deserializer=frame_opener(kind), response_serializer=serialise_frame
        )
    path = f"/{method.containing_service.full_name}/{method.name}"
    make: Any = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    handle = _opening(path, kind, serve)
    return make(handle, request_deserializer=None, response_serializer=_serialise)  # type: ignore[no-any-return]


def _opening(path: str, kind: type[Message], serve: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that parses and checks bytes for `serve`."""

    async def handle(data: bytes, context: Any) -> Any:
        """Check the request and serve it; an invalid one ends the call with its error."""
        try:
            request = _request(path, kind, data)
        except VenusError as error:
            status = to_status(error)
            await context.abort(status.code, status.details, status.metadata)
        return await serve(request, context)

    def handle_in_a_thread(data: bytes, context: Any) -> Any:
        """Do the same as `handle` for a method without an event loop."""
        try:
            request = _request(path, kind, data)
        except VenusError as error:
            status = to_status(error)
            context.set_trailing_metadata(status.metadata)
            context.abort(status.code, status.details)
        return serve(request, context)

    return handle if inspect.iscoroutinefunction(serve) else handle_in_a_thread


def _request(path: str, kind: type[Message], data: bytes) -> Message:
    """Return a checked request, sealed or, where that is allowed, unsealed."""
    if path in UNSEALED_ALLOWED and not _has_seal(data):
        request = _plain(kind, data)
    else:
        request = unseal(kind, data, f"a request of {path.rpartition('/')[2]}")
    limits.check(request)
    return request


def _plain(kind: type[Message], data: bytes) -> Message:
    """Parse a request without a seal; unknown fields may be a damaged seal."""
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise DigestMismatch(f"a request of {len(data)} bytes cannot be parsed: {error}") from error
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        raise DigestMismatch("a request without a seal has fields that it must not have")
    return message


def serialise_frame(message: Message | SealedMessage) -> bytes:
    """Return the sealed bytes of a frame."""
    return message.content if isinstance(message, SealedMessage) else seal(message)


def _serialise(message: Message | SealedChunk) -> bytes:
    """Return an answer's bytes: sealed, except for a chunk, which has a digest."""
    if isinstance(message, SealedChunk):
        return message.serialise()
    return message.SerializeToString() if isinstance(message, broker_pb2.SnapshotChunk) else seal(message)
