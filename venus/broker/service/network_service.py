"""The Network service: clients ask where the nearest set is; sets below report themselves (Minos 3.4.1)."""

from __future__ import annotations

from typing import Any

import grpc

from venus.broker.mirrors.directory_exchange import DirectoryExchange
from venus.flow.degradation import Lane
from venus.rpc.errors import abort_on_error
from venus.rpc.event_loop import LoopBridge
from venus.wire import network_pb2, network_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class NetworkService(network_pb2_grpc.NetworkServicer):
    """RPCs of the Network service: Where, Report and Share."""

    def __init__(self, bridge: LoopBridge, exchange: DirectoryExchange) -> None:
        self._bridge, self._exchange = bridge, exchange

    async def Where(  # type: ignore[override]  # noqa: N802
        self, request: network_pb2.WhereRequest, context: Context
    ) -> network_pb2.WhereAnswer | None:
        """Return the sets that a client may use, the nearest first."""
        async with abort_on_error(context):
            return await self._bridge.run_blocking(Lane.CONTROL, self._exchange.where, request)
        return None

    async def Report(  # type: ignore[override]  # noqa: N802
        self, request: network_pb2.NetworkReport, context: Context
    ) -> network_pb2.NetworkReport | None:
        """Record the sets that a set below reports; return the sets known here."""
        async with abort_on_error(context):
            return await self._bridge.run_blocking(Lane.CONTROL, self._exchange.on_report, request)
        return None

    async def Share(  # type: ignore[override]  # noqa: N802
        self, _: network_pb2.NetworkReport, context: Context
    ) -> network_pb2.NetworkReport | None:
        """Return the sets known here, for a broker of the same cluster."""
        async with abort_on_error(context):
            return await self._bridge.run_blocking(Lane.CONTROL, self._exchange.on_share)
        return None
