"""How much of a queue is kept for unknown readers, from measurements (Tensor V-B, formula 1).

A reader without a group needs, when it returns, what was written during its absence. The size follows the product of
the write rate and the mean absence of the readers that returned in the last day, measured every 30 s. It is raised at
once and then halved each hour, between two limits. Known consumers and sets below need none of it, because their
positions keep the queue.

The paper raises the size and halves it over a time `t`, whose unit it does not name. An hour keeps most of what readers
need (T7 of bench/FIGURES.md); half a minute would keep almost nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MEASURE_EVERY_S = 30.0
HALF_LIFE_S = 3600.0
#: How long an absence counts.
WINDOW_S = 86_400.0
#: Absences, and absent readers, that are remembered; beyond that the oldest are dropped.
REMEMBERED_MAX = 1000


@dataclass(slots=True)
class MeasuredRetention:
    """Size of the part of a queue that is kept for unknown readers. Times are monotonic seconds.

    `kept_bytes` is the size at the start, so that a restart does not drop the kept part at once.
    """

    bytes_min: int
    bytes_max: int
    kept_bytes: int
    written_bytes: int
    now: float
    #: Measured in the last interval.
    bytes_per_s: float = 0.0
    #: When the size was raised last, and to what.
    raised_at: float = field(init=False)
    _raised_bytes: float = field(init=False)
    _measured_at: float = field(init=False)
    _left_at: dict[str, float] = field(default_factory=dict)
    _absences: deque[tuple[float, float]] = field(default_factory=deque)  # end and length, the oldest first
    _absent_s: float = 0.0  # the sum of the lengths

    def __post_init__(self) -> None:
        self.raised_at = self._measured_at = self.now
        self._raised_bytes = float(self._limit(self.kept_bytes))

    def on_leave(self, reader: str, now: float) -> None:
        """Record that a reader has left."""
        self._left_at.pop(reader, None)
        self._left_at[reader] = now
        if len(self._left_at) > REMEMBERED_MAX:
            del self._left_at[next(iter(self._left_at))]

    def on_return(self, reader: str, now: float) -> None:
        """Record that a reader has come. If it was known before, its absence counts."""
        if (left_at := self._left_at.pop(reader, None)) is not None:
            self._absences.append((now, now - left_at))
            self._absent_s += now - left_at
            self._drop_absences(now)

    def measure(self, written_bytes: int, now: float) -> None:
        """Measure the rate from all bytes that were ever written, and raise the size if it is too small."""
        passed_s = now - self._measured_at
        if passed_s < MEASURE_EVERY_S:
            return
        self.bytes_per_s = max(0, written_bytes - self.written_bytes) / passed_s
        self._measured_at, self.written_bytes = now, written_bytes
        self._drop_absences(now)
        needed = self.bytes_per_s * self.mean_absence_s
        if needed >= self.size(now):
            self._raised_bytes, self.raised_at = float(self._limit(needed)), now

    def size(self, now: float) -> int:
        """Return how many bytes are kept for unknown readers. It changes every MEASURE_EVERY_S."""
        steps = max(0.0, now - self.raised_at) // MEASURE_EVERY_S
        return self._limit(self._raised_bytes * 2.0 ** (-steps * MEASURE_EVERY_S / HALF_LIFE_S))

    @property
    def absences(self) -> int:
        """Number of readers' absences in the last day, on which the size is based."""
        return len(self._absences)

    @property
    def mean_absence_s(self) -> float:
        """The mean length of readers' absences in the last day; 0 without any."""
        return max(0.0, self._absent_s) / len(self._absences) if self._absences else 0.0

    def _drop_absences(self, now: float) -> None:
        """Drop the absences that are older than a day, and the oldest if there are too many."""
        while self._absences and (len(self._absences) > REMEMBERED_MAX or self._absences[0][0] <= now - WINDOW_S):
            self._absent_s -= self._absences.popleft()[1]

    def _limit(self, size: float) -> int:
        """Return a size within the two limits."""
        return int(min(max(size, self.bytes_min), self.bytes_max))
