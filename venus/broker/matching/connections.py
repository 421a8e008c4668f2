"""Calls to other brokers of the overlay over gRPC. The caller treats a broker without a valid answer in time as silent.

Everything runs in the service's event loop. Each broker has one channel, which is closed after a failure, so that the
next call connects at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from venus.broker.matching import messages
from venus.broker.matching.matching_load import MatchedEvents
from venus.broker.matching.messages import Missing, OverlayMessages
from venus.errors import VenusError
from venus.network.matching.installed import InstallationMessage
from venus.network.matching.interests import Matches
from venus.network.skipcloud.node import Exchange, RoutedMessage, RoutingResult, Silent
from venus.network.skipcloud.views import Neighbour
from venus.rpc import limits
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.channel import aio_channel, channel_options
from venus.rpc.errors import from_rpc_error
from venus.rpc.sealed import seal, unseal
from venus.wire import overlay_pb2

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
T = TypeVar("T")

EXCHANGE_S = 1.0
#: Timeout of a call that passes received subscriptions on to a member of the own top cluster.
DELIVER_S = 1.0
CHANNELS_MAX = 64
#: Limit of the reasons for silence that are kept for operators.
REASONS_MAX = 16


class OverlayConnections:
    """Connections of the overlay; implements `OverlayTransport`."""

    def __init__(self, wire: OverlayMessages, proof: ClientCredentials) -> None:
        self._wire, self._proof = wire, proof
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        #: Why the last call to a broker had no answer, by address.
        self.reasons: OrderedDict[str, str] = OrderedDict()

    async def exchange(self, to: str, message: Exchange) -> Exchange:
        """Exchange neighbours."""
        request = self._wire.encode_exchange(message)
        answer = await self._call(to, "Exchange", request, overlay_pb2.OverlayExchange, EXCHANGE_S)
        return self._decode_answer(to, lambda: self._wire.decode_exchange(answer))

    async def route(self, to: Neighbour, message: RoutedMessage[InstallationMessage]) -> RoutingResult[Missing]:
        """Forward a message."""
        request = self._wire.encode_routed(message)
        answer = await self._call(to.address, "Route", request, overlay_pb2.RouteAnswer, message.budget_s)
        return self._decode_answer(to.address, lambda: self._wire.decode_result(answer))

    async def deliver(self, to: Sequence[Neighbour], payload: InstallationMessage) -> list[Missing | None]:
        """Install subscriptions at other members of the top cluster, all at once."""
        request = overlay_pb2.InstallRequest(
            greeting=self._wire.greeting(), installation=messages.encode_installation(payload)
        )

        async def install_at(address: str) -> Missing | None:
            """Install the subscriptions at one broker; None if it does not answer."""
            try:
                answer = await self._call(address, "Install", request, overlay_pb2.InstallAnswer, DELIVER_S)
            except Silent:
                return None
            return tuple(answer.missing)

        return list(await asyncio.gather(*(install_at(one.address) for one in to)))

    async def match(
        self, to: str, origin: str, asked: Sequence[MatchedEvents], timeout_s: float
    ) -> tuple[list[Matches | None], float]:
        """Have changes matched; return the pairs of each part (None = unknown there) and that broker's load."""
        parts = [messages.encode_changes(one.table, one.path, one.digest, one.events) for one in asked]
        request = overlay_pb2.MatchRequest(greeting=self._wire.greeting(), origin=origin, parts=parts)
        answer = await self._call(to, "Match", request, overlay_pb2.MatchAnswer, timeout_s)
        return self._decode_answer(to, lambda: messages.decode_matches(answer, asked)), answer.load

    async def close(self) -> None:
        """Close every channel."""
        channels, self._channels = list(self._channels.values()), OrderedDict()
        await asyncio.gather(*(channel.close() for channel in channels), *self._closing, return_exceptions=True)

    async def _call(self, address: str, method: str, request: Message, kind: type[M], timeout_s: float) -> M:
        """Call a method. Raises Silent."""
        try:
            call: Any = self._channel(address).unary_unary(
                f"/venus.wire.Overlay/{method}", request_serializer=seal, response_deserializer=None
            )
            answer = unseal(kind, await call(request, timeout=timeout_s), f"an answer to {method}")
            limits.check(answer, "from another broker: ")
        except grpc.RpcError as error:
            raise self._record_silence(address, str(from_rpc_error(error))) from None
        except (VenusError, ValueError) as error:
            raise self._record_silence(address, str(error)) from None
        self.reasons.pop(address, None)
        return answer

    def _decode_answer(self, address: str, decode: Callable[[], T]) -> T:
        """Decode a broker's answer. Raises Silent for an invalid one, as if the broker had not answered."""
        try:
            return decode()
        except VenusError as error:
            raise self._record_silence(address, str(error)) from None

    def _record_silence(self, address: str, reason: str) -> Silent:
        """Record why a broker did not answer, close its channel, and return the error."""
        if self.reasons.get(address) != reason:
            logger.info("overlay: %s does not answer: %s", address, reason)
        self.reasons[address] = reason
        self.reasons.move_to_end(address)
        if len(self.reasons) > REASONS_MAX:
            self.reasons.popitem(last=False)
        channel = self._channels.pop(address, None)
        if channel is not None:
            self._close_soon(channel)
        return Silent(address)

    def _channel(self, address: str) -> grpc.aio.Channel:
        """Return the channel to a broker; beyond the limit, close the one that was unused for the longest time."""
        channel = self._channels.get(address)
        if channel is None:
            own = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
            channel = aio_channel(BrokerAddress(address, self._proof), channel_options() + own)
            self._channels[address] = channel
            if len(self._channels) > CHANNELS_MAX:
                self._close_soon(self._channels.popitem(last=False)[1])
        self._channels.move_to_end(address)
        return channel

    def _close_soon(self, channel: grpc.aio.Channel) -> None:
        """Close a channel once the calls on it have ended, at the latest after EXCHANGE_S."""
        task = asyncio.get_running_loop().create_task(channel.close(grace=EXCHANGE_S))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
