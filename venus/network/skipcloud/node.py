"""One broker of SkipCloud: it joins through any known address, exchanges neighbours, routes, and leaves (SREM 3). Pure.

A broker knows only what other brokers have sent; none has the whole map. The methods are coroutines that wait only for
the transport, so the same code runs over gRPC and in a simulation without an event loop.

Clusters stay about equally large: a new broker joins the emptiest of several, and one member of a larger cluster moves
to a smaller one that it finds by routing to random identifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import xxhash

from venus.network.skipcloud.clusters import CloudShape, Identifier, common_prefix
from venus.network.skipcloud.views import Chance, Entries, Neighbour, NeighbourViews

#: Maximum number of attempts at one broker before routing ends there.
TRIES = 16
HOPS_MAX = 16
BUDGET_S = 2.0
#: Share of its own time that a broker waits for one next hop.
SHARE = 0.5
#: Members of the own cluster that are asked before it takes over the identifier of another cluster.
SIDEWAYS_MAX = 3
#: A member that knows fewer others of its cluster announces it, for so many cycles after a loss or a move.
ANNOUNCED_BELOW, ANNOUNCED_CYCLES = 2, 10
#: Silent neighbours that are replaced in one cycle.
SILENT_MAX = 3
#: Clusters among which a broker that joins chooses.
PROBES = 4
#: Cycles between two exchanges with a known address: parts of an overlay that lost each other join again.
SEED_EVERY = 8

P = TypeVar("P")
R = TypeVar("R")


class Silent(Exception):
    """No usable answer came from a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Message of an exchange, both ways: the sender and neighbours of a level."""

    sender: Neighbour
    level: int
    entries: tuple[Neighbour, ...] = ()
    #: All neighbours are requested: the sender has just joined.
    is_first: bool = False
    is_leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedMessage(Generic[P]):
    """Message on its way to the top cluster nearest to `target`."""

    target: Identifier
    payload: P | None = None
    hops: int = 0
    #: Brokers of the sender's cluster that have had the message, if the receiver is in that cluster too.
    sideways: tuple[str, ...] = ()
    #: The cluster in which the sender expects the receiver; a receiver that has moved does not accept the message.
    expected: Identifier = ()
    #: For how long the sender waits; each hop waits for less, so that an answer still reaches it.
    budget_s: float = BUDGET_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingResult(Generic[R]):
    """Where a message arrived: the members of the cluster that are known there, the receiver first."""

    cluster: Identifier
    members: tuple[Neighbour, ...]
    hops: int
    #: Attempts at brokers that did not answer, or have moved.
    failed: int = 0
    results: tuple[R, ...] = ()
    #: The receiver is in another cluster than the sender expected: nothing was done.
    has_moved: bool = False


class OverlayTransport(Protocol[P, R]):
    """Messages to other brokers. `exchange` and `route` raise Silent."""

    async def exchange(self, to: str, message: Exchange) -> Exchange:
        """Exchange neighbours with the broker at an address."""

    async def route(self, to: Neighbour, message: RoutedMessage[P]) -> RoutingResult[R]:
        """Forward a message."""

    async def deliver(self, to: Sequence[Neighbour], payload: P) -> list[R | None]:
        """Deliver a payload to members of the own top cluster; None for each that is silent. Raises nothing."""


class OverlayNode(Generic[P, R]):
    """The node of this broker. `next_stamp` returns larger numbers each time, also after a restart."""

    def __init__(
        self,
        address: str,
        shape: CloudShape,
        transport: OverlayTransport[P, R],
        *,
        chance: Chance,
        next_stamp: Callable[[], int],
        load: Callable[[], float] = lambda: 0.0,
        receive: Callable[[P], R] | None = None,
    ) -> None:
        self.address, self.shape = address, shape
        self.views = NeighbourViews(address, shape.identifier_of(address), shape)
        self.cycles = self.exchanges = self.moves = 0
        #: The own cluster and the number of its other members in the last cycle; how often to announce them still.
        self._seen: tuple[Identifier, int] = ((), 0)
        self._announcements = 0
        self._transport, self._chance, self._next_stamp = transport, chance, next_stamp
        self._load, self._receive = load, receive

    @property
    def cluster(self) -> Identifier:
        """The own top cluster."""
        return self.views.cluster

    def describe(self) -> Neighbour:
        """Return this broker as others should know it from now on."""
        return Neighbour(address=self.address, cluster=self.cluster, stamp=self._next_stamp(), load=self._load())

    def members(self) -> tuple[Neighbour, ...]:
        """Return the own top cluster, this broker first."""
        return (self.describe(), *sorted(self.views.top.values(), key=lambda one: one.address))

    # -- joining and leaving ---------------------------------------------------------------------------------------

    async def join(self, seeds: Sequence[str]) -> bool:
        """Learn neighbours from one of these addresses and enter the emptiest cluster found; False = none answered."""
        if not await self._ask_seed(seeds, is_first=True):
            return False
        own, found = self.cluster, []
        for target in [own, *(self._random_identifier() for _ in range(PROBES - 1))]:
            answer = await self.find(target)
            others = [one for one in answer.members if one.address != self.address]
            found.append((len(others) if answer.cluster == target else 0, target != own, target, others))
        _, _, target, members = min(found, key=lambda entry: entry[:3])
        await self._enter(target, members)
        return True

    async def leave(self) -> None:
        """Tell the neighbours that this broker leaves."""
        for one in self.views.known_brokers().values():
            await self._exchange_with(one, self.shape.depth, is_leaving=True)

    async def _enter(self, cluster: Identifier, members: Iterable[Neighbour]) -> None:
        """Enter a top cluster: exchange with all of its members, and leave the former one."""
        former = [one for one in self.views.top.values() if one.cluster != cluster]
        if cluster != self.cluster:
            self.views.move_to(cluster)
            self.moves += 1
        left, met = list(members), {self.address}
        while left:
            one = left.pop()
            met.add(one.address)
            await self._exchange_with(one, self.shape.depth, is_first=True)
            left = [one for one in (*left, *self.views.top.values()) if one.address not in met]
        for one in former:
            await self._exchange_with(one, 0)

    async def _ask_seed(self, seeds: Sequence[str], *, is_first: bool = False) -> bool:
        """Exchange with one of the known addresses; False = none answered."""
        left = [address for address in dict.fromkeys(seeds) if address != self.address]
        while left:
            address = left.pop(self._chance(len(left)))
            if await self._exchange_at(address, 0, (), is_first=is_first):
                return True
        return False

    # -- exchanges -------------------------------------------------------------------------------------------------

    async def run_cycle(self, seeds: Sequence[str]) -> None:
        """Exchange neighbours at one level in turn, and in the top cluster; now and then look for a smaller cluster."""
        self.cycles += 1
        if not self.views.known_brokers():
            await self.join(seeds)
            return
        if self.cycles % SEED_EVERY == 0:
            await self._ask_seed(seeds)
        level = self.cycles % self.shape.depth
        await self._exchange_oldest(lambda: self.views.top, self.shape.depth)
        await self._exchange_oldest(lambda: self.views.levels[level], level)
        await self._announce()
        await self._balance()

    async def _exchange_oldest(self, view: Callable[[], Entries], level: int) -> None:
        """Exchange with the oldest neighbour of a view; replace silent ones."""
        for _ in range(SILENT_MAX):
            oldest = self.views.take_oldest(view())
            if oldest is None or await self._exchange_with(oldest, level):
                return

    async def _announce(self) -> None:
        """After a loss of members, or a move of this broker, exchange with the cluster that would take over this one.

        Few brokers know a small cluster. Until the cluster that would take over knows it, that cluster accepts the
        messages of the small one. Random exchanges alone need up to ten seconds to reach that cluster.
        """
        before, self._seen = self._seen, (self.cluster, len(self.views.top))
        if self._seen[0] != before[0] or self._seen[1] < before[1]:
            self._announcements = ANNOUNCED_CYCLES
        others = [one for one in self.views.known_brokers().values() if one.cluster != self.cluster]
        if not self._announcements or len(self.views.top) >= ANNOUNCED_BELOW or not others:
            return
        self._announcements -= 1
        heir = min((one.cluster for one in others), key=lambda one: self.shape.distance(one, self.cluster))
        silent = 0
        for one in [one for one in others if one.cluster == heir]:
            silent += not await self._exchange_with(one, min(common_prefix(heir, self.cluster), self.shape.depth - 1))
            if silent == SILENT_MAX:
                return

    async def _exchange_with(
        self, other: Neighbour, level: int, *, is_first: bool = False, is_leaving: bool = False
    ) -> bool:
        """Exchange entries of a level with a neighbour; False = it is silent."""
        offer = self.views.make_offer(level, other.address, self._chance)
        return await self._exchange_at(other.address, level, offer, is_first=is_first, is_leaving=is_leaving)

    async def _exchange_at(
        self, address: str, level: int, offer: Sequence[Neighbour], *, is_first: bool = False, is_leaving: bool = False
    ) -> bool:
        """Send an offer and learn the answer; False = the broker is silent, and dropped."""
        self.exchanges += 1
        message = Exchange(
            sender=self.describe(), level=level, entries=tuple(offer), is_first=is_first, is_leaving=is_leaving
        )
        try:
            answer = await self._transport.exchange(address, message)
        except Silent:
            self.views.drop(address)
            return False
        if not is_leaving:
            self.views.learn((*answer.entries, answer.sender), offer)
        return True

    def on_exchange(self, message: Exchange) -> Exchange:
        """Handle an exchange of another broker; return this broker's offer."""
        sender, views = message.sender, self.views
        if message.is_leaving:
            views.drop(sender.address, sender.stamp)
            return Exchange(sender=self.describe(), level=message.level)
        shared = common_prefix(sender.cluster, self.cluster)
        if message.is_first:
            offer = [one for one in views.known_brokers().values() if one.address != sender.address]
        else:
            offer = views.make_offer(min(message.level, shared), sender.address, self._chance)
        views.learn((*message.entries, sender), offer if not message.is_first else ())
        return Exchange(sender=self.describe(), level=message.level, entries=tuple(offer))

    # -- equal clusters --------------------------------------------------------------------------------------------

    async def _balance(self) -> None:
        """Move to a random cluster if it has at least two members fewer, and this broker is the one to move."""
        target, own = self._random_identifier(), len(self.views.top) + 1
        if own < 2 or target == self.cluster or not self._is_mover(target):
            return
        answer = await self.find(target)
        members = answer.members if answer.cluster == target else ()
        if len(members) + 2 <= own:
            await self._enter(target, answer.members)

    def _is_mover(self, target: Identifier) -> bool:
        """Whether this broker is the one member of its cluster that may move to this target."""

        def rank(address: str) -> int:
            """Return the rank of a broker for this target; the member with the highest rank may move."""
            return xxhash.xxh3_64_intdigest(f"{address} {target}".encode())

        return all(rank(self.address) > rank(address) for address in self.views.top)

    def _random_identifier(self) -> Identifier:
        return self.shape.identifier(self._chance(self.shape.clusters))

    # -- routing ---------------------------------------------------------------------------------------------------

    async def find(self, target: Identifier, payload: P | None = None) -> RoutingResult[R]:
        """Route a message to the cluster nearest to a target; a payload is delivered to all its members."""
        return await self.on_route(RoutedMessage(target=target, payload=payload))

    async def on_route(self, message: RoutedMessage[P]) -> RoutingResult[R]:
        """Forward a message to the nearest known broker, or accept it if none is nearer (algorithm 2).

        A broker that does not answer is dropped and the next best is tried. Before this cluster takes over the
        identifier of another cluster, other members of this one are asked: they may know a nearer broker.
        """
        if message.expected and message.expected != self.cluster:
            return RoutingResult(cluster=self.cluster, members=(self.describe(),), hops=message.hops, has_moved=True)
        failed, tried = 0, {self.address, *message.sideways}
        for _ in range(TRIES if message.hops < HOPS_MAX else 0):
            following, sideways = self._next_hop(message, tried)
            if following is None:
                break
            tried.add(following.address)
            forwarded = replace(
                message,
                hops=message.hops + 1,
                sideways=sideways,
                expected=following.cluster,
                budget_s=SHARE * message.budget_s,
            )
            try:
                answer = await self._transport.route(following, forwarded)
            except Silent:
                self.views.drop(following.address)
            else:
                if not answer.has_moved:
                    return replace(answer, failed=answer.failed + failed)
                self.views.learn(answer.members)
            failed += 1
        return replace(await self._accept(message), failed=failed)

    def _next_hop(self, message: RoutedMessage[P], tried: set[str]) -> tuple[Neighbour | None, tuple[str, ...]]:
        """Return the broker to forward to, and the members of its cluster that have had the message."""
        nearer = self.views.nearest(message.target, tried)
        if nearer:
            return nearer[0], ()
        if self.cluster == message.target or len(message.sideways) >= SIDEWAYS_MAX:
            return None, ()
        unasked = (one for one in self.views.top.values() if one.address not in tried)
        return next(unasked, None), (*message.sideways, self.address)

    async def _accept(self, message: RoutedMessage[P]) -> RoutingResult[R]:
        """Deliver a message to every member of this cluster."""
        members: tuple[Neighbour, ...] = self.members()
        results: list[R] = []
        if message.payload is not None and self._receive is not None:
            results.append(self._receive(message.payload))
            answers = await self._transport.deliver(members[1:], message.payload)
            for one, answer in zip(members[1:], answers, strict=True):
                if answer is None:
                    self.views.drop(one.address)
                else:
                    results.append(answer)
            members = tuple(one for one in members if one is members[0] or one.address in self.views.top)
        return RoutingResult(cluster=self.cluster, members=members, hops=message.hops, results=tuple(results))
