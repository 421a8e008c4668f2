"""How much of the memory for what is not on disk yet each business may have.

Two rules. A dynamic threshold: a business may have `SHARE` times what is free, so that one alone gets two thirds, and
somebody new always finds room. And no more than the disk takes in `target_s`: what waits longer than that is not
faster for having been received, and would be refused as too slow.
"""

from __future__ import annotations

from dataclasses import dataclass

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
