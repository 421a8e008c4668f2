"""Publication of a group once it is on disk: to readers, to the full data, and to listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from venus.broker.machine import queue_index
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.machine import EntryEffects
from venus.broker.machine.queue_index import QueuedBatch, QueueTail
from venus.broker.pipeline.group import CommandGroup
from venus.broker.queue import early_delivery
from venus.broker.queue.buffer import BodyBuffer
from venus.process import tracing

#: Limit of half messages whose times are kept; the oldest are dropped first.
HALVES_MAX = 4096


class CutStepLog:
    """Times of the steps of cuts, for the log of cuts (venus/process/tracing.py); kept only while that log is on.

    Used by the commit thread alone, after the fsync of a group.
    """

    def __init__(self) -> None:
        self._synced_us = 0  # when the newest group was on disk
        self._on_disk: dict[tuple[int, int], dict[str, int]] = {}

    def record_synced(self, group: CommandGroup) -> None:
        """Record when a group was on disk, and which half messages the group persisted."""
        if not tracing.has_listener():
            return
        self._synced_us = tracing.step_time_us()
        for business, applied in group.applied.items():
            for batch_no in applied.expected:
                half = business.committed.find_undecided(batch_no)
                if half is not None:
                    steps = {"received": half.received_at_us, "on_disk": self._synced_us}
                    self._on_disk[business.number, batch_no] = steps
        while len(self._on_disk) > HALVES_MAX:
            del self._on_disk[next(iter(self._on_disk))]

    def log_readable(self, business: Business, placed: Iterable[QueuedBatch]) -> None:
        """Log each cut that ends in these batches as readable."""
        if not tracing.has_listener():
            return
        for place in placed:
            steps = self._on_disk.pop((business.number, place.batch_no), {})
            if place.cut_end:
                tracing.report_stage(
                    tracing.CutStage(
                        name="committed",
                        business=business.name,
                        cut=place.cut,
                        captured_at_us=place.captured_at_us,
                        began_us=place.captured_at_us,
                        ended_us=self._synced_us,
                        facts={"batches": place.batch_no - place.cut + 1, "next_offset": place.next_offset},
                        steps={**steps, "decided": place.committed_at_us},
                    )
                )


logger = logging.getLogger(__name__)

OnCommit = Callable[[str, int], None]


class Publisher:
    """Makes written groups visible to readers, full data and listeners. The commit thread calls it for each group."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        buffer: BodyBuffer,
        *,
        notice: Callable[[Business], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._catalogue = catalogue
        self._buffer = buffer
        self._notice = notice
        self._monotonic = monotonic
        self._listeners: list[OnCommit] = []
        self._steps = CutStepLog()
        self._placed = 0  # batches since the tails of all queues were cut

    def add_listener(self, listener: OnCommit) -> None:
        """Call a listener when a business has a new end or undecided half messages. It must not block."""
        self._listeners.append(listener)

    def __call__(self, group: CommandGroup) -> None:
        for business, pending in group.appended:
            if pending.content is not None:
                self._buffer.save((business.number, pending.index), pending.entry.body)
        self._clock_reviews(group)
        for business in group.changed:
            business.committed = business.applying
            self._catalogue.mark_stored(business)
        self._steps.record_synced(group)
        for business, applied in group.applied.items():
            if applied.filled_to:
                self._show_full_data(business, applied)
            self._publish_batches(business, applied.placed)
        self._cut_tails()
        for business in group.changed:
            undecided = early_delivery.early_batches(business)
            if undecided != business.undecided:
                business.undecided = undecided
                self._notify(business)

    def _publish_batches(self, business: Business, placed: list[QueuedBatch]) -> None:
        """Make batches readable and notify the listeners."""
        if placed:
            business.tail.extend(placed)
            self._placed += len(placed)
            business.committed_seen_at = self._monotonic()
            business.visible_offset = business.committed.next_offset
        business.visible_through = business.log.applied
        if placed:
            self._notice(business)
            self._notify(business)
            self._steps.log_readable(business, placed)

    def _cut_tails(self) -> None:
        """Limit the memory of the tails of all queues; between two calls they may exceed it by a quarter."""
        if self._placed > queue_index.TAILS_PLACES // 4:
            self._placed = 0
            queue_index.shorten_tails([found.tail for found in self._catalogue.list_stored()], queue_index.TAILS_PLACES)

    def _show_full_data(self, business: Business, applied: EntryEffects) -> None:
        """Make the rows of a mirror's full data available to the materialiser.

        If the mirror has begun a new queue, consumers of the earlier one get an error when they read.
        """
        if applied.has_restarted:
            business.tail = QueueTail()
            business.visible_offset = business.committed.next_offset
            self._notify(business)
        business.filled_to = applied.filled_to
        self._notice(business)

    def _clock_reviews(self, group: CommandGroup) -> None:
        """Start and stop the review clocks of new and decided half messages."""
        now = self._monotonic()
        for business, applied in group.applied.items():
            with business.lock:
                business.reviews.settle(applied.settled)
                for batch_no in applied.expected:
                    # a replica that catches up has a half message and its decision in one group
                    if business.applying.find_undecided(batch_no) is not None:
                        business.reviews.expect(batch_no, now)

    def _notify(self, business: Business) -> None:
        """Call the listeners of commits; an error of a listener does not affect the commit."""
        for listener in self._listeners:
            try:
                listener(business.name, business.visible_offset)
            except Exception:
                logger.exception("a listener of commits failed; the commit is not affected")
