"""A clock that nobody sets and that goes on while the machine is suspended.

`time.monotonic` stands still then, on Linux: a lease that was measured by it would seem to hold for a broker that has
slept for an hour, while others have elected a new leader long ago. For pauses, retries and what counts only while a
process is there, `time.monotonic` is right.
"""

from __future__ import annotations

import time

#: Elsewhere monotonic time goes on, or nothing better is known.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def steady() -> float:
    """Return seconds since some moment in the past."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
