"""Errors between processes: a class of venus.errors becomes a gRPC status, and at the caller the same class again.

The status code informs other programs (load balancers, grpcurl) roughly. The trailing metadata carry the class name
(`venus-error`), the hint (`venus-hint-bin`), the address of a leader (`venus-leader`) and the time after which to ask
again (`venus-retry-ms`), so that nothing is lost between two processes. A handler that fails with another error logs
it and reports a failure.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc

from venus import errors
from venus.errors import NotLeader, Overloaded, VenusError
from venus.model import is_address

logger = logging.getLogger(__name__)

CLASS_KEY = "venus-error"
HINT_KEY = "venus-hint-bin"
LEADER_KEY = "venus-leader"
RETRY_KEY = "venus-retry-ms"
RETRY_MS_MAX = 3_600_000
DETAILS_CHARS_MAX = 2000
REASON_CHARS_MAX = 100

#: A class that is not here has its nearest ancestor's code.
CODES: dict[type[VenusError], grpc.StatusCode] = {
    VenusError: grpc.StatusCode.INTERNAL,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Refused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Denied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unproven: grpc.StatusCode.UNAUTHENTICATED,
    errors.Held: grpc.StatusCode.ALREADY_EXISTS,
    errors.Fenced: grpc.StatusCode.ABORTED,
    errors.Diverged: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OffsetTrimmed: grpc.StatusCode.OUT_OF_RANGE,
    errors.OffsetDiverged: grpc.StatusCode.OUT_OF_RANGE,
    errors.SnapshotExpired: grpc.StatusCode.NOT_FOUND,
    errors.StorageError: grpc.StatusCode.INTERNAL,
    errors.Corruption: grpc.StatusCode.DATA_LOSS,
    errors.StoreFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DigestMismatch: grpc.StatusCode.DATA_LOSS,
    errors.IllegalTransition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

#: Errors for a status that VENUS did not send: from gRPC itself, a proxy, another program on the port.
FOREIGN: dict[grpc.StatusCode, type[VenusError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.Unavailable,
    grpc.StatusCode.ABORTED: errors.Unavailable,
    grpc.StatusCode.INTERNAL: errors.Unavailable,  # damaged HTTP/2 frames; the stream can be opened again
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ProtocolError,  # a message above the limit
    grpc.StatusCode.UNIMPLEMENTED: errors.ProtocolError,
}

BY_NAME: dict[str, type[VenusError]] = {
    name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, VenusError)
}


class Status(NamedTuple):
    """A gRPC status, as the arguments of `context.abort`."""

    code: grpc.StatusCode
    details: str
    metadata: tuple[tuple[str, str | bytes], ...]


def to_status(error: VenusError) -> Status:
    """Return the status that carries this error."""
    known = next(cls for cls in type(error).__mro__ if cls in BY_NAME.values())
    code = next(CODES[cls] for cls in known.__mro__ if cls in CODES)
    metadata: list[tuple[str, str | bytes]] = [(CLASS_KEY, known.__name__)]
    if error.hint:
        metadata.append((HINT_KEY, error.hint.encode()[:DETAILS_CHARS_MAX]))
    if isinstance(error, NotLeader) and error.leader:
        metadata.append((LEADER_KEY, error.leader))
    if isinstance(error, Overloaded) and error.retry_after_s:
        metadata.append((RETRY_KEY, str(int(error.retry_after_s * 1000))))
    return Status(code, str(error)[:DETAILS_CHARS_MAX], tuple(metadata))


def from_rpc_error(error: grpc.RpcError) -> VenusError:
    """Return the error that the peer raised, or the error that corresponds to gRPC's own status."""
    code, details = error.code(), error.details() or ""
    trailing: Any = error.trailing_metadata() or ()  # pairs: named tuples, or plain tuples with grpc.aio
    if (raised := from_status(details, dict(tuple(trailing)))) is not None:
        return raised
    if "eserializing" in details:
        return errors.DigestMismatch("a message arrived damaged: it cannot be parsed")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.ProtocolError(f"the peer does not implement this call ({details})", hint="is it a VENUS broker?")
    return FOREIGN.get(code, VenusError)(f"{details or 'no details'} ({code.name})")


def from_status(details: str, metadata: Mapping[str, str | bytes]) -> VenusError | None:
    """Return the error that a peer has sent as the parts of a status, None if it is none of venus.errors."""
    hint = metadata.get(HINT_KEY, b"")
    text = hint.decode(errors="replace") if isinstance(hint, bytes) else str(hint)
    if (cls := BY_NAME.get(str(metadata.get(CLASS_KEY, "")))) is None:
        return None
    if issubclass(cls, NotLeader):
        return cls(details, hint=text, leader=_leader(metadata.get(LEADER_KEY, "")))
    if issubclass(cls, Overloaded):
        return cls(details, hint=text, retry_after_s=_retry_s(metadata.get(RETRY_KEY, "")))
    raised = cls(details, hint=text)
    if isinstance(raised, errors.Unavailable):
        raised.said_by_peer = True
    return raised


def _retry_s(value: str | bytes) -> float:
    """Return a time to wait in seconds, 0 if the value is invalid."""
    text = value if isinstance(value, str) else ""
    return min(int(text), RETRY_MS_MAX) / 1000 if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


def _leader(value: str | bytes) -> str:
    """Return the address of a leader, "" if the value is invalid."""
    return value if isinstance(value, str) and value.isascii() and is_address(value) else ""


def reason(error: grpc.RpcError) -> str:
    """Return briefly why a connection failed, without gRPC's list of attempts."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer"
    details = " ".join((error.details() or error.code().name).split())
    return details.rpartition(": ")[2].rstrip("]")[:REASON_CHARS_MAX]


@asynccontextmanager
async def abort_on_error(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Run the body of a handler; end the call with the status of an error that it raises.

    A peer that has left gets no answer.
    """
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except VenusError as error:
        await _abort(context, error)
    except Exception as error:
        if context.done():  # gRPC raises from reads and writes of a call whose peer has gone
            return
        logger.exception("a call of %s failed", context.peer())
        await _abort(context, VenusError(f"the broker failed: {error!r}"))


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: VenusError) -> None:
    """End a call with the status of an error, unless its peer has left."""
    if not context.done():
        status = to_status(error)
        await context.abort(status.code, status.details, status.metadata)
