"""When a broker said something: what the ages of its moments are reckoned from.

An age that the broker itself has measured, by a clock that nobody sets, comes before the difference of two moments.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from venus.wire.broker_pb2 import BrokerStatus, BusinessStatus, HalfRef


def moment_of(status: BrokerStatus) -> int:
    """Return the moment of a status in microseconds, by the broker's own clock; this machine's may be another."""
    return status.now_us or time.time_ns() // 1000


def half_age_s(half: HalfRef, now_us: int) -> float:
    """Return for how long a half message has had no decision; an older broker says only when it came."""
    return half.waited_ms / 1000 if half.waited_ms else max(0.0, (now_us - half.received_at_us) / 1e6)


def committed_age_s(own: BusinessStatus, now_us: int) -> float | None:
    """Return how long ago the newest commit was, None before the first one."""
    if own.HasField("committed_ago_ms"):
        return own.committed_ago_ms / 1000
    moment_us = own.last_committed_at_us or own.last_captured_at_us
    return max(0.0, (now_us - moment_us) / 1e6) if moment_us else None
