"""One window and one fair line for all businesses: who may hand half messages to the disk, and when.

What is handed over and not saved waits in memory, and what waits too long is refused, so that it was received for
nothing. A bound for each business does not prevent that: 200 of them keep it, and come to 200 times as much together.
So they share one window. It grows while what was saved had hardly waited, and is cut when it had waited longer than
`target_s`: additive increase, multiplicative decrease, as TCP does it. Whoever finds no room stands in line, with one
piece, so that nobody waits for more than one piece of each of the others.

Small pieces have a part of their own beside the window, and a line of their own: neither kind waits for the other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from venus.flow.precedence import SMALL_BYTES

#: The window at first. It grows twofold, as long as nothing was slow yet.
START_BYTES = 4 << 20
#: By how much it grows for each windowful that was quick, later.
STEP_BYTES = 256 << 10
#: A cut takes no more than this part away.
CUT_MAX = 0.5
#: What small pieces may have beside the window, as a part of it.
SMALL_PART = 0.25


@dataclass(slots=True, eq=False)
class Turn:
    """A piece that waits for its turn, or has it."""

    nbytes: int
    granted: bool = False

    @property
    def is_small(self) -> bool:
        """Whether it goes beside the large ones."""
        return self.nbytes <= SMALL_BYTES


@dataclass(slots=True)
class _Line:
    """One kind of pieces: what has been let go and is not saved, and who waits."""

    nbytes: int = 0
    waiting: OrderedDict[Turn, None] = field(default_factory=OrderedDict)


class Turns:
    """The window, from `least` to `most`, and who waits for it. What is larger goes when nothing else is under way."""

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

    def ask(self, nbytes: int) -> Turn:
        """Stand in line; what is `granted` may go at once."""
        turn = Turn(nbytes)
        line = self._line(turn)
        line.waiting[turn] = None
        self._let_go(line)
        return turn

    def give_up(self, turn: Turn) -> list[Turn]:
        """Leave the line, or give the turn back unused; return who may go now."""
        line = self._line(turn)
        if turn.granted:
            line.nbytes -= turn.nbytes
        else:
            del line.waiting[turn]
        return self._let_go(line)

    def saved(self, turn: Turn, waited_s: float) -> list[Turn]:
        """Count what is on disk, or was refused there, after it had waited so long; return who may go now."""
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
        return self._let_go(self._large) + self._let_go(self._small)

    def _line(self, turn: Turn) -> _Line:
        return self._small if turn.is_small else self._large

    def _let_go(self, line: _Line) -> list[Turn]:
        """Let those go who are first in line, as far as there is room; one at least."""
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
#: A business may always have so much: one frame on its way to the disk and one behind it.
LEAST_BYTES = 2 << 20
#: By how much the shortest time seen grows with each later one, so that it follows a line that has become longer.
_FORGET = 0.02
#: Businesses that are remembered; of more, one that has nothing here goes.
BUSINESSES_MAX = 10_000


@dataclass(slots=True)
class _Held:
    nbytes: int = 0
    allowed: float = float("inf")
    shortest_s: float = float("inf")


class Sharing:
    """Bytes by business that are received and not saved."""

    def __init__(self, bytes_max: int, target_s: float) -> None:
        self._bytes_max = bytes_max
        self._target_s = target_s
        self._businesses: dict[str, _Held] = {}
        self.nbytes = 0

    def of(self, business: str) -> int:
        """Return what a business has."""
        found = self._businesses.get(business)
        return found.nbytes if found is not None else 0

    @property
    def is_below_limit(self) -> bool:
        """Whether all businesses together have less than they may."""
        return self.nbytes < self._bytes_max

    def has_room(self, business: str, window_bytes: int | None = None) -> bool:
        """Whether more may be received for a business, while so much may be under way to the disk for all."""
        found = self._businesses.get(business)
        if found is None or not found.nbytes:
            return True
        bytes_max = self._bytes_max if window_bytes is None else min(window_bytes, self._bytes_max)
        share = SHARE * max(0, bytes_max - self.nbytes)
        return found.nbytes < min(share, max(LEAST_BYTES, found.allowed))

    def add(self, business: str, nbytes: int) -> None:
        """Count what was received."""
        found = self._businesses.get(business) or self._new(business)
        found.nbytes += nbytes
        self.nbytes += nbytes

    def _new(self, business: str) -> _Held:
        if len(self._businesses) >= BUSINESSES_MAX:
            idle = next((name for name, held in self._businesses.items() if not held.nbytes), None)
            if idle is not None:
                del self._businesses[idle]
        found = self._businesses[business] = _Held()
        return found

    def remove(self, business: str, nbytes: int, waited_s: float) -> None:
        """Count what is saved, or was refused, `waited_s` after it was received (0 = says nothing)."""
        found = self._businesses.get(business)
        if found is None:
            return  # it had nothing here
        if waited_s > 0:
            found.shortest_s = min(found.shortest_s * (1 + _FORGET), waited_s)
            goal_s = found.shortest_s + self._target_s
            found.allowed = found.nbytes * goal_s / waited_s
        found.nbytes -= nbytes
        self.nbytes -= nbytes
