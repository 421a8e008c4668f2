"""Whether this broker is fit to lead: one that is not should lead only if nobody else who has everything can.

It breaks ties inside the in-sync set and excludes nobody (venus/replication/election.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from venus.broker.store.rocks import Store, Syncs
from venus.broker.store.space import Space

#: Below so many times the free space at which writes are refused, somebody with more room should lead.
NEARLY_FULL = 2
#: An fsync that takes longer is slow; two within the window are not chance.
SLOW_SYNC_S = 1.0
SLOW_SYNCS = 2
WINDOW_S = 30.0
#: A trouble that has ended counts for so long, so that leadership does not go back and forth.
SUSTAIN_S = 30.0
LOOK_EVERY_S = 1.0


def trouble(free_bytes: int, free_bytes_min: int, syncs: Syncs, now: float) -> str:
    """Return what is wrong now; empty = nothing."""
    if free_bytes < NEARLY_FULL * free_bytes_min:
        return f"its disk has less than {NEARLY_FULL * free_bytes_min >> 20} MiB free"
    running = syncs.running_s(now)
    slow = syncs.slower_than(SLOW_SYNC_S, now - WINDOW_S)
    if running >= SLOW_SYNC_S:
        return "an fsync does not end"
    return f"{slow} fsyncs took {SLOW_SYNC_S:g} s or more in {WINDOW_S:g} s" if slow >= SLOW_SYNCS else ""


class Health:
    """Called often, looks once a second."""

    def __init__(self, store: Store, space: Space, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._space, self._monotonic = store, space, monotonic
        self._looked_at = float("-inf")
        self._wrong_until = float("-inf")
        self._why = ""

    def __call__(self) -> str:
        """Return why somebody else should rather lead; empty = this broker is healthy."""
        now = self._monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            found = trouble(self._space.free(), self._space.free_bytes_min, self._store.syncs, now)
            if found:
                self._why, self._wrong_until = found, now + SUSTAIN_S
            elif now >= self._wrong_until:
                self._why = ""
        return self._why
