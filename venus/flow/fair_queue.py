"""One queue for many businesses: each has its turn, and within a business nothing overtakes anything.

Deficit round robin: in each turn a business may take `quantum` units more. What costs nothing (a decision, a review,
an entry from a leader) and is first in its line goes at once. So a business that floods the broker delays the others
by a turn, not by its backlog, and never their decisions.
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


@dataclass(slots=True)
class _Section(Generic[T]):
    """What stands between two barriers, by key."""

    closed: bool = False
    lines: OrderedDict[Hashable, _Line[T]] = field(default_factory=OrderedDict)


class FairQueue(Generic[T]):
    """Items with a cost, in lines by key. Not thread-safe."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._urgent: deque[T] = deque()
        self._sections: deque[_Section[T]] = deque([_Section()])
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def lines(self) -> int:
        """How many keys have something waiting that may go now."""
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
        self._count += 1

    def put_first(self, item: T) -> None:
        """Put an item ahead of everything but others of its kind; it depends on nothing that waits."""
        self._urgent.append(item)
        self._count += 1

    def put_barrier(self, item: T) -> None:
        """Let an item go behind everything that waits, and everything to come behind it."""
        barrier: _Section[T] = _Section(closed=True)
        barrier.lines[None] = _Line(deque([(0, item)]))
        self._sections.append(barrier)
        self._count += 1

    def take(self, cost_max: int, count_max: int) -> list[T]:
        """Remove what comes next; the last item may exceed `cost_max`."""
        taken: list[T] = []
        while self._urgent and len(taken) < count_max:
            taken.append(self._urgent.popleft())
        cost = 0
        while len(taken) < count_max and cost < cost_max:
            lines = self._sections[0].lines
            if lines:
                self._free_ones(lines, taken, count_max)
                cost += self._in_turns(lines, taken, cost_max - cost, count_max)
            elif len(self._sections) > 1:
                self._sections.popleft()
            else:
                break
        self._count -= len(taken)
        return taken

    def drain(self) -> list[T]:
        """Remove everything, in no promised order."""
        found = list(self._urgent)
        found += [item for s in self._sections for line in s.lines.values() for _, item in line.items]
        self._urgent.clear()
        self._sections = deque([_Section()])
        self._count = 0
        return found

    @staticmethod
    def _free_ones(lines: OrderedDict[Hashable, _Line[T]], taken: list[T], count_max: int) -> None:
        for key in list(lines):
            items = lines[key].items
            while items and not items[0][0] and len(taken) < count_max:
                taken.append(items.popleft()[1])
            if not items:
                del lines[key]

    def _in_turns(self, lines: OrderedDict[Hashable, _Line[T]], taken: list[T], cost_max: int, count_max: int) -> int:
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
                cost += price
                taken.append(item)
            if line.items:
                lines.move_to_end(key)
            else:
                del lines[key]
        return cost
