"""Access control: checks the identity of a peer against venus.security.roles, counts refusals, writes the audit log.

Without TLS every client that can connect may do everything, but operators' commands are still recorded. The interceptor
of the gRPC port checks every call of every service, and a stream twice: when it begins, and when its first frame names
the business and group. With TLS, a method that venus.security.roles does not list is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from venus.errors import Denied, ProtocolError, Unproven, VenusError
from venus.rpc.errors import abort_on_error
from venus.security.audit import AuditLog, Refusals
from venus.security.certificate_files import CertificateFiles
from venus.security.identity import bearer, token_in
from venus.security.roles import ANONYMOUS, CALLS, LISTEN, PAGES, Call, PeerIdentity, admits, covers, missing_roles
from venus.wire import broker_pb2, network_pb2, overlay_pb2, replica_pb2

_PEM_KEY = "x509_pem_cert"


@dataclass(frozen=True, slots=True)
class Peer:
    """The caller: its identity and its address."""

    identity: PeerIdentity
    where: str

    @property
    def name(self) -> str:
        """The name in the audit log."""
        return self.identity.name or "nobody"


class AccessControl:
    """Access checks of one broker.

    Without TLS `files` is None. `business_of` returns the business of a snapshot, "" if it knows no such snapshot.
    """

    def __init__(
        self, files: CertificateFiles | None, audit: AuditLog, refusals: Refusals, business_of: Callable[[str], str]
    ) -> None:
        self.files, self.audit, self.refusals = files, audit, refusals
        self._business_of = business_of

    def peer_of(self, context: Any) -> Peer:
        """Return the caller of a gRPC call."""
        where = str(context.peer())
        if self.files is None:
            return Peer(ANONYMOUS, where)
        self.refusals.on_call(where)
        certificate = next(iter(context.auth_context().get(_PEM_KEY, ())), None)
        token = token_in(context.invocation_metadata())
        return Peer(self.files.current().directory.identity(certificate, token), where)

    def check_call(self, peer: Peer, method: str, call: Call) -> None:
        """Raise Unproven or Denied if the peer may not make this call at all."""
        if self.files is None:
            return
        if not peer.identity:
            self._refuse(peer, method, Unproven("this broker asks for a certificate or a token that it knows"))
        if not admits(peer.identity, call):
            self._refuse(peer, method, _denied_error(peer, method, missing_roles(call)))

    def check_names(self, peer: Peer, method: str, call: Call, request: Message) -> None:
        """Raise Denied if the request names a business or group for which the caller has no role."""
        if self.files is None or not (call.business or call.group or call.snapshot):
            return
        if call.snapshot:
            business, group = self._business_of(_field_text(request, call.snapshot)), ""
            if not business:
                return  # the snapshot does not exist, and the answer says so
        else:
            business, group = _field_text(request, call.business), _field_text(request, call.group)
        if not covers(peer.identity, call, business, group):
            self._refuse(peer, method, _denied_error(peer, method, missing_roles(call, business, group)))

    def page_refusal(
        self,
        where: str,
        path: str,
        certificate: bytes | None,
        authorization: str,
        listens: broker_pb2.ListenerFrame | None = None,
    ) -> VenusError | None:
        """Return why a client with this certificate (PEM) and Authorization header may not see a page, else None.

        With `listens`, the client asks to listen to these changes instead of a page.
        """
        if self.files is None:
            return None
        token = bearer(authorization)
        peer = Peer(self.files.current().directory.identity(certificate, token), where)
        try:
            self.check_call(peer, path, PAGES if listens is None else LISTEN)
            if listens is not None:
                self.check_names(peer, path, LISTEN, listens)
        except Denied as error:
            return error
        return None

    async def run_audited(self, peer: Peer, method: str, request: Message, served: Awaitable[Any], context: Any) -> Any:
        """Await an operator's command and write its result to the audit log."""
        result, error = "failed", {}
        try:
            answer = await served
            result = "done"
        except BaseException:
            error = {"error": str(context.details() or "")}
            raise
        finally:
            said = {
                field.name: _readable_value(field, value)
                for field, value in request.ListFields()
                if field.name != "seal"
            }
            self.audit.write(who=peer.name, where=peer.where, what=method, request=said, result=result, **error)
        return answer

    def counters(self) -> dict[str, int]:
        """Return the number of refused calls, refused connections and certificate renewals since the start."""
        calls, connections = self.refusals.counts()
        renewals = self.files.renewals if self.files is not None else 0
        return {"refused_calls": calls, "refused_connections": connections, "certificate_renewals": renewals}

    def problems(self) -> list[str]:
        """Return the problems that an operator has to solve."""
        found = self.files.problems() if self.files is not None else []
        return [*found, *([f"the audit log cannot be written: {self.audit.problem}"] if self.audit.problem else [])]

    def _refuse(self, peer: Peer, method: str, error: Denied) -> None:
        """Count a refused call, write it to the audit log, and raise its error."""
        if self.refusals.record_refusal(peer.identity.name, method):
            self.audit.write(who=peer.name, where=peer.where, what=method, result="refused", error=str(error))
        raise error


