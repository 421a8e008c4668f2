"""The operator's service: the metadata queries of VENUS 3.2, decisions in a producer's place, groups that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from venus.broker.core import Core
from venus.broker.service.answering import answering
from venus.broker.service.gate import Gate
from venus.broker.service.ingest import Ingest
from venus.broker.service.loop_bridge import Lane, LoopBridge
from venus.broker.service.service_status import ServiceStatus
from venus.errors import ProtocolError
from venus.wire import broker_pb2, broker_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class Admin(broker_pb2_grpc.AdminServicer):
    """Status, Decide, Forget."""

    def __init__(
        self, core: Core, bridge: LoopBridge, service_status: ServiceStatus, ingest: Ingest, gate: Gate
    ) -> None:
        self._gate = gate
        self._core, self._bridge, self._service_status, self._ingest = core, bridge, service_status, ingest

    async def Status(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.StatusRequest, context: Context
    ) -> broker_pb2.BrokerStatus | None:
        """Say what stands where."""
        async with answering(context):
            if request.business:
                self._gate.reader(request.business)
            return await self._bridge.blocking(Lane.DETAILS, self._service_status.status, request.business)
        return None

    async def Decide(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.DecideRequest, context: Context
    ) -> broker_pb2.Decided | None:
        """Decide half messages; the epoch is raised, and a live producer has to connect again and read the outcome."""
        async with answering(context):
            if request.verdict not in (broker_pb2.COMMIT, broker_pb2.ROLLBACK):
                raise ProtocolError("an operator decides COMMIT or ROLLBACK")
            with self._ingest.overruled(request.business, request.batch_no):
                return await asyncio.wrap_future(
                    self._core.producers.operator_decide(request.business, request.batch_no, request.verdict)
                )
        return None

    async def Forget(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.ForgetRequest, context: Context
    ) -> broker_pb2.Empty | None:
        """Drop a consumer group."""
        async with answering(context):
            await self._bridge.blocking(Lane.CONTROL, self._core.subscriptions.forget, request.business, request.group)
            self._service_status.reports.forget(request.business, request.group)
            return broker_pb2.Empty()
        return None

    async def ForgetBusiness(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.ForgetBusinessRequest, context: Context
    ) -> broker_pb2.Empty | None:
        """Remove a business for good."""
        async with answering(context):
            if not await self._gate.forget(request.business):
                await self._bridge.blocking(Lane.FULL_DATA, self._core.forget_business, request.business)
            self._service_status.forget(request.business)
            return broker_pb2.Empty()
        return None

    async def CloseLosses(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.CloseLossesRequest, context: Context
    ) -> broker_pb2.CloseLossesAnswer | None:
        """Note that what unclean elections lost was found and repaired at a group's target."""
        async with answering(context):
            waiting = await self._gate.close_losses(request.business, request.group, list(request.terms))
            return broker_pb2.CloseLossesAnswer(waiting_for=waiting)
        return None
