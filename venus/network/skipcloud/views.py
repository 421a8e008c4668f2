"""Neighbours of a broker at each level, refreshed by exchanges (Cyclon; SREM 3.1), and routing by them. Pure.

A broker drops neighbours that do not answer. Stopped ones disappear soon, because ages grow and the oldest is contacted
first. A view keeps the same number of each child cluster, so that routing always finds a broker one digit nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from venus.network.skipcloud.clusters import CloudShape, Identifier, common_prefix

HOPS_MAX = 32
#: Maximum number of attempts at one broker before routing fails.
TRIES = 8
#: Number of entries sent each way in one exchange.
EXCHANGED = 8
#: Returns a random number from 0 to below its argument.
Chance = Callable[[int], int]
Entries = dict[str, int]  # age by broker


class NeighbourViews:
    """Neighbours of one broker. `identifiers` has the top cluster of every broker."""

    def __init__(self, me: str, identifiers: Mapping[str, Identifier], shape: CloudShape) -> None:
        self.me = me
        self._identifiers, self._shape = identifiers, shape
        self.identifier = identifiers[me]
        #: At level i: brokers that share i digits with this one.
        self.levels: list[Entries] = [{} for _ in range(shape.depth)]
        #: The others of its top cluster, one hop away.
        self.top: set[str] = {name for name, found in identifiers.items() if found == self.identifier and name != me}

    def known_brokers(self) -> set[str]:
        """Return every broker that it can forward to."""
        return {name for level in self.levels for name in level} | self.top

    def drop(self, broker: str) -> None:
        """Drop a broker that does not answer."""
        for level in self.levels:
            level.pop(broker, None)
        self.top.discard(broker)

    def take_oldest(self, level: int) -> str | None:
        """Return the neighbour for the next exchange, and increase all ages; None = there is none at this level."""
        view = self.levels[level]
        for name in view:
            view[name] += 1
        return max(view, key=lambda name: (view[name], name), default=None)

    def make_offer(self, level: int, to: str, chance: Chance) -> Entries:
        """Return the entries to send in an exchange: this broker with age 0, and some neighbours."""
        names = [name for name in self.levels[level] if name != to]
        some = {self.me: 0}
        while names and len(some) < EXCHANGED:
            name = names.pop(chance(len(names)))
            some[name] = self.levels[level][name]
        return some

    def merge(self, level: int, offered: Mapping[str, int], sent: Iterable[str] = ()) -> None:
        """Merge the entries of the other side; entries in `sent` are removed first if there is no room.

        Brokers that do not belong to the level's cluster are skipped.
        """
        view = self.levels[level]
        added = {name: age for name, age in offered.items() if name != self.me and self._belongs(name, level)}
        for name, age in added.items():
            view[name] = min(age, view.get(name, age))
        self._trim(level, set(sent) - added.keys())

    def fill(self) -> None:
        """Fill empty places of a level from other levels (algorithm 1)."""
        for level, view in enumerate(self.levels):
            for other in self.levels:
                for name, age in other.items():
                    if name not in view and len(view) < self._shape.degree and self._belongs(name, level):
                        view[name] = age
            self._trim(level, set())

    def _belongs(self, name: str, level: int) -> bool:
        found = self._identifiers.get(name)
        return found is not None and common_prefix(found, self.identifier) >= level

    def _trim(self, level: int, sent: set[str]) -> None:
        """Keep the same number of each child cluster; remove sent entries and the oldest first."""
        view = self.levels[level]
        each = max(1, self._shape.degree // self._shape.base)
        children: dict[int, list[str]] = {}
        for name in view:
            children.setdefault(self._identifiers[name][level], []).append(name)
        for names in children.values():
            if len(names) > each:
                names.sort(key=lambda name: (name in sent, view[name], name))
                for name in names[each:]:
                    del view[name]


@dataclass(frozen=True, slots=True)
class RoutingResult:
    """Result of routing: the receiver ("" = none), the number of hops, and of failed attempts."""

    at: str
    hops: int
    failed: int


def route(
    start: str,
    target: Identifier,
    views: Mapping[str, NeighbourViews],
    identifiers: Mapping[str, Identifier],
    answers: Callable[[str], bool],
    *,
    tries: int = TRIES,
) -> RoutingResult:
    """Route a message to a broker of the target's top cluster (SREM 3.2). `answers` says whether a broker is alive.

    Each hop goes to the neighbour that shares most digits with the target. If it does not answer, it is dropped and the
    next best is tried. If no known broker is nearer, the message goes to one that is as near and was not tried yet.
    """
    at, hops, failed = start, 0, 0
    asked = {start}
    while common_prefix(identifiers[at], target) < len(target) and hops < HOPS_MAX:
        following = None
        for name in next_hops(views[at], target, identifiers, asked)[:tries]:
            if answers(name):
                following = name
                break
            failed += 1
            views[at].drop(name)
        if following is None:
            return RoutingResult("", hops, failed)
        asked.add(following)
        at, hops = following, hops + 1
    arrived = common_prefix(identifiers[at], target) == len(target)
    return RoutingResult(at if arrived else "", hops, failed)


def next_hops(
    view: NeighbourViews, target: Identifier, identifiers: Mapping[str, Identifier], asked: set[str]
) -> list[str]:
    """Return the brokers to forward to, the best first; none is further away than the broker itself."""
    own = common_prefix(view.identifier, target)
    near = {name: common_prefix(identifiers[name], target) for name in view.known_brokers() if name not in asked}
    return sorted((name for name, digits in near.items() if digits >= own), key=lambda name: (-near[name], name))