def _denied_error(peer: Peer, method: str, wanted: str) -> Denied:
    """Return the error for a caller whose roles do not allow a method."""
    name = method.rpartition("/")[2] or "the status page"
    held = ", ".join(sorted(map(str, peer.identity.roles))) or "none"
    return Denied(
        f"{peer.identity.name} may not use {name}: role {wanted} is missing",
        hint=f"its roles are: {held}; roles come from a certificate's OU, token_file or [security.roles]",
    )


def _field_text(message: Message, path: str) -> str:
    """Return the text at a path such as `init.business`; "" if the path is empty."""
    value: Any = message
    for name in filter(None, path.split(".")):
        value = getattr(value, name)
    return value if isinstance(value, str) else ""


def _readable_value(field: Any, value: Any) -> Any:
    """Return the value of a field in readable form."""
    if field.is_repeated:
        return list(value)
    if field.message_type is not None:
        return {inner.name: _readable_value(inner, found) for inner, found in value.ListFields()}
    names = field.enum_type.values_by_number if field.enum_type is not None else {}
    return names[value].name if value in names else value


#: Time-out from the start of a stream to its first frame, which names business and group.
FIRST_FRAME_S = 10.0
OWN_SERVICES = {
    service.full_name: service
    for file in (broker_pb2, network_pb2, overlay_pb2, replica_pb2)
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
        """Wrap the handler of a method in the access checks that fit its kind."""
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
        """Check that the caller may use a method; return the caller, None if the call was refused."""
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
        """Guard reflection, whose requests name no business either."""

        async def guard_call(request: Any, context: Any) -> AsyncIterator[Any]:
            if await self._admit(method, call, context) is not None:
                async for answer in serve(request, context):
                    yield answer

        return guard_call

    def _guard_stream(self, method: str, call: Call, serve: Serve) -> Serve:
        """Wrap the handler of a stream in the access checks."""

        async def guard_call(requests: Any, context: Any) -> Any:
            """Serve a stream whose caller may use the method, with a check of its first frame."""
            peer = await self._admit(method, call, context)
            if peer is None:
                return None

            def check_frame(frame: Message) -> None:
                """Check the business and group that the first frame names."""
                self._access.check_names(peer, method, call, frame)

            return await serve(requests, FirstFrameContext(context, check_frame, self._first_frame_s))

        return guard_call

    def _guard_unary(self, method: str, call: Call, serve: Serve, kind: type[Message]) -> Serve:
        """Wrap the handler of a call with one request in the access checks."""

        async def guard_call(data: bytes, context: Any) -> Any:
            """Serve a call whose caller may use the method for the business and group in the request."""
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
        """Read and judge the first frame. Raises ProtocolError if none comes in time, or the error of `judge`."""
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
    """Parse a request; invalid bytes become an empty message."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return kind()  # it names no business, and the handler reports the error


def _make_handler(handler: Handler, serve: Callable[..., Any]) -> Handler:
    """Return a handler of the same kind that calls `serve`."""
    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(serve, handler.request_deserializer, handler.response_serializer)
