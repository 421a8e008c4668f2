"""Neighbours of a broker at each level, kept fresh by exchanges (Cyclon; SREM 3.1). Pure.

Ages grow and the oldest neighbour is contacted first, so stopped brokers disappear soon. A view keeps the same number
of each child cluster, so that routing always finds a broker one digit nearer. The top cluster is kept as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from venus.network.skipcloud.clusters import CloudShape, Identifier, common_prefix

#: Number of entries sent each way in one exchange.
EXCHANGED = 8
#: Limit of remembered brokers that have left or are silent, with the stamp from which news of them is believed again.
GONE_MAX = 1024
#: Members of a top cluster that are kept; many more than an overlay of the planned size has.
TOP_MAX = 64
#: Returns a random number from 0 to below its argument.
Chance = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A broker as another broker knows it. `stamp` grows with each message that it sends, also after a restart."""

    address: str
    cluster: Identifier
    stamp: int
    #: Matching work of the last seconds, in processor seconds a second.
    load: float = 0.0
    #: Cycles since the broker itself sent this.
    age: int = 0


Entries = dict[str, Neighbour]  # by address


class NeighbourViews:
    """Neighbours of one broker. Level i has brokers that share i digits with it; `top` has its whole top cluster."""

    def __init__(self, address: str, cluster: Identifier, shape: CloudShape) -> None:
        self.address, self.cluster, self._shape = address, cluster, shape
        self.levels: list[Entries] = [{} for _ in range(shape.depth)]
        self.top: Entries = {}
        self._gone: dict[str, int] = {}

    def known_brokers(self) -> Entries:
        """Return every broker that this one can send to."""
        found = dict(self.top)
        for level in self.levels:
            for address, one in level.items():
                if address not in found or one.stamp > found[address].stamp:
                    found[address] = one
        return found

    def move_to(self, cluster: Identifier) -> None:
        """Enter another top cluster; the neighbours go to the levels where they belong now."""
        known = self.known_brokers().values()
        self.cluster = cluster
        self.levels, self.top = [{} for _ in range(self._shape.depth)], {}
        self.learn(known)

    def drop(self, address: str, stamp: int | None = None) -> None:
        """Drop a broker that does not answer, or left with this stamp; older news of it is no longer believed."""
        last = [view.pop(address).stamp for view in (*self.levels, self.top) if address in view]
        newest = max([*last, stamp or 0, self._gone.pop(address, 0)])
        if newest:
            self._gone[address] = newest
            if len(self._gone) > GONE_MAX:
                del self._gone[next(iter(self._gone))]

    def take_oldest(self, view: Entries) -> Neighbour | None:
        """Return the neighbour for the next exchange, and increase all ages; None = the view is empty."""
        for address, one in view.items():
            view[address] = replace(one, age=one.age + 1)
        return max(view.values(), key=lambda one: (one.age, one.address), default=None)

    def make_offer(self, level: int, to: str, chance: Chance) -> list[Neighbour]:
        """Return some entries of a level for an exchange; those of the top cluster are sent as a whole."""
        if level >= self._shape.depth:
            return [one for one in self.top.values() if one.address != to]
        names = [one for one in self.levels[level].values() if one.address != to]
        return [names.pop(chance(len(names))) for _ in range(min(EXCHANGED, len(names)))]

    def learn(self, offered: Iterable[Neighbour], sent: Iterable[Neighbour] = ()) -> None:
        """Add what another broker offers to each level where it belongs (algorithm 1).

        If a level is full, entries in `sent` leave first. Of two entries for one broker the newer counts.
        """
        news = {one.address: one for one in offered if one.address != self.address}
        for address, one in news.items():
            before = max(
                (view[address] for view in (*self.levels, self.top) if address in view),
                key=lambda known: known.stamp,
                default=None,
            )
            if one.stamp <= self._gone.get(address, -1) or (before is not None and one.stamp < before.stamp):
                continue
            if before is not None and before.cluster != one.cluster:
                for view in (*self.levels, self.top):
                    view.pop(address, None)
            self._place(one)
        leaving = {one.address for one in sent} - news.keys()
        for level in range(self._shape.depth):
            self._trim(level, leaving)

    def nearest(self, target: Identifier, tried: Iterable[str] = ()) -> list[Neighbour]:
        """Return the known brokers that are nearer to a target than this one, the nearest and freshest first."""
        own, skipped = self._shape.distance(self.cluster, target), set(tried)
        found = [
            (distance, one.age, one.address, one)
            for one in self.known_brokers().values()
            if one.address not in skipped and (distance := self._shape.distance(one.cluster, target)) < own
        ]
        return [one for _, _, _, one in sorted(found, key=lambda entry: entry[:3])]

    def _place(self, one: Neighbour) -> None:
        """Add an entry to each level where it belongs, unless a newer one is there."""
        shared = common_prefix(one.cluster, self.cluster)
        views = [*self.levels[: min(shared + 1, self._shape.depth)]]
        if shared == self._shape.depth and (one.address in self.top or len(self.top) < TOP_MAX):
            views.append(self.top)
        for view in views:
            before = view.get(one.address)
            if before is None or (one.stamp, one.age) > (before.stamp, before.age):
                view[one.address] = one  # an old entry must not stay young because two brokers exchange it

    def _trim(self, level: int, sent: set[str]) -> None:
        """Keep the same number of each child cluster; remove sent entries and the oldest first."""
        view = self.levels[level]
        children: dict[int, list[Neighbour]] = {}
        for one in view.values():
            children.setdefault(one.cluster[level], []).append(one)
        for found in children.values():
            if len(found) > self._shape.each:
                found.sort(key=lambda one: (one.address in sent, one.age, one.address))
                for one in found[self._shape.each :]:
                    del view[one.address]


def check_neighbour(one: Neighbour, shape: CloudShape, stamp_max: int) -> str:
    """Return the fault of an entry from outside; empty = it has none."""
    if not shape.is_identifier(one.cluster):
        return f"{one.address} is in cluster {list(one.cluster)}: it must have {shape.depth} digits below {shape.base}"
    if one.stamp > stamp_max:
        return f"{one.address} has a stamp from the future: set its clock"
    return ""
