"""The Admin service: status queries (VENUS 3.2), operators' decisions, removal of groups, promotions."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import grpc

from venus.broker.core import Core
from venus.broker.machine.mirror import home_from_wire
from venus.broker.replicas.gate import Gate
from venus.broker.service.ingest import IngestService
from venus.broker.service.service_status import ServiceStatus
from venus.broker.status.table_selection import requested_tables
from venus.errors import ProtocolError
from venus.flow.degradation import Lane
from venus.rpc.errors import abort_on_error
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2, broker_pb2_grpc

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(broker_pb2_grpc.AdminServicer):
    """RPCs for operators."""

    def __init__(
        self,
        core: Core,
        bridge: LoopBridge,
        service_status: ServiceStatus,
        ingest: IngestService,
        gate: Gate,
    ) -> None:
        self._core, self._bridge, self._gate = core, bridge, gate
        self._service_status, self._ingest = service_status, ingest

    async def Status(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.StatusRequest, context: Context
    ) -> broker_pb2.BrokerStatus | None:
        """Return the status of one business, or of all."""
        async with abort_on_error(context):
            if request.business:
                self._gate.admit_reader(request.business)
            call = partial(self._service_status.status, request.business, requested_tables(request))
            return await self._bridge.run_blocking(Lane.DETAILS, call)
        return None

    async def Decide(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.DecideRequest, context: Context
    ) -> broker_pb2.Decided | None:
        """Decide half messages and raise the epoch. A live producer must connect again to read the outcome."""
        async with abort_on_error(context):
            if request.verdict not in (broker_pb2.COMMIT, broker_pb2.ROLLBACK):
                raise ProtocolError("an operator decides COMMIT or ROLLBACK")
            with self._ingest.overrule(request.business, request.batch_no):
                return await asyncio.wrap_future(
                    self._core.producers.operator_decide(request.business, request.batch_no, request.verdict)
                )
        return None

    async def Forget(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.ForgetRequest, context: Context
    ) -> broker_pb2.Empty | None:
        """Drop a consumer group."""
        async with abort_on_error(context):
            await self._bridge.run_blocking(
                Lane.CONTROL, self._core.subscriptions.forget, request.business, request.group
            )
            self._service_status.reports.forget(request.business, request.group)
            return broker_pb2.Empty()
        return None

    async def ForgetBusiness(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.ForgetBusinessRequest, context: Context
    ) -> broker_pb2.Empty | None:
        """Remove a business permanently."""
        async with abort_on_error(context):
            if not await self._gate.forget(request.business):
                await self._bridge.run_blocking(Lane.FULL_DATA, self._core.forget_business, request.business)
            self._service_status.forget(request.business)
            return broker_pb2.Empty()
        return None

    async def CloseLosses(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.CloseLossesRequest, context: Context
    ) -> broker_pb2.CloseLossesAnswer | None:
        """Record that the losses of unclean elections were found and repaired at a group's target."""
        async with abort_on_error(context):
            return broker_pb2.CloseLossesAnswer(waiting_for=await self._close_losses(request))
        return None

    async def _close_losses(self, request: broker_pb2.CloseLossesRequest) -> list[str]:
        homes = self._core.homes
        if request.give_up:
            await asyncio.wrap_future(homes.give_up(request.business, list(request.home_terms)))
            return []
        if not request.group:
            raise ProtocolError("the request does not name the group whose target was compared")
        waiting = set[str]()
        if request.terms:
            waiting |= set(await self._gate.close_losses(request.business, request.group, list(request.terms)))
        if request.home_terms:
            closed = homes.close_losses(request.business, list(request.home_terms), request.group)
            left: list[str] = await asyncio.wrap_future(closed)
            waiting |= set(left)
        return sorted(waiting)

    async def Promote(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.PromoteRequest, context: Context
    ) -> broker_pb2.Promoted | None:
        """Make this set the home of a business that has lost its home."""
        async with abort_on_error(context):
            self._gate.admit_consumer(request.business)
            network = self._service_status.network
            assert network is not None, "a broker that serves has its place"
            call = partial(network.promote, force=request.force, only_look=request.only_look)
            return await self._bridge.run_blocking(Lane.FULL_DATA, call, request.business)
        return None

    async def StepDown(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.StepDownRequest, context: Context
    ) -> broker_pb2.Empty | None:
        """Make another set the home of a business, and send producers and consumers there."""
        async with abort_on_error(context):
            home = home_from_wire(request.home)
            if home is None or not home.addresses:
                raise ProtocolError("the request does not name the home and its addresses")
            if await asyncio.wrap_future(self._core.homes.note(request.business, home)):
                logger.error("%s: %s has become the home: this set steps down", request.business, home)
            elif (network := self._service_status.network) is not None:
                network.succession.add_rival(home)  # that set may be a home unknown to this one
            return broker_pb2.Empty()
        return None
