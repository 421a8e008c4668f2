"""The HTTP server of a broker: /, /status.json, /metrics, /health, /alarms and /v1/changes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import resources

import psutil
from google.protobuf.json_format import MessageToDict
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from venus.broker.service.access import AccessControl
from venus.broker.service.change_events import ChangeEvents, error_response
from venus.broker.service.delivery import DeliveryService
from venus.broker.service.http_guard import CERTIFICATE, GuardedConfig, GuardedListener, GuardedProtocol, GuardedServer
from venus.broker.service.metrics import build_registry
from venus.broker.service.service_status import HealthCheck, ServiceStatus
from venus.errors import ConfigError, Unproven, VenusError
from venus.flow.degradation import Lane
from venus.rpc.event_loop import LoopBridge
from venus.security.certificate_files import HttpContext
from venus.wire import broker_pb2

#: A health check result: why the broker cannot work ("" if it can), and its alarms.
HealthResult = tuple[str, list[str]]

#: A health check result is valid for this long. A request that finds a result half as old also starts a new check.
FRESH_S = 1.0


class HealthCache:
    """Cache of the newest health check. While the result is fresh, a probe need not wait for a new check."""

    def __init__(
        self, look: Callable[[], Awaitable[HealthResult]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._check, self._monotonic = look, monotonic
        self._newest: HealthResult | None = None
        self._began = 0.0  # when the check behind `_newest` began
        self._again: asyncio.Task[HealthResult] | None = None

    async def current(self) -> HealthResult:
        """Return a fresh result. Raises what the check raises, unless the result was cached."""
        age_s = self._monotonic() - self._began
        if self._newest is None or age_s >= FRESH_S:
            return await self._check_now()
        if age_s >= FRESH_S / 2 and (self._again is None or self._again.done()):
            self._again = asyncio.create_task(self._check_now())
            self._again.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._newest

    async def _check_now(self) -> HealthResult:
        """Check the health now, and cache the result if it is the newest."""
        began = self._monotonic()
        found = await self._check()
        if began >= self._began:
            self._newest, self._began = found, began
        return found


HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
#: The page loads nothing from other hosts, has no inline code, and no other page may frame it.
PAGE_HEADERS = HEADERS | {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
#: The files of the page, in the folder `page`.
PARTS = {
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(("page.js", "business.js", "charts.js", "network.js", "show.js", "traffic.js"), "text/javascript"),
}
STOP_TIMEOUT_S = 2
#: A browser asks for a name, which is ignored, and a password, which is the token.
CHALLENGE = {"WWW-Authenticate": 'Basic realm="VENUS: any name, and a token as the password", charset="UTF-8"'}

RequestHandler = Callable[[Request], Awaitable[Response]]


class Pages:
    """The request handlers."""

    def __init__(
        self,
        bridge: LoopBridge,
        service_status: ServiceStatus,
        health: HealthCheck,
        access: AccessControl,
        delivery: DeliveryService,
    ) -> None:
        self._changes = ChangeEvents(delivery)
        self._bridge, self._service_status, self._health = bridge, service_status, health
        self.access = access
        self._recent = HealthCache(self._check_health)
        folder = resources.files("venus.broker.service").joinpath("page")
        self._page = folder.joinpath("index.html").read_text("utf-8")
        self._parts = {name: folder.joinpath(name).read_bytes() for name in PARTS}

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/", self._guard_page(self.page)),
                Route("/page/{name}", self._guard_page(self.part)),
                Route("/status.json", self._guard_page(self.status)),
                Route("/history.json", self._guard_page(self.history)),
                Route("/metrics", self._guard_page(self.metrics)),
                Route("/health", self.health),
                Route("/alarms", self._guard_page(self.alarms)),
                Route("/v1/changes", self.changes),
            ]
        )

    def _guard_page(self, answer: RequestHandler) -> RequestHandler:
        """Wrap a handler with the access check that applies if TLS is on."""

        async def check_first(request: Request) -> Response:
            """Answer a request if its client may see the page, else return the refusal."""
            refusal = self._refusal(request)
            return await answer(request) if refusal is None else refusal_response(refusal)

        return check_first

    def _refusal(self, request: Request, listens: broker_pb2.ListenerFrame | None = None) -> VenusError | None:
        """Return why a client may not see a page, None if it may."""
        where = f"{request.client.host}:{request.client.port}" if request.client else "unknown"
        certificate = getattr(request.state, CERTIFICATE, None)
        authorization = request.headers.get("authorization", "")
        return self.access.page_refusal(where, request.url.path, certificate, authorization, listens)

    async def changes(self, request: Request) -> Response:
        """Return a subscription by content as server-sent events, which do not end."""
        try:
            wanted = self._changes.parse(request)
            if (refusal := self._refusal(request, wanted.first)) is not None:
                return refusal_response(refusal)
            return await self._changes.answer(request, wanted)
        except VenusError as error:
            return error_response(error)

    async def page(self, _: Request) -> Response:
        """Return the status page."""
        return HTMLResponse(self._page, headers=PAGE_HEADERS)

    async def part(self, request: Request) -> Response:
        """Return one file of the page."""
        name = request.path_params["name"]
        if name not in PARTS:
            return PlainTextResponse("there is no such file\n", status_code=404, headers=HEADERS)
        return Response(self._parts[name], media_type=PARTS[name], headers=PAGE_HEADERS)

    async def status(self, _: Request) -> Response:
        """Return the status as JSON: the message of the Admin service in protobuf's JSON mapping."""
        try:
            status = await self._bridge.run_blocking(Lane.DETAILS, self._service_status.status)
        except VenusError as error:
            return JSONResponse({"error": str(error), "hint": error.hint}, status_code=503, headers=HEADERS)
        body = MessageToDict(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        body["resident_bytes"] = str(psutil.Process().memory_info().rss)
        body["security"] = self.access.counters()
        if (watch := self._service_status.watch) is not None:
            body["raised"] = watch.describe_alarms(status)
            body["recipients"] = [asdict(state) for state in watch.recipients()]
        return JSONResponse(body, headers=HEADERS)

    async def history(self, _: Request) -> Response:
        """Return the history: points in time in Unix seconds, and the values of each figure at them."""
        watch = self._service_status.watch
        if watch is None:
            return JSONResponse({"times": [], "series": [], "left_out": 0}, headers=HEADERS)
        shown = await self._bridge.run_blocking(Lane.DETAILS, watch.history)
        series = [
            {"business": business, "group": group, "figure": figure, "values": values}
            for (business, group, figure), values in sorted(shown.series.items())
        ]
        return JSONResponse({"times": shown.times, "series": series, "left_out": shown.left_out}, headers=HEADERS)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        try:
            status = await self._bridge.run_blocking(Lane.DETAILS, self._service_status.status)
        except VenusError as error:
            return PlainTextResponse(f"{error}\n", status_code=503, headers=HEADERS)
        watch = self._service_status.watch
        alarms, sent = (watch.describe_alarms(status), watch.recipients()) if watch is not None else ([], [])
        return Response(
            generate_latest(build_registry(status, refused=self.access.counters(), alarms=alarms, sent=sent)),
            media_type=CONTENT_TYPE_LATEST,
            headers=HEADERS,
        )

    async def health(self, request: Request) -> Response:
        """Return 503 with the reason if the broker cannot work, else 200 with "ok" or with the alarms.

        Orchestrators restart a broker that is not healthy, and a halted table is no reason for a restart. With TLS, a
        client without a role gets one word, because probes of orchestrators have no role.
        """
        reason, alarms = self._health.check() if self._health.stopping else await self._recent.current()
        if self.access.files is not None and self._refusal(request) is not None:
            reason, alarms = reason and "unavailable", []
        if reason:
            return PlainTextResponse(f"{reason}\n", status_code=503, headers=HEADERS)
        return PlainTextResponse("\n".join(["degraded" if alarms else "ok", *alarms, ""]), headers=HEADERS)

    async def _check_health(self) -> HealthResult:
        return await self._bridge.run_blocking(Lane.CONTROL, self._health.check)

    async def alarms(self, _: Request) -> Response:
        """Return 200 if there is no alarm, else 503 with one line for each alarm."""
        reason, alarms = await self._check_health()
        found = [reason] if reason else alarms
        return PlainTextResponse(
            "\n".join([*(found or ["none"]), ""]), status_code=503 if found else 200, headers=HEADERS
        )


def refusal_response(error: VenusError) -> Response:
    """Return 401, which makes a browser ask for a token, or 403 if the role of the client is not enough."""
    if isinstance(error, Unproven):
        return PlainTextResponse(f"{error}\n", status_code=401, headers=HEADERS | CHALLENGE)
    return PlainTextResponse(f"{error}\n{error.hint}\n", status_code=403, headers=HEADERS)


class HttpServer:
    """The HTTP server and its task."""

    def __init__(self, listen: str, pages: Pages) -> None:
        self._socket = _bind(listen)
        files = pages.access.files
        config = GuardedConfig(
            pages.app(),
            http=GuardedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        config.listener = self._socket
        if files is not None:
            config.load()
            config.ssl = HttpContext.of(files)
        self._server = GuardedServer(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address on which the server listens."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Serve in the running loop."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """End all connections and close the socket."""
        self._server.end()
        if self._task is not None:
            await self._task
        self._socket.close()


def _bind(listen: str) -> GuardedListener:
    """Return a socket that listens at an address. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    try:
        made = socket.create_server(
            (host.strip("[]"), int(port)), family=socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        )
        return GuardedListener(fileno=made.detach())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"broker.http {listen} cannot be used: {error}", hint='Choose another, or "" for none.'
        ) from error
