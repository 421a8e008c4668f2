"""GET /v1/changes: a subscription by content as server-sent events, for browsers and for any HTTP client.

A request is served as a client in this process, by the same stream as over gRPC, with credit for what the connection
has taken. The last event of a transaction has the position as its id, so a browser that reconnects by itself resumes
there. If the queue does not reach back that far, all rows come again, after the event `truncate`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from venus.broker.service.delivery import DeliveryService
from venus.broker.service.http_guard import LIMIT_UNREAD
from venus.broker.service.subscription_reader import NOW, ROWS
from venus.codec.changed_rows import frame_cost
from venus.codec.subscription import ChangePosition, ChangeSet, SubscriptionView, as_lines
from venus.errors import ConfigError, Denied, Diverged, Overloaded, Refused, Unavailable, VenusError
from venus.rpc import limits
from venus.wire import broker_pb2

#: Maximum requests at once; the rest of the server's connections stays free for other requests.
REQUESTS_MAX = 32
CREDIT_BYTES = 1 << 20
#: Interval of comments on a silent connection, because proxies close silent ones.
COMMENT_S = 15.0
#: After this time a browser connects again.
RETRY_MS = 2000
#: Limit of the frames that wait for the connection.
_FRAMES_MAX = 4
_NUMBER = 1
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Accel-Buffering": "no"}
_STATUS: tuple[tuple[type[VenusError], int], ...] = (
    (Denied, 403),
    (Overloaded, 429),
    (Unavailable, 503),
    (Diverged, 410),
    (ConfigError, 400),
    (Refused, 400),
)


def error_response(error: VenusError) -> Response:
    """Return an error as JSON."""
    code = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    return JSONResponse({"error": str(error), "hint": error.hint}, status_code=code, headers=_HEADERS)


@dataclass(frozen=True, slots=True)
class WantedEvents:
    """Parsed request for changes: the table, the rows, the columns and the position."""

    first: broker_pb2.ListenerFrame
    request: broker_pb2.SubscriptionRequest
    columns: tuple[str, ...]
    resumes: bool


class _HttpListener:
    """Substitute for a gRPC context, with the methods that the handler of a stream calls. Used in the event loop."""

    def __init__(self, first: broker_pb2.ListenerFrame, where: str) -> None:
        self._where = where
        self._incoming: deque[broker_pb2.ListenerFrame] = deque([first])
        self._news = asyncio.Event()
        self._closed = False
        self.frames: asyncio.Queue[broker_pb2.ChangesFrame] = asyncio.Queue(_FRAMES_MAX)

    def peer(self) -> str:
        """Return the address of the client."""
        return self._where

    async def read(self) -> Any:
        """Return the next frame of the client, or EOF."""
        while not self._incoming:
            if self._closed:
                return grpc.aio.EOF
            self._news.clear()
            await self._news.wait()
        return self._incoming.popleft()

    async def write(self, frame: broker_pb2.ChangesFrame) -> None:
        """Queue a frame for the connection; while the queue is full, wait as long as the HTTP server allows."""
        await self.frames.put(frame)

    def return_credit(self, frame: broker_pb2.ChangesFrame) -> None:
        """Return the credit of a frame that the connection has taken."""
        self._incoming.append(broker_pb2.ListenerFrame(credit_bytes=frame_cost(frame)))
        self._news.set()

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._news.set()


class ChangeEvents:
    """Answers requests for changes."""

    def __init__(self, delivery: DeliveryService) -> None:
        self._delivery = delivery
        self._requests = 0

    def parse(self, request: Request) -> WantedEvents:
        """Read a request: table, where, columns, from, business. Raises ConfigError, ProtocolError."""
        wanted = request.query_params
        if unknown := next((name for name in wanted if name not in _PARAMETERS), None):
            raise ConfigError(f"{unknown} is no parameter of this page", hint=f"it has {', '.join(_PARAMETERS)}")
        if not wanted.get("table"):
            raise ConfigError("the parameter table is missing", hint="like /v1/changes?table=shop.orders")
        columns = tuple(filter(None, wanted.get("columns", "").split(",")))
        subscription = broker_pb2.SubscriptionRequest(
            number=_NUMBER, table=wanted["table"], predicate=wanted.get("where", ""), columns=columns
        )
        start = request.headers.get("last-event-id", "") or wanted.get("from", "")
        if start in ("", "now"):
            subscription.offset = NOW if start else ROWS
        else:
            position = ChangePosition.parse(start)
            subscription.offset, subscription.epoch = position.offset, position.epoch
        first = broker_pb2.ListenerFrame(begin=[subscription])
        first.open.business = wanted.get("business", "") or self._default_business()
        first.open.client, first.open.credit_bytes = "HTTP", CREDIT_BYTES
        limits.check(first)
        return WantedEvents(first, subscription, columns, resumes=subscription.offset >= 0)

    def _default_business(self) -> str:
        """Return the broker's only business, "main" if there are none or several."""
        names = [business.name for business in self._delivery.core.catalogue.list_stored()]
        return names[0] if len(names) == 1 else "main"

    async def answer(self, request: Request, wanted: WantedEvents) -> Response:
        """Return a response of events that does not end. Raises the error that refuses the subscription."""
        if self._requests >= REQUESTS_MAX:
            raise Overloaded(f"{REQUESTS_MAX} clients listen over HTTP already", hint="use gRPC: venus.client")
        self._requests += 1
        events = self._events(request, wanted)
        try:
            head = await anext(events)
        except BaseException:
            await events.aclose()
            raise

        async def all_events() -> AsyncIterator[str]:
            """Yield all events; end the stream with the response."""
            try:
                yield head
                async for text in events:
                    yield text
            finally:
                await events.aclose()

        traffic = self._delivery.traffic
        limit_unread = request.state._state.get(LIMIT_UNREAD, lambda _seconds, _on_unread: None)
        limit_unread(traffic.admission.limits.listener_s, traffic.record_cut_listener)
        return StreamingResponse(all_events(), media_type="text/event-stream", headers=_HEADERS)

    async def _events(self, request: Request, wanted: WantedEvents) -> AsyncGenerator[str, None]:
        """Yield events as text once the subscription has begun. Raises the error that refuses the subscription."""
        where = f"{request.client.host}:{request.client.port}" if request.client else "unknown"
        try:
            try:
                async with aclosing(self._stream(wanted, where)) as stream:
                    async for text in stream:
                        yield text
            except Diverged:
                if not wanted.resumes:
                    raise
                again = broker_pb2.ListenerFrame()
                again.CopyFrom(wanted.first)
                again.begin[0].offset, again.begin[0].epoch = ROWS, 0
                yield f"retry: {RETRY_MS}\nevent: truncate\ndata: {{}}\n\n"
                whole = WantedEvents(again, again.begin[0], wanted.columns, resumes=False)
                async with aclosing(self._stream(whole, where)) as stream:
                    async for text in stream:
                        yield text
        finally:
            self._requests -= 1

    async def _stream(self, wanted: WantedEvents, where: str) -> AsyncGenerator[str, None]:
        """Yield the text of events and, while there are none, comments."""
        listener, view = _HttpListener(wanted.first, where), SubscriptionView(_NUMBER)
        serving = asyncio.create_task(self._delivery.serve_listener(listener))  # type: ignore[arg-type]
        has_begun = False
        try:
            while not serving.done() or not listener.frames.empty():
                frame = await _next_frame(listener, serving)
                if frame is None:
                    yield ": still here\n\n"
                    continue
                for found in view.take(frame):
                    if len(found.operations) or found.position is not None:
                        yield _as_events(found, wanted.columns)
                if not has_begun and view.table_id:
                    has_begun = True
                    yield f"retry: {RETRY_MS}\n\n"
                listener.return_credit(frame)
        except VenusError as error:
            if not has_begun:
                raise
            yield f"event: error\ndata: {json.dumps({'error': str(error), 'hint': error.hint})}\n\n"
        finally:
            listener.close()
            serving.cancel()
            with suppress(asyncio.CancelledError, VenusError):
                await serving


_PARAMETERS = ("table", "where", "columns", "from", "business")


async def _next_frame(listener: _HttpListener, serving: asyncio.Task[None]) -> broker_pb2.ChangesFrame | None:
    """Return the next frame, None after a while without one. Raises the error that ended the stream."""
    taking = asyncio.ensure_future(listener.frames.get())
    try:
        await asyncio.wait({taking, serving}, timeout=COMMENT_S, return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            return taking.result()
        if serving.done():
            serving.result()
        return None
    finally:
        taking.cancel()


def _as_events(found: ChangeSet, columns: tuple[str, ...]) -> str:
    """Return changes as events; the last one has the position as its id."""
    parts = []
    for name, line in zip(found.names, as_lines(found, columns), strict=True):
        parts.append(f"event: {name}\ndata: {line}\n")
    if not parts:
        parts.append("event: position\ndata: {}\n")
    if found.position is not None:
        parts[-1] = f"id: {found.position}\n{parts[-1]}"
    return "".join(f"{part}\n" for part in parts)
