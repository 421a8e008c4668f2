"""How far a mirror is behind the set above: offsets, and for how long. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque

#: So many looks are remembered.
LOOKS_MAX = 4096


class Lag:
    """What was there above at which time, until it is here."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=LOOKS_MAX)
        self.upstream_offset = 0

    def seen(self, offset: int, now: float) -> None:
        """Note the end of the queue above. Where it was further once, another set or another history is there now."""
        self.upstream_offset = offset
        while self._looks and self._looks[-1][1] > offset:
            self._looks.pop()
        if not self._looks or self._looks[-1][1] != offset:
            self._looks.append((now, offset))

    def ms(self, own: int, now: float) -> int:
        """Return for how long something has been above that is not here, 0 if there is nothing."""
        while self._looks and self._looks[0][1] <= own:
            self._looks.popleft()
        return int((now - self._looks[0][0]) * 1000) if self._looks else 0

    def offsets(self, own: int) -> int:
        """Return how many offsets are above and not here."""
        return max(0, self.upstream_offset - own)
