"""Messages of the overlay on the wire, and the checks of these messages that venus/rpc/limits cannot make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from venus.broker.matching.matching_load import MatchedEvents
from venus.errors import ProtocolError, Refused
from venus.network.matching.installed import InstallationMessage, InstalledPart
from venus.network.matching.interests import Events, Interest, Matches
from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import Exchange, RoutedMessage, RoutingResult
from venus.network.skipcloud.views import Neighbour, check_neighbour
from venus.wire import overlay_pb2

#: How far another broker's clock may be ahead.
CLOCK_US_MAX = 3_600_000_000
#: Changes of one part; a longer batch is sent in several.
CHANGES_MAX = 10_000

Missing = tuple[int, ...]  # numbers of parts
_I4, _I8, _F8 = np.dtype("<u4"), np.dtype("<u8"), np.dtype("<f8")


class OverlayMessages:
    """Encodes and decodes the messages of one overlay."""

    def __init__(self, name: str, shape: CloudShape, now_us: Callable[[], int]) -> None:
        self.name, self.shape, self._now_us = name, shape, now_us

    def greeting(self) -> overlay_pb2.OverlayGreeting:
        """Return the greeting of this overlay."""
        return overlay_pb2.OverlayGreeting(overlay=self.name, base=self.shape.base, depth=self.shape.depth)

    def check_greeting(self, greeting: overlay_pb2.OverlayGreeting) -> None:
        """Raise Refused if a call is for another overlay."""
        if greeting.overlay != self.name:
            raise Refused(f"this broker is of the overlay {self.name}, not of {greeting.overlay}")
        if (greeting.base, greeting.depth) != (self.shape.base, self.shape.depth):
            raise Refused(
                "this broker's overlay is planned for another number of brokers",
                hint="set [matching] brokers to the same number at all brokers",
            )

    def encode_exchange(self, message: Exchange) -> overlay_pb2.OverlayExchange:
        """Encode an exchange."""
        return overlay_pb2.OverlayExchange(
            greeting=self.greeting(),
            sender=_encode_neighbour(message.sender),
            level=message.level,
            entries=map(_encode_neighbour, message.entries),
            first=message.is_first,
            leaving=message.is_leaving,
        )

    def decode_exchange(self, found: overlay_pb2.OverlayExchange) -> Exchange:
        """Decode and check an exchange. Raises Refused, ProtocolError."""
        self.check_greeting(found.greeting)
        return Exchange(
            sender=self._decode_neighbour(found.sender),
            level=found.level,
            entries=self._decode_neighbours(found.entries),
            is_first=found.first,
            is_leaving=found.leaving,
        )

    def encode_routed(self, message: RoutedMessage[InstallationMessage]) -> overlay_pb2.RouteRequest:
        """Encode a routed message."""
        payload = message.payload
        return overlay_pb2.RouteRequest(
            greeting=self.greeting(),
            target=bytes(message.target),
            hops=message.hops,
            sideways=message.sideways,
            expected=bytes(message.expected),
            budget_ms=int(message.budget_s * 1000),
            installation=encode_installation(payload) if payload is not None else None,
        )

    def decode_routed(self, found: overlay_pb2.RouteRequest) -> RoutedMessage[InstallationMessage]:
        """Decode and check a routed message. Raises Refused, ProtocolError."""
        self.check_greeting(found.greeting)
        return RoutedMessage(
            target=self._decode_identifier(found.target),
            payload=decode_installation(found.installation) if found.HasField("installation") else None,
            hops=found.hops,
            sideways=tuple(found.sideways),
            expected=self._decode_identifier(found.expected) if found.expected else (),
            budget_s=found.budget_ms / 1000,
        )

    def encode_result(self, result: RoutingResult[Missing]) -> overlay_pb2.RouteAnswer:
        """Encode where a message arrived."""
        return overlay_pb2.RouteAnswer(
            cluster=bytes(result.cluster),
            members=map(_encode_neighbour, result.members),
            hops=result.hops,
            failed=result.failed,
            moved=result.has_moved,
            results=[overlay_pb2.InstallAnswer(missing=missing) for missing in result.results],
        )

    def decode_result(self, found: overlay_pb2.RouteAnswer) -> RoutingResult[Missing]:
        """Decode and check where a message arrived. Raises ProtocolError."""
        members = self._decode_neighbours(found.members)
        if not members:
            raise ProtocolError("the answer to a routed message names no broker")
        return RoutingResult(
            cluster=self._decode_identifier(found.cluster),
            members=members,
            hops=found.hops,
            failed=found.failed,
            results=tuple(tuple(one.missing) for one in found.results),
            has_moved=found.moved,
        )

    def _decode_neighbours(self, found: Iterable[overlay_pb2.OverlayBroker]) -> tuple[Neighbour, ...]:
        return tuple(map(self._decode_neighbour, found))

    def _decode_neighbour(self, found: overlay_pb2.OverlayBroker) -> Neighbour:
        one = Neighbour(
            address=found.address, cluster=tuple(found.cluster), stamp=found.stamp, load=found.load, age=found.age
        )
        if complaint := check_neighbour(one, self.shape, self._now_us() + CLOCK_US_MAX):
            raise ProtocolError(f"a message of the overlay is wrong: {complaint}")
        return one

    def _decode_identifier(self, found: bytes) -> Identifier:
        identifier = tuple(found)
        if not self.shape.is_identifier(identifier):
            raise ProtocolError(f"{list(identifier[:20])} is no cluster of this overlay")
        return identifier


def _encode_neighbour(one: Neighbour) -> overlay_pb2.OverlayBroker:
    return overlay_pb2.OverlayBroker(
        address=one.address, cluster=bytes(one.cluster), stamp=one.stamp, load=one.load, age=one.age
    )


def encode_installation(found: InstallationMessage) -> overlay_pb2.Installation:
    """Encode subscriptions."""
    return overlay_pb2.Installation(
        origin=found.origin,
        lease_ms=int(found.lease_s * 1000),
        parts=[
            overlay_pb2.InstalledPart(
                table=part.table,
                path=part.path,
                digest=part.digest,
                base=part.base,
                whole=part.is_whole,
                added=[_encode_interest(number, one) for number, one in part.added],
                removed=part.removed,
            )
            for part in found.parts
        ],
    )


def decode_installation(found: overlay_pb2.Installation) -> InstallationMessage:
    """Decode subscriptions."""
    return InstallationMessage(
        origin=found.origin,
        lease_s=found.lease_ms / 1000,
        parts=tuple(
            InstalledPart(
                table=part.table,
                path=part.path,
                digest=part.digest,
                base=part.base,
                is_whole=part.whole,
                added=tuple(map(_decode_interest, part.added)),
                removed=tuple(part.removed),
            )
            for part in found.parts
        ),
    )


def _encode_interest(number: int, one: Interest) -> overlay_pb2.InterestEntry:
    return overlay_pb2.InterestEntry(
        number=number,
        equal=[overlay_pb2.EqualTo(column=name, keys=keys) for name, keys in one.equal.items()],  # type: ignore[arg-type]
        between=[overlay_pb2.Between(column=name, low=low, high=high) for name, (low, high) in one.between.items()],
    )


def _decode_interest(found: overlay_pb2.InterestEntry) -> tuple[int, Interest]:
    return found.number, Interest(
        {one.column: frozenset(one.keys) for one in found.equal},
        {one.column: (one.low, one.high) for one in found.between},
    )


def encode_changes(table: str, path: str, digest: int, events: Events) -> overlay_pb2.MatchPart:
    """Encode the values of some changes, for one subspace."""
    return overlay_pb2.MatchPart(
        table=table,
        path=path,
        digest=digest,
        count=events.count,
        numbers=[
            overlay_pb2.NumberColumn(column=name, values=values.astype(_F8).tobytes())
            for name, values in events.numbers.items()
        ],
        keys=[overlay_pb2.KeyColumn(column=name, values=values) for name, values in events.others.items()],  # type: ignore[arg-type]
    )


def decode_changes(part: overlay_pb2.MatchPart) -> Events:
    """Decode and check the values of some changes. Raises ProtocolError."""
    if any(len(column.values) != part.count * _F8.itemsize for column in part.numbers) or any(
        len(column.values) != part.count for column in part.keys
    ):
        raise ProtocolError(f"a column of {part.table} has not {part.count} values")
    return Events(
        part.count,
        {column.column: np.frombuffer(column.values, _F8) for column in part.numbers},
        {column.column: [value or None for value in column.values] for column in part.keys},
    )


def encode_matches(parts: Sequence[Matches | None], load: float) -> overlay_pb2.MatchAnswer:
    """Encode the pairs of each part; None = its subscriptions are not known here."""
    return overlay_pb2.MatchAnswer(
        parts=[
            overlay_pb2.MatchedPart()
            if found is None
            else overlay_pb2.MatchedPart(
                known=True, changes=found.events.astype(_I4).tobytes(), interests=found.interests.astype(_I8).tobytes()
            )
            for found in parts
        ],
        load=load,
    )


def decode_matches(answer: overlay_pb2.MatchAnswer, asked: Sequence[MatchedEvents]) -> list[Matches | None]:
    """Decode and check the pairs of each part: they name changes and interests that were asked about.

    Raises ProtocolError.
    """
    if len(answer.parts) != len(asked):
        raise ProtocolError(f"{len(answer.parts)} parts were matched, and {len(asked)} were asked for")
    found: list[Matches | None] = []
    for part, own in zip(answer.parts, asked, strict=True):
        if not part.known:
            found.append(None)
            continue
        if len(part.changes) % _I4.itemsize or len(part.changes) * 2 != len(part.interests):
            raise ProtocolError("the pairs of a match are cut off")
        changes = np.frombuffer(part.changes, _I4).astype(np.int64)
        interests = np.frombuffer(part.interests, _I8).astype(np.int64)
        if (changes >= own.events.count).any() or not own.numbers.issuperset(interests.tolist()):
            raise ProtocolError("a match names a change or a subscription that was not asked about")
        found.append(Matches(changes, interests))
    return found
