"""Queues in front of the disk: the write window that all businesses share, and the fair queue of the commit thread.

Accepted writes wait in memory until they are saved. A write that waits too long is refused, and then receiving it was
useless. A bound for each business does not prevent that: 200 businesses within the bound add up to 200 times as much.
So all businesses share one window. It grows while saved writes have hardly waited, and is cut when they have waited
longer than `target_s`: additive increase, multiplicative decrease, as in TCP. A business without room waits in line
with one piece, so each waits for at most one piece of each of the others. Small pieces have a part of their own beside
the window, and a line of their own: neither kind waits for the other.

`FairQueue` takes businesses in turn, and the items of each in order, by deficit round robin: in each round a business
may take `quantum` units more. An item without cost (a decision, a review, an entry from a leader) at the head of its
line goes at once. So a business that floods the broker delays the others by one round, not by its backlog, and never
delays their decisions. Items taken together are answered together, so a small business would wait for the large ones
in its group. Therefore small businesses sometimes go alone (`small`): every second time at most, so the large ones lose
little. `GroupSize` adapts the size of a group of disk writes, so that the work of a group takes as long as its fsync.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from venus.flow.precedence import SMALL_BYTES

#: The initial window. It doubles while nothing has been slow.
START_BYTES = 4 << 20
#: Its growth afterwards, for each full window that was written quickly.
STEP_BYTES = 256 << 10
#: A cut takes no more than this part away.
CUT_MAX = 0.5
#: Room for small pieces beside the window, as a fraction of the window.
SMALL_PART = 0.25


@dataclass(slots=True, eq=False)
class WriteSlot:
    """A piece of a write that waits for room in the write window, or has been granted it."""

    nbytes: int
    granted: bool = False

    @property
    def is_small(self) -> bool:
        """Whether the piece counts against the part for small pieces."""
        return self.nbytes <= SMALL_BYTES


@dataclass(slots=True)
class _Line:
    """The small or the large pieces: bytes that are granted and not yet saved, and pieces that wait."""

    nbytes: int = 0
    waiting: OrderedDict[WriteSlot, None] = field(default_factory=OrderedDict)


class WriteQueue:
    """Window from `least` to `most` bytes, and its waiting pieces. A larger piece goes when nothing is under way."""

    def __init__(self, *, most: int, least: int, target_s: float) -> None:
        self.least = min(least, most)
        self.most = most
        self._target_s = target_s
        self._size = float(min(most, max(self.least, START_BYTES)))
        self._large, self._small = _Line(), _Line()
        self._was_slow = False
        self._before_cut = 0  # bytes that were under way at the last cut: their waiting says nothing of the new window

    @property
    def size(self) -> int:
        """The size of the window: how many bytes of large pieces may be under way."""
        return int(self._size)

    @property
    def small_size(self) -> int:
        """How many bytes of small pieces may be under way beside them."""
        return max(SMALL_BYTES, int(self._size * SMALL_PART))

    @property
    def nbytes(self) -> int:
        """How many bytes are under way."""
        return self._large.nbytes + self._small.nbytes

    @property
    def waiting(self) -> int:
        """How many pieces wait."""
        return len(self._large.waiting) + len(self._small.waiting)

    def request_slot(self, nbytes: int) -> WriteSlot:
        """Queue a piece; if it is `granted`, it may go at once."""
        slot = WriteSlot(nbytes)
        line = self._line(slot)
        line.waiting[slot] = None
        self._grant(line)
        return slot

    def give_up(self, turn: WriteSlot) -> list[WriteSlot]:
        """Remove a piece from the line, or return its grant unused; return the pieces that may go now."""
        line = self._line(turn)
        if turn.granted:
            line.nbytes -= turn.nbytes
        else:
            del line.waiting[turn]
        return self._grant(line)

    def on_saved(self, turn: WriteSlot, waited_s: float) -> list[WriteSlot]:
        """Count a piece that was saved or refused after it had waited `waited_s`; return the pieces that may go now."""
        was_used = self.waiting > 0 or 2 * self.nbytes >= self._size
        self._line(turn).nbytes -= turn.nbytes
        if self._before_cut > 0:
            self._before_cut -= turn.nbytes
        elif waited_s > self._target_s:
            self._size = max(float(self.least), self._size * max(CUT_MAX, self._target_s / waited_s))
            self._was_slow = True
            self._before_cut = self.nbytes
        elif was_used:
            step = STEP_BYTES * turn.nbytes / self._size if self._was_slow else turn.nbytes
            self._size = min(float(self.most), self._size + step)
        return self._grant(self._large) + self._grant(self._small)

    def _line(self, slot: WriteSlot) -> _Line:
        """Return the line in which this piece waits."""
        return self._small if slot.is_small else self._large

    def _grant(self, line: _Line) -> list[WriteSlot]:
        """Grant the first pieces in line as far as there is room, at least one if nothing is under way."""
        bound = self.size if line is self._large else self.small_size
        found = []
        while line.waiting:
            slot = next(iter(line.waiting))
            if line.nbytes and line.nbytes + slot.nbytes > bound:
                break
            del line.waiting[slot]
            line.nbytes += slot.nbytes
            slot.granted = True
            found.append(slot)
        return found


SHARE = 2.0
#: Every business may hold this much: one frame on its way to the disk and the next one.
LEAST_BYTES = 2 << 20
#: Each later write raises the remembered shortest time by this part, so that it adapts to a longer line.
_FORGET = 0.02
#: Businesses that are kept; beyond that, an idle one is removed.
BUSINESSES_MAX = 10_000


@dataclass(slots=True)
class _BusinessMemory:
    """The unsaved bytes of a business, the share that it may hold, and its shortest time from receipt to disk."""

    nbytes: int = 0
    allowed: float = float("inf")
    shortest_s: float = float("inf")


class MemoryShares:
    """Bytes of each business that are received and not saved, and the share that it may hold."""

    def __init__(self, bytes_max: int, target_s: float) -> None:
        self._bytes_max = bytes_max
        self._target_s = target_s
        self._businesses: dict[str, _BusinessMemory] = {}
        self.nbytes = 0

    def bytes_of(self, business: str) -> int:
        """Return how many bytes are received for a business and not saved yet."""
        found = self._businesses.get(business)
        return found.nbytes if found is not None else 0

    @property
    def is_below_limit(self) -> bool:
        """Whether all businesses together are below the limit."""
        return self.nbytes < self._bytes_max

    def has_room(self, business: str, window_bytes: int | None = None) -> bool:
        """Return whether more may be received for a business, with `window_bytes` as the write window of all."""
        found = self._businesses.get(business)
        if found is None or not found.nbytes:
            return True
        bytes_max = self._bytes_max if window_bytes is None else min(window_bytes, self._bytes_max)
        share = SHARE * max(0, bytes_max - self.nbytes)
        return found.nbytes < min(share, max(LEAST_BYTES, found.allowed))

    def add(self, business: str, nbytes: int) -> None:
        """Count bytes that were received for a business."""
        found = self._businesses.get(business) or self._add_business(business)
        found.nbytes += nbytes
        self.nbytes += nbytes

    def _add_business(self, business: str) -> _BusinessMemory:
        """Add a business; drop an idle one if there are too many."""
        if len(self._businesses) >= BUSINESSES_MAX:
            idle = next((name for name, held in self._businesses.items() if not held.nbytes), None)
            if idle is not None:
                del self._businesses[idle]
        found = self._businesses[business] = _BusinessMemory()
        return found

    def remove(self, business: str, nbytes: int, waited_s: float) -> None:
        """Count bytes saved or refused `waited_s` after they were received; 0 means that the time is not known."""
        found = self._businesses.get(business)
        if found is None:
            return  # none of its bytes were counted
        if waited_s > 0:
            found.shortest_s = min(found.shortest_s * (1 + _FORGET), waited_s)
            goal_s = found.shortest_s + self._target_s
            found.allowed = found.nbytes * goal_s / waited_s
        found.nbytes -= nbytes
        self.nbytes -= nbytes


T = TypeVar("T")


@dataclass(slots=True)
class _BusinessLine(Generic[T]):
    """The waiting items of one key, each with its cost."""

    items: deque[tuple[int, T]] = field(default_factory=deque)
    deficit: int = 0
    cost: int = 0  # of all items


@dataclass(slots=True)
class _Section(Generic[T]):
    """Items between two barriers, by key."""

    closed: bool = False
    lines: OrderedDict[Hashable, _BusinessLine[T]] = field(default_factory=OrderedDict)


class FairQueue(Generic[T]):
    """Items with a cost, in lines by key. Not thread-safe."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._urgent: deque[T] = deque()
        self._sections: deque[_Section[T]] = deque([_Section()])
        self._count = 0
        self._lately: dict[Hashable, int] = {}  # the cost that each key has put, halved regularly
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
            line = section.lines[key] = _BusinessLine()
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
        """Put an item after all waiting items, and all later items after it."""
        barrier: _Section[T] = _Section(closed=True)
        barrier.lines[None] = _BusinessLine(deque([(0, item)]))
        self._sections.append(barrier)
        self._count += 1

    def take(self, cost_max: int, count_max: int, *, small: int = 0) -> list[T]:
        """Remove the next items; the last one may exceed `cost_max`.

        Keys that have recently put no more than `small` are taken alone, unless the last call did so.
        """
        taken: list[T] = []
        while self._urgent and len(taken) < count_max:
            taken.append(self._urgent.popleft())
        alone = self._find_small_keys(small) if small and not self._were_alone else []
        self._were_alone = bool(alone)
        if alone:
            self._take_whole(alone, taken, count_max)
        else:
            self._take_in_order(taken, cost_max, count_max)
            self._lately = {key: cost // 2 for key, cost in self._lately.items() if cost > 1}
        self._count -= len(taken)
        return taken

    def _find_small_keys(self, small: int) -> list[Hashable]:
        """Return the small keys, if there are also others."""
        lines = self._sections[0].lines
        found = [key for key, line in lines.items() if line.cost <= small and self._lately.get(key, 0) <= small]
        return found if len(found) < len(lines) else []

    def _take_whole(self, keys: list[Hashable], taken: list[T], count_max: int) -> None:
        """Move all items of these keys to `taken`, up to `count_max`."""
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
        """Move items to `taken`, section by section, up to the limits."""
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
    def _take_free(lines: OrderedDict[Hashable, _BusinessLine[T]], taken: list[T], count_max: int) -> None:
        """Move the items without cost at the heads of the lines to `taken`."""
        for key in list(lines):
            items = lines[key].items
            while items and not items[0][0] and len(taken) < count_max:
                taken.append(items.popleft()[1])
            if not items:
                del lines[key]

    def _take_in_turns(
        self, lines: OrderedDict[Hashable, _BusinessLine[T]], taken: list[T], cost_max: int, count_max: int
    ) -> int:
        """Move items to `taken` by deficit round robin; return their cost."""
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
