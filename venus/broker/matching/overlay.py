"""A broker in the overlay: its node, its timers, and the requests of other brokers that it serves (SREM 3 and 4).

A cycle of exchanges runs every `exchange_s`. Everything runs in the service's event loop, except matching, which runs
in a lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from venus.broker.matching import messages
from venus.broker.matching.connections import OverlayConnections
from venus.broker.matching.matching_load import MatchedEvents, MatchingLoad
from venus.broker.matching.messages import Missing, OverlayMessages
from venus.broker.matching.remote import RemoteMatching, SharedTable
from venus.config.sections import MatchingSettings
from venus.errors import ConfigError, Overloaded, Unavailable
from venus.flow.degradation import Lane
from venus.model import is_every_interface
from venus.network.matching.installed import InstallationMessage, InstalledSubspaces
from venus.network.matching.interests import Matches
from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import Exchange, OverlayNode, RoutedMessage, RoutingResult, Silent
from venus.rpc.address import ClientCredentials
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2, overlay_pb2

logger = logging.getLogger(__name__)

LEAVE_S = 1.0
#: Requests of other brokers that are matched at once; further ones go to another candidate.
REQUESTS_MAX = 16
#: After this many cycles without a neighbour, an alarm says that no configured address answers.
ALONE_CYCLES = 10
#: Cycles differ in length by this share, so that brokers do not all exchange at once.
JITTER = 0.1


class MatchingOverlay:
    """Part of this broker in the overlay, where brokers match subscriptions for each other; `start` joins it."""

    def __init__(
        self,
        settings: MatchingSettings,
        name: str,
        proof: ClientCredentials,
        bridge: LoopBridge,
        known_addresses: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.settings, self._bridge, self._known = settings, bridge, known_addresses
        self._loop = asyncio.get_running_loop()
        self.shape = CloudShape.of(settings.brokers)
        self.wire = OverlayMessages(name, self.shape, lambda: time.time_ns() // 1000)
        self.connections = OverlayConnections(self.wire, proof)
        self.installed, self.load = InstalledSubspaces(), MatchingLoad()
        self.remote = RemoteMatching(
            self.shape,
            self,
            self.load,
            lease_s=settings.lease_s,
            deadline_s=settings.deadline_ms / 1000,
            local_interests_max=settings.local_interests_max,
            monotonic=time.monotonic,
            thread_time=time.thread_time,
        )
        self._node: OverlayNode[InstallationMessage, Missing] | None = None
        self._stamp = self._requests = self._alone = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._status = broker_pb2.OverlayStatus()

    @property
    def node(self) -> OverlayNode[InstallationMessage, Missing]:
        """The node. Raises Unavailable before the start."""
        if self._node is None:
            raise Unavailable("this broker has not joined the overlay yet")
        return self._node

    # -- beginning and end -----------------------------------------------------------------------------------------

    def start(self, address: str) -> None:
        """Join under this address, and stay joined."""
        if is_every_interface(address):
            raise ConfigError(
                f"broker.listen {address} is not an address that other brokers can use",
                hint="set broker.address to a HOST:PORT that the other brokers can reach",
            )
        self._node = OverlayNode(
            address,
            self.shape,
            self.connections,
            chance=random.randrange,
            next_stamp=self._next_stamp,
            load=lambda: self.load.rate(time.monotonic()),
            receive=self.install_here,
        )
        self.remote.origin = address
        for work in (self._run_cycle, self.remote.run):
            self._tasks.append(asyncio.create_task(self._keep_running(work)))

    async def stop(self) -> None:
        """Leave: the neighbours forget this broker at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._node is not None and self._tasks:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._node.leave(), LEAVE_S)
        await self.connections.close()

    async def _keep_running(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` periodically until cancelled; an error is logged and does not end it."""
        while True:
            try:
                await work()
            except Exception:
                logger.exception("overlay: a cycle failed")
            await asyncio.sleep(self.settings.exchange_s * (1 + JITTER * random.uniform(-1, 1)))

    async def _run_cycle(self) -> None:
        """Run one cycle: drop expired leases, exchange neighbours, and renew the status."""
        self.installed.expire(time.monotonic())
        await self.node.run_cycle(self._seeds())
        self._alone = 0 if self.node.views.known_brokers() else self._alone + 1
        self._status = self._describe()

    def _seeds(self) -> tuple[str, ...]:
        """Return the known addresses through which to join the overlay."""
        return (*self.settings.join, *self._known())

    def _next_stamp(self) -> int:
        """Return a time stamp above all earlier ones of this broker, also across a restart."""
        self._stamp = max(self._stamp + 1, time.time_ns() // 1000)
        return self._stamp

    def shared_table(self, table: str) -> SharedTable:
        """Return the object that shares the interests in a table with other brokers."""
        return SharedTable(self.remote, table)

    # -- requests of other brokers ---------------------------------------------------------------------------------

    def on_exchange(self, message: Exchange) -> Exchange:
        """Handle an exchange."""
        return self.node.on_exchange(message)

    async def on_route(self, message: RoutedMessage[InstallationMessage]) -> RoutingResult[Missing]:
        """Handle a routed message."""
        return await self.node.on_route(message)

    def install_here(self, installation: InstallationMessage) -> Missing:
        """Install another broker's subscriptions; return the parts that must be sent as a whole."""
        return self.installed.install(installation, time.monotonic())

    async def on_match(self, origin: str, parts: Sequence[overlay_pb2.MatchPart]) -> list[Matches | None]:
        """Match changes of another broker; None for a part whose subscriptions are not known here."""
        if self._requests >= REQUESTS_MAX:
            raise Overloaded(f"this broker matches {self._requests} batches already")
        work = []
        for part in parts:
            events = messages.decode_changes(part)
            content = self.installed.find(origin, part.table, part.path, part.digest)
            work.append((content, content.freeze() if content is not None else None, events))

        def match_all() -> list[Matches | None]:
            """Match the changes of every part, and count the work as load."""
            found: list[Matches | None] = []
            for _, frozen, events in work:
                began = time.thread_time()
                found.append(frozen.prepare(events).match(events) if frozen is not None else None)
                count = len(frozen.interests) if frozen is not None else 0
                self.load.record(events.count, count, time.thread_time() - began, time.monotonic())
            return found

        self._requests += 1
        try:
            matches = await self._bridge.run_blocking(Lane.INCREMENTS, match_all)
        finally:
            self._requests -= 1
        for content, frozen, _ in work:
            if content is not None and frozen is not None:
                content.keep_index(frozen)
        return matches

    # -- requests to other brokers ---------------------------------------------------------------------------------

    async def install(self, target: Identifier, installation: InstallationMessage) -> RoutingResult[Missing]:
        """Install subscriptions of this broker at the cluster nearest to a target."""
        return await self.node.find(target, installation)

    async def match(
        self, to: str, asked: Sequence[MatchedEvents], timeout_s: float
    ) -> tuple[list[Matches | None], float]:
        """Have changes matched by a broker. Raises Silent."""
        if to != self.node.address:
            return await self.connections.match(to, self.node.address, asked, timeout_s)
        parts = [messages.encode_changes(one.table, one.path, one.digest, one.events) for one in asked]
        try:
            return await self.on_match(to, parts), self.load.rate(time.monotonic())
        except Overloaded:
            raise Silent(to) from None

    def submit(self, work: Coroutine[Any, Any, list[Matches | None]]) -> Future[list[Matches | None]]:
        """Start a coroutine in the event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def post(self, call: Callable[[], object]) -> None:
        """Run a call in the event loop, from any thread."""
        self._bridge.post(call)

    async def run_blocking(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call in another thread."""
        return await self._bridge.run_blocking(Lane.INCREMENTS, call)

    # -- status ----------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Return the problems that an operator has to solve."""
        if self._node is None or self._alone < ALONE_CYCLES:
            return []
        if not any(address != self._node.address for address in self._seeds()):
            return []
        why = next(reversed(self.connections.reasons.values()), "")
        return [f"the overlay: no address of [matching] join answers: {why or 'none is of another broker'}"]

    def add_to_status(self, status: broker_pb2.BrokerStatus) -> None:
        """Add the overlay, as it was after the last cycle, to a broker's status; works in any thread."""
        status.overlay.CopyFrom(self._status)

    def _describe(self) -> broker_pb2.OverlayStatus:
        """Return this broker's present status in the overlay."""
        node, counters, found = self.node, self.remote.counters, broker_pb2.OverlayStatus()
        found.name, found.cluster = self.wire.name, ".".join(map(str, node.cluster))
        found.members.extend(sorted([node.address, *node.views.top]))
        found.neighbours, found.cycles = len(node.views.known_brokers()), node.cycles
        found.exchanges, found.moves = node.exchanges, node.moves
        found.load, found.pairs = self.load.rate(time.monotonic()), self.load.pairs
        found.installed_subspaces, found.installed_interests = len(self.installed), self.installed.interests
        found.subspaces, found.uninstalled = self.remote.subspaces, self.remote.uninstalled
        found.requests, found.unanswered, found.unknown = counters.asked, counters.unanswered, counters.unknown
        found.changes_elsewhere, found.changes_here = counters.changes_elsewhere, counters.changes_here
        return found
