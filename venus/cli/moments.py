"""When a broker said something: what the ages of its moments are reckoned from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from venus.wire.broker_pb2 import BrokerStatus


def moment_of(status: BrokerStatus) -> int:
    """Return the moment of a status in microseconds, by the broker's own clock; this machine's may be another."""
    return status.now_us or time.time_ns() // 1000
