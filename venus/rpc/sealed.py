"""Frames with a seal: the xxh3_64 of all their bytes, as their last field (protos/venus/wire/broker.proto).

Bodies carry digests of their own, from the producer to the consumer; the seal guards what is said around them on
one connection: numbers of batches, verdicts, offsets, acknowledgements. TCP's checksum lets one damage in some
ten thousand pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc
import xxhash
from google.protobuf.message import Message

from venus.codec.chunk import Sealed
from venus.wire import broker_pb2, broker_pb2_grpc

M = TypeVar("M", bound=Message)

#: Field 15, fixed64.
TAG = b"\x79"
SEAL_BYTES = 9

PRODUCE = "/venus.wire.Ingest/Produce"
SUBSCRIBE = "/venus.wire.Delivery/Subscribe"


def seal(message: Message) -> bytes:
    """Return the message's bytes with their seal."""
    content = message.SerializeToString()
    return content + TAG + xxhash.xxh3_64_digest(content)[::-1]


def opener(kind: type[M]) -> Callable[[bytes], M]:
    """Return a parser for sealed messages. None for a broken seal: a gRPC client then ends the call, quietly."""

    def parse(data: bytes) -> M:
        content = memoryview(data)[:-SEAL_BYTES]
        if data[-SEAL_BYTES:] != TAG + xxhash.xxh3_64_digest(content)[::-1]:
            return None  # type: ignore[return-value]  # what gRPC makes of None is no message either
        return kind.FromString(data)

    return parse


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


def ingest_handler(servicer: broker_pb2_grpc.IngestServicer) -> grpc.GenericRpcHandler:
    """Return what a server adds in place of the generated handlers."""
    return grpc.method_handlers_generic_handler(
        "venus.wire.Ingest", {"Produce": _sealed(servicer.Produce, broker_pb2.ProducerFrame)}
    )


def delivery_handler(servicer: broker_pb2_grpc.DeliveryServicer) -> grpc.GenericRpcHandler:
    """Return what a server adds in place of the generated handlers."""
    unary: Any = grpc.unary_unary_rpc_method_handler
    stream: Any = grpc.unary_stream_rpc_method_handler
    plain: dict[str, tuple[Any, Any, type[Message]]] = {
        "OpenSnapshot": (unary, servicer.OpenSnapshot, broker_pb2.OpenSnapshotRequest),
        "ReadSplit": (stream, servicer.ReadSplit, broker_pb2.ReadSplitRequest),
        "RenewSnapshot": (unary, servicer.RenewSnapshot, broker_pb2.SnapshotRef),
        "CloseSnapshot": (unary, servicer.CloseSnapshot, broker_pb2.SnapshotRef),
    }
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: make(serve, request_deserializer=request.FromString, response_serializer=_serialise)
        for name, (make, serve, request) in plain.items()
    }
    handlers["Subscribe"] = _sealed(servicer.Subscribe, broker_pb2.ConsumerFrame)
    return grpc.method_handlers_generic_handler("venus.wire.Delivery", handlers)


def _sealed(serve: Callable[..., Any], frame: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.stream_stream_rpc_method_handler(serve, request_deserializer=opener(frame), response_serializer=seal)


def _serialise(message: Message | Sealed) -> bytes:
    return message.serialise() if isinstance(message, Sealed) else message.SerializeToString()
