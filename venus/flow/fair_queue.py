"""Fair queue of many businesses: round robin between them, FIFO order within each.

Deficit round robin: in each round a business may take `quantum` units more. An item without cost (a decision, a review,
an entry from a leader) at the head of its line goes at once. So a business that floods the broker delays the others
by one round, not by its backlog, and never delays their decisions.

Items taken together are answered together, so a small business would wait for the large ones in its group. Therefore
small businesses sometimes go alone (`small`): every second time at most, so the large ones lose little.

`GroupSize` adapts the size of a group of disk writes, so that the work of a group takes as long as its fsync.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Line(Generic[T]):
    items: deque[tuple[int, T]] = field(default_factory=deque)
    deficit: int = 0
    cost: int = 0  # of all items


@dataclass(slots=True)
class _Section(Generic[T]):
    """Items between two barriers, by key."""

    closed: bool = False
    lines: OrderedDict[Hashable, _Line[T]] = field(default_factory=OrderedDict)


class FairQueue(Generic[T]):
    """Items with a cost, in lines by key. Not thread-safe."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._urgent: deque[T] = deque()
        self._sections: deque[_Section[T]] = deque([_Section()])
        self._count = 0
        self._lately: dict[Hashable, int] = {}  # what each has put, halved each time that all were taken from
        self._were_alone = False

    def __len__(self) -> int:
        return self._count

    @property
    def lines(self) -> int:
        """How many keys have items that may be taken now."""
        return len(self._sections[0].lines)

    def put(self, key: Hashable, cost: int, item: T) -> None:
        """Append to the line of a key."""
        section = self._sections[-1]
        if section.closed:
            section = _Section()
            self._sections.append(section)
        line = section.lines.get(key)
        if line is None:
            line = section.lines[key] = _Line()
        line.items.append((cost, item))
        line.cost += cost
        if cost:
            self._lately[key] = self._lately.get(key, 0) + cost
        self._count += 1

    def put_first(self, item: T) -> None:
        """Put an item ahead of all others except earlier urgent ones; it depends on no waiting item."""
        self._urgent.append(item)
        self._count += 1

    def put_barrier(self, item: T) -> None:
        """Put an item behind all waiting items, and all later items behind it."""
        barrier: _Section[T] = _Section(closed=True)
        barrier.lines[None] = _Line(deque([(0, item)]))
        self._sections.append(barrier)
        self._count += 1

    def take(self, cost_max: int, count_max: int, *, small: int = 0) -> list[T]:
        """Remove the next items; the last one may exceed `cost_max`.

        Keys that have put no more than `small` lately go alone, unless the last call did so.
        """
        taken: list[T] = []
        while self._urgent and len(taken) < count_max:
            taken.append(self._urgent.popleft())
        alone = self._small_ones(small) if small and not self._were_alone else []
        self._were_alone = bool(alone)
        if alone:
            self._take_whole(alone, taken, count_max)
        else:
            self._take_in_order(taken, cost_max, count_max)
            self._lately = {key: cost // 2 for key, cost in self._lately.items() if cost > 1}
        self._count -= len(taken)
        return taken

    def _small_ones(self, small: int) -> list[Hashable]:
        """Return the small keys, if there are also others."""
        lines = self._sections[0].lines
        found = [key for key, line in lines.items() if line.cost <= small and self._lately.get(key, 0) <= small]
        return found if len(found) < len(lines) else []

    def _take_whole(self, keys: list[Hashable], taken: list[T], count_max: int) -> None:
        lines = self._sections[0].lines
        for key in keys:
            line = lines[key]
            while line.items and len(taken) < count_max:
                price, item = line.items.popleft()
                line.cost -= price
                taken.append(item)
            if not line.items:
                del lines[key]

    def _take_in_order(self, taken: list[T], cost_max: int, count_max: int) -> None:
        cost = 0
        while len(taken) < count_max and cost < cost_max:
            lines = self._sections[0].lines
            if lines:
                self._take_free(lines, taken, count_max)
                cost += self._take_in_turns(lines, taken, cost_max - cost, count_max)
            elif len(self._sections) > 1:
                self._sections.popleft()
            else:
                break

    def drain(self) -> list[T]:
        """Remove everything, in no promised order."""
        found = list(self._urgent)
        found += [item for s in self._sections for line in s.lines.values() for _, item in line.items]
        self._urgent.clear()
        self._sections = deque([_Section()])
        self._count = 0
        return found

    @staticmethod
    def _take_free(lines: OrderedDict[Hashable, _Line[T]], taken: list[T], count_max: int) -> None:
        for key in list(lines):
            items = lines[key].items
            while items and not items[0][0] and len(taken) < count_max:
                taken.append(items.popleft()[1])
            if not items:
                del lines[key]

    def _take_in_turns(
        self, lines: OrderedDict[Hashable, _Line[T]], taken: list[T], cost_max: int, count_max: int
    ) -> int:
        cost = 0
        while lines and cost < cost_max and len(taken) < count_max:
            key, line = next(iter(lines.items()))
            line.deficit += self._quantum
            while line.items and len(taken) < count_max:
                price, item = line.items[0]
                if price and (price > line.deficit or cost >= cost_max):
                    break
                line.items.popleft()
                line.deficit -= price
                line.cost -= price
                cost += price
                taken.append(item)
            if line.items:
                lines.move_to_end(key)
            else:
                del lines[key]
        return cost


#: Weight of one full group in the moving size.
_PART = 0.2


@dataclass(slots=True)
class GroupSize:
    """Adaptive size of a group in bytes, from `least` to `most`."""

    least: int
    most: int
    size: int = 0

    def __post_init__(self) -> None:
        self.size = self.size or self.most

    def record_group(self, nbytes: int, work_s: float, sync_s: float) -> None:
        """Adapt to a group's bytes, the time of its work and of its fsync. Groups less than half full are ignored."""
        if nbytes < self.size // 2 or work_s <= 0.0:
            return
        wanted = min(float(self.most), max(float(self.least), nbytes * sync_s / work_s))
        self.size = round(self.size + (wanted - self.size) * _PART)
