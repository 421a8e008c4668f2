"""How new the store of this broker must be, as the coordinator remembers it: a witness that no backup brings back.

A data directory that is restored from a backup, or copied, has its own witness with it (venus/broker/store/witness.py),
and all that it says of itself is true of an earlier day. To the cluster it would still be the member that has
everything, and could lead without what was acknowledged since. So the sequence number of what is on disk is noted at
the coordinator every few seconds, and a store that comes back with a lower one is another member: it follows, and
counts once it has caught up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from venus.broker.core import Core
from venus.broker.replicas.coordinator_thread import CoordinatorThread
from venus.replication.coordinator import Coordinator

logger = logging.getLogger(__name__)

#: A backup that is younger than this, and what was written since, cannot be told apart.
NOTE_EVERY_S = 5.0


def was_set_back(core: Core, coordinator: Coordinator, store: str) -> bool:
    """Whether a store lacks what it is remembered to have had. Raises Unavailable."""
    had, has = coordinator.noted(store), core.store.opened_at
    if has >= had:
        return False
    logger.error(
        "%s is older than it was: it ends at write %d and had write %d on disk. It was restored from a backup, or is "
        "a copy: this broker is another member of its cluster now, and installs or fetches what it lacks",
        core.data_dir, has, had,
    )  # fmt: skip
    return True


class Noting:
    """Notes how new the store is. In the service's event loop."""

    def __init__(self, core: Core, coordination: CoordinatorThread, store: str, monotonic: Callable[[], float]) -> None:
        self._core, self._coordination, self._store, self._monotonic = core, coordination, store, monotonic
        self._noted, self._at = 0, float("-inf")

    def tick(self) -> None:
        """Note what has been synced since, if it is time for that."""
        now, synced = self._monotonic(), self._core.store.synced
        if synced > self._noted and now - self._at >= NOTE_EVERY_S:
            self._noted, self._at = synced, now
            self._coordination.note(self._store, synced)
