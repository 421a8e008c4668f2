"""Write window shared by all businesses, with one fair line: admits half messages to the disk.

What is handed over and not saved waits in memory, and what waits too long is refused, so that it was received for
nothing. A bound for each business does not prevent that: 200 of them keep it, and come to 200 times as much together.
So they share one window. It grows while what was saved had hardly waited, and is cut when it had waited longer than
`target_s`: additive increase, multiplicative decrease, as in TCP. A business without room waits in line with one
piece, so each waits for at most one piece of each of the others.

Small pieces have a part of their own beside the window, and a line of their own: neither kind waits for the other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from venus.flow.precedence import SMALL_BYTES

#: The initial window. It doubles while nothing has been slow.
START_BYTES = 4 << 20
#: Its growth afterwards, for each full window that was written quickly.
STEP_BYTES = 256 << 10
#: A cut takes no more than this part away.
CUT_MAX = 0.5
#: What small pieces may have beside the window, as a part of it.
SMALL_PART = 0.25


@dataclass(slots=True, eq=False)
class WriteSlot:
    """A piece that waits for room, or was granted it."""

    nbytes: int
    granted: bool = False

    @property
    def is_small(self) -> bool:
        """Whether the piece counts against the part for small pieces."""
        return self.nbytes <= SMALL_BYTES


@dataclass(slots=True)
class _Line:
    """Pieces of one kind: bytes granted and not yet saved, and waiting pieces."""

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
        """How many bytes of large pieces may be under way."""
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
        turn = WriteSlot(nbytes)
        line = self._line(turn)
        line.waiting[turn] = None
        self._grant(line)
        return turn

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

    def _line(self, turn: WriteSlot) -> _Line:
        return self._small if turn.is_small else self._large

    def _grant(self, line: _Line) -> list[WriteSlot]:
        """Grant the first pieces in line as far as there is room, at least one if nothing is under way."""
        bound = self.size if line is self._large else self.small_size
        found = []
        while line.waiting:
            turn = next(iter(line.waiting))
            if line.nbytes and line.nbytes + turn.nbytes > bound:
                break
            del line.waiting[turn]
            line.nbytes += turn.nbytes
            turn.granted = True
            found.append(turn)
        return found


SHARE = 2.0
#: Every business may hold this much: one frame on its way to the disk and one behind it.
LEAST_BYTES = 2 << 20
#: How much the shortest time grows with each later one, so that it adapts to a longer line.
_FORGET = 0.02
#: Businesses that are kept; beyond that, an idle one is removed.
BUSINESSES_MAX = 10_000


@dataclass(slots=True)
class _BusinessMemory:
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
        """Return the bytes that a business holds."""
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
        """Count received bytes."""
        found = self._businesses.get(business) or self._new(business)
        found.nbytes += nbytes
        self.nbytes += nbytes

    def _new(self, business: str) -> _BusinessMemory:
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
            return  # nothing of it was counted
        if waited_s > 0:
            found.shortest_s = min(found.shortest_s * (1 + _FORGET), waited_s)
            goal_s = found.shortest_s + self._target_s
            found.allowed = found.nbytes * goal_s / waited_s
        found.nbytes -= nbytes
        self.nbytes -= nbytes
