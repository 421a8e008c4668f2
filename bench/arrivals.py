"""Increments received by the subscribers of one process: checks that each arrives once and in order, and when.

A frame with the same bytes as one that another subscriber has read is compared, not parsed again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from venus.rpc.compression import cost
from venus.rpc.sealed import unseal
from venus.wire import broker_pb2

#: A new frame is compared with this number of recent ones.
FRAMES_KEPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Times of arrival: of the first increment, and of everything below each offset at the last subscriber."""

    first: float
    last: dict[int, float]
    nbytes: int
    frames: int
    #: Rows of all subscribers together, each counted once.
    rows: int
    #: User and system time of their processes since the start.
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameContent:
    """A frame of increments that was checked and parsed: its offsets, and how much credit it costs."""

    content: bytes
    is_opening: bool
    begin: int
    end: int
    price: int


class FrameCache:
    """Cache of the newest frames that subscribers of this process have read."""

    def __init__(self) -> None:
        self.newest: deque[FrameContent] = deque(maxlen=FRAMES_KEPT)

    def read(self, content: bytes) -> FrameContent:
        """Return a frame's content, from the cache or parsed. Raises DigestMismatch, AssertionError."""
        for known in self.newest:
            if known.content == content:  # which compares lengths first
                return known
        frame = unseal(broker_pb2.DeliveryFrame, content, "a frame")
        increments = frame.increments
        begin = end = increments[0].base_offset if increments else 0
        for increment in increments:
            assert increment.base_offset == end, "an increment is missing in a frame"
            end += increment.count
        price = sum(map(cost, increments))
        found = FrameContent(content=content, is_opening=frame.HasField("opened"), begin=begin, end=end, price=price)
        if increments:
            self.newest.appendleft(found)
        return found


@dataclass(slots=True)
class Arrival:
    """Record of the increments that the subscribers of one process have received so far."""

    positions: list[int]
    #: For each subscriber, the end offsets of its frames and their times of arrival.
    ends: list[list[int]]
    times: list[list[float]]
    first: float = float("inf")
    nbytes: int = 0
    frames: int = 0
    opened: int = 0
    frames_read: FrameCache = field(default_factory=FrameCache)

    def take(self, number: int, frame: FrameContent, now: float) -> None:
        """Record a frame of a subscriber. Raises AssertionError if it repeats or skips an increment."""
        self.opened += frame.is_opening
        self.nbytes += len(frame.content)
        if frame.end > frame.begin:
            assert frame.begin == self.positions[number], f"subscriber {number} got an increment twice, or missed one"
            self.frames += 1
            self.first = min(self.first, now)
            self.positions[number] = frame.end
            self.ends[number].append(frame.end)
            self.times[number].append(now)

    def arrivals(self, wanted: Sequence[int], offset: int) -> Arrivals:
        """Return the times at which the last subscriber had received everything below these offsets, and the totals."""
        return Arrivals(
            first=self.first,
            last=self._last_arrivals(wanted),
            nbytes=self.nbytes,
            frames=self.frames,
            rows=sum(self.positions) - offset * len(self.positions),
            cpu_s=time.process_time(),
        )

    def _last_arrivals(self, wanted: Sequence[int]) -> dict[int, float]:
        """Return when the last subscriber had received everything below each of these offsets."""
        found = np.zeros(len(wanted))
        for ends, times in zip(self.ends, self.times, strict=True):
            found = np.maximum(found, np.array(times)[np.searchsorted(np.array(ends), np.array(wanted))])
        return dict(zip(wanted, found.tolist(), strict=True))
