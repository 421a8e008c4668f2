"""The interceptor of the gRPC port: it checks every call of every service (access.py has the rules).

A stream is checked twice: when it begins, and when its first frame names the business and group. With TLS, a method
that venus.security.roles does not list is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from venus.broker.service.access import AccessControl, Peer
from venus.broker.service.call_errors import abort_on_error
from venus.errors import ProtocolError
from venus.security.roles import CALLS, Call
from venus.wire import broker_pb2, replica_pb2

#: Time-out from the start of a stream to its first frame, which names business and group.
FIRST_FRAME_S = 10.0
OWN_SERVICES = {
    service.full_name: service
    for file in (broker_pb2, replica_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}
UNLISTED = Call()

Handler = Any  # grpc.RpcMethodHandler, which has parameters in its stubs only
Serve = Callable[..., Awaitable[Any]]


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of each call."""

    def __init__(self, access: AccessControl, *, first_frame_s: float = FIRST_FRAME_S) -> None:
        self._access = access
        self._first_frame_s = first_frame_s

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return the guarded handler of a method; called by gRPC for every call."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._guard(str(handler_call_details.method), handler)

    def _guard(self, method: str, handler: Handler) -> Handler:
        serve: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        call = CALLS.get(method, UNLISTED)
        service, _, name = method[1:].partition("/")
        if inspect.isasyncgenfunction(serve):
            return _make_handler(handler, self._guard_generator(method, call, serve))
        if not inspect.iscoroutinefunction(serve):
            raise TypeError(f"{method} is served by a thread: the interceptor does not know how to wrap it")
        if service not in OWN_SERVICES:
            return _make_handler(handler, self._guard_health(method, call, serve))
        found = OWN_SERVICES[service].methods_by_name[name]
        if found.client_streaming:
            return _make_handler(handler, self._guard_stream(method, call, serve))
        return _make_handler(handler, self._guard_unary(method, call, serve, GetMessageClass(found.input_type)))

    async def _admit(self, method: str, call: Call, context: Any) -> Peer | None:
        """Return the caller, None if the call was refused."""
        async with abort_on_error(context):
            peer = self._access.peer_of(context)
            self._access.check_call(peer, method, call)
            return peer
        return None

    def _guard_health(self, method: str, call: Call, serve: Serve) -> Serve:
        """Guard health checks, whose requests name no business."""

        async def guard_call(request: Any, context: Any) -> Any:
            if await self._admit(method, call, context) is not None:
                return await serve(request, context)
            return None

        return guard_call

    def _guard_generator(self, method: str, call: Call, serve: Callable[..., Any]) -> Callable[..., Any]:
        """Guard reflection in the same way."""

        async def guard_call(request: Any, context: Any) -> AsyncIterator[Any]:
            if await self._admit(method, call, context) is not None:
                async for answer in serve(request, context):
                    yield answer

        return guard_call

    def _guard_stream(self, method: str, call: Call, serve: Serve) -> Serve:
        async def guard_call(requests: Any, context: Any) -> Any:
            peer = await self._admit(method, call, context)
            if peer is None:
                return None

            def judge(frame: Message) -> None:
                self._access.check_names(peer, method, call, frame)

            return await serve(requests, FirstFrameContext(context, judge, self._first_frame_s))

        return guard_call

    def _guard_unary(self, method: str, call: Call, serve: Serve, kind: type[Message]) -> Serve:
        async def guard_call(data: bytes, context: Any) -> Any:
            async with abort_on_error(context):
                peer = self._access.peer_of(context)
                self._access.check_call(peer, method, call)
                request = _parse(kind, data)
                self._access.check_names(peer, method, call, request)
                served = serve(data, context)
                return await (
                    self._access.run_audited(peer, method, request, served, context) if call.audited else served
                )
            return None

        return guard_call


class FirstFrameContext:
    """A stream's context with a time-out and a check on the first read; later reads pass through."""

    def __init__(self, context: Any, judge: Callable[[Message], None], timeout_s: float) -> None:
        self._context, self._judge, self._timeout_s = context, judge, timeout_s
        self.read = self._read_first
        self.write = context.write

    async def _read_first(self) -> Any:
        """Read the first frame. Raises ProtocolError if none comes in time, and what `judge` raises."""
        self.read = self._context.read
        try:
            frame = await asyncio.wait_for(self._context.read(), self._timeout_s)
        except TimeoutError:
            raise ProtocolError(f"no first frame within {self._timeout_s:g} s") from None
        if isinstance(frame, Message):
            self._judge(frame)
        return frame

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _parse(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError:
        return kind()  # it names no business, and the handler reports the error


def _make_handler(handler: Handler, serve: Callable[..., Any]) -> Handler:
    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(serve, handler.request_deserializer, handler.response_serializer)
