"""The Replica service for other brokers of the cluster: log entries of led businesses, ballots and copies."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc

from venus.broker.core import Core
from venus.broker.replicas import connections, copies
from venus.broker.replicas.connections import BrokerConnections, FollowerStream
from venus.broker.replicas.host import Host
from venus.broker.service.traffic import Traffic
from venus.errors import NotLeader, ProtocolError, Refused
from venus.flow.degradation import Lane
from venus.replication.records import Member
from venus.rpc.errors import abort_on_error
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import check_frame_seal
from venus.wire import replica_pb2, replica_pb2_grpc

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class ReplicaService(replica_pb2_grpc.ReplicaServicer):
    """RPCs of the Replica service: Follow, Ballot and Copy. Used in the host's loop."""

    def __init__(
        self,
        core: Core,
        bridge: LoopBridge,
        traffic: Traffic,
        host: Host,
        lines: BrokerConnections,
        standing: copies.CopyPool,
    ) -> None:
        self._copies = standing
        self._core, self._bridge, self._host, self._lines = core, bridge, host, lines
        self._traffic = traffic

    async def Follow(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one follower until it leaves."""
        async with abort_on_error(context):
            first = check_frame_seal(await context.read(), "the first frame of a follower")
            if first is grpc.aio.EOF or not first.HasField("greeting"):
                raise ProtocolError("the first frame of a follower must have a greeting")
            line = FollowerStream(self._check_greeting(first.greeting), context, takes_parts=first.takes_parts)
            self._lines.add_follower(line)
            reader = asyncio.create_task(self._read(line, context))
            try:
                await line.write()
                if reader.done() and (error := reader.exception()) is not None:
                    raise error
            finally:
                reader.cancel()
                self._lines.remove_follower(line)

    async def _read(self, line: FollowerStream, context: Context) -> None:
        """Pass a follower's fetches to the host until the follower leaves."""
        try:
            while (frame := check_frame_seal(await context.read(), "a frame of a follower")) is not grpc.aio.EOF:
                if frame.HasField("greeting"):
                    raise ProtocolError("a follower greets once")
                for fetch in frame.fetches:
                    self._host.on_fetch(fetch.business, connections.decode_fetch(line.follower, fetch))
        finally:
            line.end()

    async def Ballot(  # type: ignore[override]  # noqa: N802
        self, request: replica_pb2.BallotRequest, context: Context
    ) -> replica_pb2.BallotAnswer | None:
        """Give this broker's ballot."""
        async with abort_on_error(context):
            sender = self._check_greeting(request.greeting)
            return connections.encode_ballot(self._host.on_ballot_request(request.business, sender, request.term))
        return None

    async def Copy(self, request: replica_pb2.CopyRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Send a business that this broker leads."""
        async with abort_on_error(context):
            sender = self._check_greeting(request.greeting)
            replica = self._host.replicas.get(request.business)
            if replica is None or not replica.leads:
                raise NotLeader(f"{request.business}: this broker does not lead it")
            if request.done:
                await self._bridge.run_blocking(Lane.CONTROL, self._copies.remove_installed, request.copy)
                return
            logger.info("%s: broker %s takes a copy", request.business, sender.broker)
            business = self._core.catalogue.find(request.business)
            take, release = self._copies.acquire, self._copies.release
            copy = await self._bridge.open_blocking(Lane.FULL_DATA, release, take, business, request.copy)
            try:
                await self._send(copy, request, context)
            finally:
                self._bridge.run_in_background(Lane.FULL_DATA, release, copy)

    async def _send(self, copy: copies.BusinessCopy, request: replica_pb2.CopyRequest, context: Context) -> None:
        """Send the part of a copy that the replica lacks. The next piece is read while one is being sent."""
        place = copies.CopyPlace()
        if copy.name == request.copy:
            place = copies.CopyPlace(area=request.area, after=request.after if request.HasField("after") else None)
        await context.write(replica_pb2.CopyFrame(copy=copy.name, records_expected=copy.records_expected))
        frames, following = 0, self._read_piece(copy, place)
        try:
            while (piece := await asyncio.shield(following)) is not None:
                following = self._read_piece(copy, piece.next_place)
                await self._traffic.pace_full_data(request.business, sum(map(len, piece.values)))
                await context.write(replica_pb2.CopyFrame(area=piece.area, keys=piece.keys, values=piece.values))
                frames += 1
        finally:
            await asyncio.wait([following])  # nothing may read a copy that is closed
        await context.write(replica_pb2.CopyFrame(end=True, frames=frames))

    def _read_piece(
        self, copy: copies.BusinessCopy, place: copies.CopyPlace
    ) -> asyncio.Future[copies.CopyPiece | None]:
        """Read the piece of a copy after a place, in a thread of the lane."""
        return asyncio.ensure_future(self._bridge.run_blocking(Lane.FULL_DATA, copy.read_after, place))

    def _check_greeting(self, greeting: replica_pb2.Greeting) -> Member:
        """Return the sender. Raises Refused if it is unknown, or if another broker is addressed."""
        sender, receiver = connections.decode_member(greeting.sender), connections.decode_member(greeting.receiver)
        if greeting.cluster != self._lines.cluster:
            raise Refused(f"broker {sender.broker} is of another cluster (id {greeting.cluster})")
        if receiver != self._lines.me:
            raise Refused(f"this is broker {self._lines.me}, not {receiver}")
        if sender == self._lines.me or self._host.brokers.find(sender) is None:
            raise Refused(f"broker {sender} is not known to the cluster", hint="it registers at etcd when it starts")
        return sender
