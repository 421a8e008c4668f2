"""How the materialising thread holds back: for small commits, and for RocksDB's files."""

from __future__ import annotations

from collections.abc import Callable

from venus.broker.store import keys
from venus.broker.store.options import DELAYING_FILES, DELAYING_MEMTABLES
from venus.broker.store.rocks import Store
from venus.flow.precedence import Precedence

#: A step ends after so many bytes of bodies, or one batch; while large work rests, after fewer, down to the least.
STEP_BYTES_MAX, STEP_BYTES_LEAST = 1 << 20, 128 << 10
#: How often, and how many times at most, it looks whether RocksDB takes rows without a delay.
FLUSH_LOOK_S, FLUSH_LOOKS_MAX = 0.01, 100
#: It waits from this many files below the number that delays writes: one may be on its way.
FILES_BEFORE = 4


class Pacing:
    """Used by one thread. `pause` lets so many seconds go by, or fewer: True = there is something better to do."""

    def __init__(
        self, store: Store, precedence: Precedence, *, monotonic: Callable[[], float], pause: Callable[[float], bool]
    ) -> None:
        self._store = store
        self._precedence = precedence
        self._monotonic = monotonic
        self._pause = pause

    def step_bytes(self) -> int:
        """Return how much goes into one step."""
        return self._precedence.turn_bytes(STEP_BYTES_MAX, STEP_BYTES_LEAST, self._monotonic())

    def holds(self) -> bool:
        """Whether large work is to rest for small commits now."""
        return self._precedence.holds(self._monotonic())

    def rest(self, began: float) -> None:
        """Rest behind a large turn that began then."""
        now = self._monotonic()
        if rest_s := self._precedence.rest_s("full data", now - began, now):
            self._pause(rest_s)

    def wait_for_files(self) -> None:
        """Wait while memtables are written to files, or files merged: a write that RocksDB delays holds up all."""
        for _ in range(FLUSH_LOOKS_MAX):
            if not self._is_near_delays() or self._pause(FLUSH_LOOK_S):
                return

    def _is_near_delays(self) -> bool:
        store = self._store
        return (
            store.full_memtables(keys.ROW) >= DELAYING_MEMTABLES - 1
            or store.unmerged_files(keys.ROW) >= DELAYING_FILES - FILES_BEFORE
        )
