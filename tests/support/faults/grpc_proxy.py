"""A proxy for any gRPC call that flips single bits of messages, never of HTTP/2's own bytes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from typing import Any, Self

import grpc

from tests.support.faults.proxy import Direction


class GrpcProxy(grpc.GenericRpcHandler):
    """Forwards every call. `damage` flips one bit of the first message of one method, in one direction."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        self._method = ""
        self._way = Direction.UP
        self._bit: int | None = None
        #: The first message of the last call of the damaged method, as it was sent.
        self.seen = b""

    def damage(self, method: str, way: Direction, bit: int | None) -> None:
        """Flip this bit from now on; with None only record messages."""
        self._method, self._way, self._bit = method, way, bit

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = str(details.method)
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: self._pass(method, requests, context))

    def _pass(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Forward one call in both directions."""
        call: Any = self._channel.stream_stream(method)
        answers = call(self._pass_through(method, Direction.UP, requests))
        context.add_callback(answers.cancel)
        try:
            yield from self._pass_through(method, Direction.DOWN, answers)
        except grpc.RpcError as error:
            context.set_trailing_metadata(tuple((item.key, item.value) for item in error.trailing_metadata() or ()))
            context.abort(error.code(), error.details() or "")

    def _pass_through(self, method: str, way: Direction, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the messages of one direction; the first one may be damaged."""
        for number, message in enumerate(messages):
            if number == 0 and method.endswith(self._method) and way is self._way and self._method:
                yield self._damage_message(message)
            else:
                yield message

    def _damage_message(self, message: bytes) -> bytes:
        self.seen = message
        if self._bit is None:
            return message
        flipped = bytearray(message)
        flipped[self._bit // 8] ^= 1 << self._bit % 8
        return bytes(flipped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()
