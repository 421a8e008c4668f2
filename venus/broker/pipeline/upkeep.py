"""Periodic work of the commit thread: logging acknowledgements, expiring leases, trimming the queue.

Upkeep can be delayed and repeated without harm. After a crash a consumer repeats an acknowledgement that was not
logged, and space that was not freed is freed later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.consumers import ConsumerState
from venus.broker.pipeline import consumer_groups
from venus.broker.pipeline.group import CommandGroup
from venus.broker.pipeline.shared_log import SharedLog
from venus.broker.queue import reader
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.config import BrokerSettings
from venus.errors import StorageError, Unavailable
from venus.flow.retention import MeasuredRetention

#: Intervals of logging acknowledgements, and of expiring consumers and leases and trimming the queue.
ACKNOWLEDGE_EVERY_S = 0.2
MAINTAIN_EVERY_S = 1.0
#: The interval while nothing happens, because each check wakes an idle broker.
QUIET_EVERY_S = 10.0
#: At most this many positions of consumer groups are logged at once, the oldest first.
ACKNOWLEDGED_MAX = 256
#: Space of trimmed log entries is freed in pieces of this size.
COMPACT_BYTES = 64 << 20


class Upkeep:
    """Periodic work of the commit thread, which calls it with each group before writing the group."""

    def __init__(
        self,
        store: Store,
        buffer: BodyBuffer,
        settings: BrokerSettings,
        *,
        catalogue: BusinessCatalogue,
        snapshots: SnapshotManager,
        clock_us: Callable[[], int],
        monotonic: Callable[[], float],
        on_fatal: Callable[[BaseException], None],
        shared: SharedLog,
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._settings = settings
        self._catalogue = catalogue
        self._snapshots = snapshots
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._on_fatal = on_fatal
        self._shared = shared
        self._lock = threading.Lock()
        self._dirty: dict[tuple[Business, str], None] = {}  # the oldest first
        self._acknowledged_at = self._maintained_at = monotonic()
        self._is_quiet = False  # nothing was written since the last maintenance, and time alone changes nothing
        #: Wakes the commit thread, which waits for `rest_s`, when there is something new to log.
        self.wake: Callable[[], None] = lambda: None
        self._trimmed: dict[Business, tuple[int, int]] = {}  # entries whose space is not freed yet
        self._trimmed_bytes = 0
        self._compacting: threading.Thread | None = None

    def schedule_logging(self, business: Business, consumer: ConsumerState) -> None:
        """Schedule logging of a group's position; transient readers have none. Works in any thread."""
        if not consumer.transient:
            with self._lock:
                is_first = not self._dirty
                self._dirty.setdefault((business, consumer.group))
            if is_first:  # otherwise the thread already waits only until these are logged
                self.wake()

    def rest_s(self) -> float:
        """Return the time until periodic work is due."""
        now = self._monotonic()
        if self._dirty:
            return max(0.0, self._acknowledged_at + ACKNOWLEDGE_EVERY_S - now)
        is_quiet = self._is_quiet and not self._snapshots.checkpoints  # their leases end with time
        every_s = QUIET_EVERY_S if is_quiet else MAINTAIN_EVERY_S
        return max(0.0, self._maintained_at + every_s - now)

    def finish(self, group: CommandGroup) -> None:
        """Add all unlogged acknowledgements and disconnections of consumers to the log, before the thread ends."""
        for business in self._catalogue.list_stored():
            for consumer in business.list_consumers():
                if not consumer.is_connected:
                    self.schedule_logging(business, consumer)
        self._log_acknowledgements(group, len(self._dirty))

    def close(self) -> None:
        """Wait for the background compaction."""
        if self._compacting is not None:
            self._compacting.join()

    def __call__(self, group: CommandGroup) -> None:
        now = self._monotonic()
        if now - self._acknowledged_at >= ACKNOWLEDGE_EVERY_S:
            self._acknowledged_at = now
            self._log_acknowledgements(group, ACKNOWLEDGED_MAX)
        if now - self._maintained_at >= MAINTAIN_EVERY_S:
            passed_us, self._maintained_at = int((now - self._maintained_at) * 1e6), now
            self._snapshots.expire()
            for business in self._catalogue.list_stored():
                if self._can_propose(group, business):
                    consumer_groups.age_consumers(
                        group, business, passed_us, self._clock_us(), self._settings.consumer_ttl_s
                    )
                self._trim(group, business)
                self._mark_delivered(business)
            self._compact()
            self._is_quiet = not group.touched_businesses() and self._is_at_rest()
        elif self._is_quiet:
            self._is_quiet = not group.touched_businesses()

    def _is_at_rest(self) -> bool:
        """Return whether only a command can make work due: no replicas, complete full data, all consumers connected."""
        return not self._shared.is_shared and all(
            business.is_filled
            and business.materialised.offset >= business.visible_offset
            and all(consumer.is_connected for consumer in business.list_consumers())
            for business in self._catalogue.list_stored()
        )

    def _log_acknowledgements(self, group: CommandGroup, most: int) -> None:
        """Log the positions of up to `most` consumer groups, the oldest first."""
        with self._lock:
            due = list(islice(self._dirty, most))
            for each in due:
                del self._dirty[each]
        for business, name in due:
            with business.lock:
                consumer = business.consumers.get(name)
            if consumer is None:
                continue
            if self._catalogue.is_stored(business) and self._can_propose(group, business):
                consumer_groups.log_consumer(group, business, consumer)
            elif business in self._catalogue.list_all() and self._shared.leads(business):
                self.schedule_logging(business, consumer)  # later: the business is new, or cannot be written now

    def _can_propose(self, group: CommandGroup, business: Business) -> bool:
        """Return whether this broker leads the business, and so may propose entries of its upkeep."""
        try:
            group.allow(business, self._shared.term(business))
        except Unavailable:
            return False
        return True

    def _trim(self, group: CommandGroup, business: Business) -> None:
        """Trim the log and the queue of a business."""
        if business.halted:
            return
        before = business.nbytes_trimmed
        first, end = consumer_groups.trim(
            self._store,
            group,
            business,
            self._snapshots.offsets(business),
            self._retained_bytes(business),
            self._shared.backlog(business),
        )
        if end:
            known = self._trimmed.get(business)
            self._trimmed[business] = (known[0] if known else first, end)
            self._trimmed_bytes += business.nbytes_trimmed - before

    def _retained_bytes(self, business: Business) -> int:
        """Return how many bytes to keep before the part that is needed. Only a leader has readers to measure."""
        settings, leads, now = self._settings, self._shared.leads(business), self._monotonic()
        if settings.retain == "bytes":
            return settings.retain_bytes
        with business.lock:
            if not leads:
                business.retention = None
                return min(max(settings.retain_bytes, settings.retain_bytes_min), settings.retain_bytes_max)
            if business.retention is None:
                business.retention = MeasuredRetention(
                    bytes_min=settings.retain_bytes_min,
                    bytes_max=settings.retain_bytes_max,
                    kept_bytes=business.nbytes - business.nbytes_trimmed,
                    written_bytes=business.nbytes,
                    now=now,
                )
            business.retention.measure(business.nbytes, now)
            return business.retention.size(now)

    def _mark_delivered(self, business: Business) -> None:
        """Mark bodies in the buffer that the full data has and every attached consumer has acknowledged."""
        consumers = [c.acknowledged for c in business.list_consumers() if c.is_connected]
        first = reader.find_batch(self._store, business, min([business.materialised.offset, *consumers]))
        self._buffer.mark_delivered(business.number, first.index if first else business.log.end)

    def _compact(self) -> None:
        """Free the space of trimmed log entries in the background, once there are enough."""
        busy = self._compacting is not None and self._compacting.is_alive()
        if busy or self._trimmed_bytes < COMPACT_BYTES:
            return
        ranges, self._trimmed, self._trimmed_bytes = self._trimmed, {}, 0

        def compact_ranges() -> None:
            try:
                for business, (first, end) in ranges.items():
                    self._store.compact(
                        keys.RLOG, keys.log_key(business.number, first), keys.log_key(business.number, end)
                    )
            except StorageError as error:
                self._on_fatal(error)

        self._compacting = threading.Thread(target=compact_ranges, name="venus-compact", daemon=True)
        self._compacting.start()
