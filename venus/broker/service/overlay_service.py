"""The Overlay service for other brokers: exchanges, routed subscriptions, and matching of their changes."""

from __future__ import annotations

import time
from typing import Any

import grpc

from venus.broker.matching import messages
from venus.broker.matching.overlay import MatchingOverlay
from venus.rpc.errors import abort_on_error
from venus.wire import overlay_pb2, overlay_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class OverlayService(overlay_pb2_grpc.OverlayServicer):
    """RPCs of the Overlay service: Exchange, Route, Install and Match. Used in the service's event loop."""

    def __init__(self, overlay: MatchingOverlay) -> None:
        self._overlay, self._wire = overlay, overlay.wire

    async def Exchange(  # type: ignore[override]  # noqa: N802
        self, request: overlay_pb2.OverlayExchange, context: Context
    ) -> overlay_pb2.OverlayExchange | None:
        """Exchange neighbours in the overlay with another broker."""
        async with abort_on_error(context):
            return self._wire.encode_exchange(self._overlay.on_exchange(self._wire.decode_exchange(request)))
        return None

    async def Route(  # type: ignore[override]  # noqa: N802
        self, request: overlay_pb2.RouteRequest, context: Context
    ) -> overlay_pb2.RouteAnswer | None:
        """Forward a message with subscriptions, or accept it here."""
        async with abort_on_error(context):
            return self._wire.encode_result(await self._overlay.on_route(self._wire.decode_routed(request)))
        return None

    async def Install(  # type: ignore[override]  # noqa: N802
        self, request: overlay_pb2.InstallRequest, context: Context
    ) -> overlay_pb2.InstallAnswer | None:
        """Install subscriptions that a member of the same top cluster has received."""
        async with abort_on_error(context):
            self._wire.check_greeting(request.greeting)
            missing = self._overlay.install_here(messages.decode_installation(request.installation))
            return overlay_pb2.InstallAnswer(missing=missing)
        return None

    async def Match(  # type: ignore[override]  # noqa: N802
        self, request: overlay_pb2.MatchRequest, context: Context
    ) -> overlay_pb2.MatchAnswer | None:
        """Match changes of another broker with that broker's subscriptions."""
        async with abort_on_error(context):
            self._wire.check_greeting(request.greeting)
            found = await self._overlay.on_match(request.origin, request.parts)
            return messages.encode_matches(found, self._overlay.load.rate(time.monotonic()))
        return None
