"""Logs of this broker for the host of the replicas, as commands of the commit thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from venus.broker.core import Core
from venus.broker.log.entry import decode
from venus.broker.machine.business import Business
from venus.broker.pipeline import replica_commands
from venus.broker.pipeline.group import CommandGroup
from venus.broker.replicas.ports import Post
from venus.broker.replicas.replicated_logs import ReplicatedLogs, fit_values, log_position, write_refusal
from venus.broker.store import keys
from venus.errors import NotLeader, StorageError
from venus.replication.messages import Append, LogChanged, Truncate

logger = logging.getLogger(__name__)

#: Sizes of a frame of entries. A follower that reconnects fetches every business at once, so with many businesses
#: each frame gets a share of the total, but no less than the minimum.
FRAME_BYTES = 1 << 20
FRAMES_BYTES = 32 << 20
FRAME_BYTES_MIN = 64 << 10
#: Maximum number of entries in one read of the store.
READ_ENTRIES_MAX = 4096

Retired = Callable[[str, NotLeader], None]


class CoreLogs:
    """`venus.broker.replicas.ports.Logs`. `retired` ends the streams of producers and consumers."""

    def __init__(
        self, core: Core, shared: ReplicatedLogs, *, me: str, background: Post, retired: Retired = lambda _b, _e: None
    ) -> None:
        self._core = core
        self._shared = shared
        self._me = me
        self._background = background
        self._retired = retired

    def open(self, business: str) -> tuple[LogChanged, int, bool]:
        """Return the state of a log, its applied index, and False if an installation was interrupted."""
        found = self._core.catalogue.adopt(business)
        if found.halted:
            self._shared.on_halted(found)
        whole = self._core.store.get(keys.STATE, keys.installing_key(business)) is None
        return log_position(found), found.log.applied, whole

    def has(self, business: str) -> bool:
        """Whether the business has a log."""
        return self._core.catalogue.has_stored(business)

    def append(self, business: str, effect: Append, sender: str) -> None:
        """Append a leader's entries."""
        found = self._core.catalogue.find(business)

        def work(group: CommandGroup) -> None:
            self._shared.record_order(group, found, effect.order)
            replica_commands.append_stored(group, found, effect.first, effect.entries, sender)
            if found.halted:
                self._shared.on_halted(found)

        self._submit(found, work)

    def truncate(self, business: str, effect: Truncate) -> None:
        """Remove every entry from an index on."""
        found = self._core.catalogue.find(business)
        ordered = partial(self._shared.record_order, business=found, order=effect.order)
        self._log_failure(self._core.commits.truncate(found, effect.end, ordered))

    def advance(self, business: str) -> None:
        """Apply the entries that the standing reports as safe."""
        self._core.commits.advance()

    def lead(self, business: str, term: int) -> None:
        """Append the entry that begins a term."""
        found = self._core.catalogue.find(business)

        def work(group: CommandGroup) -> None:
            standing = self._shared.standing(business)
            if standing.leads and standing.term == term:
                replica_commands.begin_term(
                    group, found, term, self._me, self._core.clock_us(), doubted=standing.doubted
                )

        self._submit(found, work)

    def refuse(self, business: str) -> None:
        """Fail waiting requests. Their proposals stay, and are found when the request is repeated."""
        error = write_refusal(business, self._shared.standing(business))
        self._core.commits.refuse_waiting(self._core.catalogue.find(business), error)

    def retire(self, business: str, leader: str) -> None:
        """Fail waiting requests and end the streams."""
        error = NotLeader(f"{business}: another broker leads", leader=leader)
        found = self._core.catalogue.find(business)
        self._core.subscriptions.retire(found)
        self._core.commits.refuse_waiting(found, error, partial(replica_commands.end_term, self._core.store, found))
        self._retired(business, error)

    def recent(self, business: str, first: int) -> tuple[bytes, ...] | None:
        """Return entries from memory."""
        recent = self._shared.recent(business)
        return recent.read(first, self._frame_bytes) if recent is not None else None

    @property
    def _frame_bytes(self) -> int:
        """Return the approximate size of an answer's entries."""
        return max(FRAME_BYTES_MIN, min(FRAME_BYTES, FRAMES_BYTES // max(1, len(self._core.catalogue.list_stored()))))

    def read(self, business: str, first: int, then: Callable[[tuple[bytes, ...]], None]) -> None:
        """Read entries from the store."""
        self._background(lambda: self._read_from_store(business, first, then))

    def _read_from_store(self, business: str, first: int, then: Callable[[tuple[bytes, ...]], None]) -> None:
        found, frame_bytes = self._core.catalogue.find(business), self._frame_bytes
        start, stop = keys.log_key(found.number, first), keys.log_key(found.number, found.log.durable_end)
        try:
            found_keys, values, _ = self._core.store.read_range(
                keys.RLOG, start, max(start, stop), rows_max=READ_ENTRIES_MAX, bytes_max=frame_bytes
            )
            dense = 0
            while dense < len(found_keys) and keys.log_index(found_keys[dense]) == first + dense:
                decode(
                    values[dense], first + dense, where=str(self._core.store.path)
                )  # followers would reject a damaged entry
                dense += 1
        except StorageError as error:
            self._core.commits.fail(error)
            return
        then(fit_values(values[:dense], 0, frame_bytes))

    def _submit(self, business: Business, work: Callable[[CommandGroup], None]) -> None:
        self._log_failure(self._core.commits.submit(work, line=business))

    @staticmethod
    def _log_failure(future: Future[Any]) -> None:
        def on_done(finished: Future[Any]) -> None:
            if not finished.cancelled() and finished.exception() is not None:
                logger.warning("replication: %s", finished.exception())

        future.add_done_callback(on_done)
