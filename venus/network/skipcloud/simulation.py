"""Simulation of many SkipCloud brokers in one process: exchanges, failures, routed messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from venus.network.skipcloud.clusters import CloudShape, Identifier, assign
from venus.network.skipcloud.views import Chance, NeighbourViews, RoutingResult, route


class Cloud:
    """Brokers with the same assignment; only this class knows which of them are alive."""

    def __init__(self, brokers: Sequence[str], shape: CloudShape, chance: Chance) -> None:
        self.shape = shape
        self.identifiers = assign(brokers, shape)
        self.living = list(brokers)
        self._alive = set(brokers)
        self._chance = chance
        self.views = {name: NeighbourViews(name, self.identifiers, shape) for name in brokers}
        self.exchanges = 0
        self._add_neighbours()

    @property
    def clusters(self) -> list[Identifier]:
        """The top clusters with living brokers."""
        return sorted({self.identifiers[name] for name in self.living})

    @property
    def neighbours(self) -> float:
        """The average number of neighbours of a broker."""
        return sum(len(self.views[name].known_brokers()) for name in self.living) / max(1, len(self.living))

    def cycle(self) -> None:
        """Exchange neighbours of every living broker with its oldest one at each level, in turn."""
        for name in self.living:
            for level in range(self.shape.depth):
                self._exchange(self.views[name], level)
            self.views[name].fill()

    def kill(self, count: int) -> None:
        """Stop some brokers at once."""
        for _ in range(min(count, len(self.living))):
            self._alive.discard(self.living.pop(self._chance(len(self.living))))

    def send(self, start: str, target: Identifier, **more: int) -> RoutingResult:
        """Route a message."""
        return route(start, target, self.views, self.identifiers, self._alive.__contains__, **more)

    def send_some(self, count: int, **more: int) -> list[RoutingResult]:
        """Route messages between random brokers and living clusters."""
        clusters = self.clusters
        return [
            self.send(self.living[self._chance(len(self.living))], clusters[self._chance(len(clusters))], **more)
            for _ in range(count)
        ]

    def _exchange(self, mine: NeighbourViews, level: int) -> None:
        other = mine.take_oldest(level)
        if other is None:
            return
        self.exchanges += 1
        if other not in self._alive:
            mine.drop(other)
            return
        theirs = self.views[other]
        given, back = mine.make_offer(level, other, self._chance), theirs.make_offer(level, mine.me, self._chance)
        del mine.levels[level][other]
        theirs.merge(level, given, back)
        mine.merge(level, back, given)

    def _add_neighbours(self) -> None:
        """Give every broker its first neighbours, the same number of each child cluster."""
        each = max(1, self.shape.degree // self.shape.base)
        children: dict[Identifier, list[str]] = {}
        for name, identifier in self.identifiers.items():
            for level in range(1, self.shape.depth + 1):
                children.setdefault(identifier[:level], []).append(name)
        for name, identifier in self.identifiers.items():
            for level in range(self.shape.depth):
                for digit in range(self.shape.base):
                    there = list(children.get((*identifier[:level], digit), ()))
                    met = {there.pop(self._chance(len(there))): 0 for _ in range(min(each, len(there)))}
                    self.views[name].merge(level, met)
