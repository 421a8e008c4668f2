"""How much goes into one group of the disk while several want to write: as much as takes as long as its fsync.

More would make whoever waits wait longer, and the disk hardly faster; less would spend most of the time on fsyncs. So
the groups are small on a fast disk and large on a slow one.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How much of what a full group tells is taken over at once.
_PART = 0.2


@dataclass(slots=True)
class GroupSize:
    """Bytes of a group, from `least` to `most`."""

    least: int
    most: int
    size: int = 0

    def __post_init__(self) -> None:
        self.size = self.size or self.most

    def took(self, nbytes: int, work_s: float, sync_s: float) -> None:
        """Learn from a group: its bytes, what they took, and its fsync. One that was hardly full tells nothing."""
        if nbytes < self.size // 2 or work_s <= 0.0:
            return
        wanted = min(float(self.most), max(float(self.least), nbytes * sync_s / work_s))
        self.size = round(self.size + (wanted - self.size) * _PART)
