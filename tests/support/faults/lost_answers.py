"""A proxy in front of an etcd that executes every call and may then lose the answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc


class AnswerLosingProxy(grpc.GenericRpcHandler):
    """Forwards unary calls as bytes; `lose` = how many of the next answers to writes are lost."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._server = grpc.server(ThreadPoolExecutor(4), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        self.lose = 0
        self.lost = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return a handler that forwards any call."""
        path = details.method

        def forward(request: bytes, context: grpc.ServicerContext) -> bytes:
            call: Any = self._channel.unary_unary(path)
            answer = call(request, timeout=60)
            if self.lose and path.endswith("/Txn"):
                self.lose -= 1
                self.lost += 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
            return bytes(answer)

        return grpc.unary_unary_rpc_method_handler(forward)

    def __enter__(self) -> AnswerLosingProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()
        self._channel.close()
