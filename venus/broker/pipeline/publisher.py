"""Publication of a group once it is on disk: to readers, to the full data, and to listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from venus import cutlog
from venus.broker.machine import queue_index
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import Catalogue
from venus.broker.machine.machine import Applied
from venus.broker.machine.queue_index import Placed, Tail
from venus.broker.pipeline.group import Group
from venus.broker.queue import early_delivery
from venus.broker.queue.buffer import Buffer

#: Limit of half messages whose times are kept; the oldest are dropped first.
HALVES_MAX = 4096


class CutSteps:
    """Times of the steps of cuts, for the log of cuts (venus/cutlog.py); kept only while that log is on.

    Used by the commit thread alone, after the fsync of a group.
    """

    def __init__(self) -> None:
        self._synced_us = 0  # when the newest group was on disk
        self._on_disk: dict[tuple[int, int], dict[str, int]] = {}

    def synced(self, group: Group) -> None:
        """Record when this group was on disk, and which half messages it persisted."""
        if not cutlog.wanted():
            return
        self._synced_us = cutlog.now_us()
        for business, applied in group.applied.items():
            for batch_no in applied.expected:
                half = business.committed.undecided(batch_no)
                if half is not None:
                    steps = {"received": half.received_at_us, "on_disk": self._synced_us}
                    self._on_disk[business.number, batch_no] = steps
        while len(self._on_disk) > HALVES_MAX:
            del self._on_disk[next(iter(self._on_disk))]

    def shown(self, business: Business, placed: Iterable[Placed]) -> None:
        """Log each cut that ends in these batches as readable."""
        if not cutlog.wanted():
            return
        for place in placed:
            steps = self._on_disk.pop((business.number, place.batch_no), {})
            if place.cut_end:
                cutlog.ended(
                    cutlog.Stage(
                        name="committed", business=business.name, cut=place.cut, captured_at_us=place.captured_at_us,
                        began_us=place.captured_at_us, ended_us=self._synced_us,
                        facts={"batches": place.batch_no - place.cut + 1, "next_offset": place.next_offset},
                        steps={**steps, "decided": place.committed_at_us},
                    )
                )  # fmt: skip


logger = logging.getLogger(__name__)

OnCommit = Callable[[str, int], None]


class Publisher:
    """Publishes groups. The commit thread calls it after the fsync of a group."""

    def __init__(
        self,
        catalogue: Catalogue,
        buffer: Buffer,
        *,
        notice: Callable[[Business], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._catalogue = catalogue
        self._buffer = buffer
        self._notice = notice
        self._monotonic = monotonic
        self._listeners: list[OnCommit] = []
        self._steps = CutSteps()
        self._placed = 0  # batches since the tails of all queues were cut

    def on_commit(self, listener: OnCommit) -> None:
        """Call a listener when a business has a new end or undecided half messages. It must not block."""
        self._listeners.append(listener)

    def __call__(self, group: Group) -> None:
        for business, pending in group.appended:
            if pending.content is not None:
                self._buffer.save((business.number, pending.index), pending.entry.body)
        self._clock_reviews(group)
        for business in group.changed:
            business.committed = business.applying
            self._catalogue.keep(business)
        self._steps.synced(group)
        for business, applied in group.applied.items():
            if applied.filled_to:
                self._show_full_data(business, applied)
            self._show(business, applied.placed)
        self._cut_tails()
        for business in group.changed:
            undecided = early_delivery.published(business)
            if undecided != business.undecided:
                business.undecided = undecided
                self._tell(business)

    def _show(self, business: Business, placed: list[Placed]) -> None:
        """Make batches readable and notify the listeners."""
        if placed:
            business.tail.extend(placed)
            self._placed += len(placed)
            business.committed_seen_at = self._monotonic()
            business.visible_offset = business.committed.next_offset
        business.visible_through = business.log.applied
        if placed:
            self._notice(business)
            self._tell(business)
            self._steps.shown(business, placed)

    def _cut_tails(self) -> None:
        """Limit the memory of the tails of all queues; between two calls they may exceed it by a quarter."""
        if self._placed > queue_index.TAILS_PLACES // 4:
            self._placed = 0
            queue_index.cut([found.tail for found in self._catalogue.stored()], queue_index.TAILS_PLACES)

    def _show_full_data(self, business: Business, applied: Applied) -> None:
        """Make the rows of a mirror's full data available to the materialiser.

        The reader raises for consumers of a queue that has begun again.
        """
        if applied.begun_again:
            business.tail = Tail()
            business.visible_offset = business.committed.next_offset
            self._tell(business)
        business.filled_to = applied.filled_to
        self._notice(business)

    def _clock_reviews(self, group: Group) -> None:
        now = self._monotonic()
        for business, applied in group.applied.items():
            with business.lock:
                business.reviews.settle(applied.settled)
                for batch_no in applied.expected:
                    # a replica that catches up has a half message and its decision in one group
                    if business.applying.undecided(batch_no) is not None:
                        business.reviews.expect(batch_no, now)

    def _tell(self, business: Business) -> None:
        for listener in self._listeners:
            try:
                listener(business.name, business.visible_offset)
            except Exception:
                logger.exception("a listener of commits failed; the commit is not affected")
