"""The scrub reads everything that is stored, slowly, to find damage that start-up cannot find.

It checks that bodies match their digests, the queue has no gaps, the full data has every change of the queue, each row
lies under its own key, and each segment matches its checksum (`sums`). It runs in the materialising thread, which alone
writes rows, in small steps while there is no more urgent work. A finding is stored and raises Corruption: the broker
stops and does not start again on that store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from venus.broker.machine.business import Business
from venus.broker.machine.records import read_body
from venus.broker.snapshot import consistency, rowscan
from venus.broker.snapshot.consistency import walk_batches
from venus.broker.store import keys
from venus.broker.store.files import damage_error
from venus.broker.store.rocks import Store
from venus.errors import Corruption

#: A pass begins so long after the previous one.
PASS_EVERY_S = 24 * 3600.0
#: While batches keep coming, one step in so many rounds of the materialiser; else one in each.
BUSY_EVERY = 50
#: A step ends after so many bytes of bodies or looked-up rows.
_STEP_BYTES, _STEP_ROWS = 1 << 20, 2000
_ROWS_OF_BATCH = 1000


class Scrub:
    """The periodic scrub. Used by the materialising thread alone."""

    def __init__(self, store: Store, *, businesses: Callable[[], list[Business]], clock_us: Callable[[], int]) -> None:
        self._store = store
        self._businesses = businesses
        self._clock_us = clock_us
        self._pass: Iterator[int] | None = None
        self._business: Business | None = None
        self._skipped = 0
        #: Set while the lane of details is degraded; the pass continues later.
        self.is_degraded = False

    @property
    def is_at_work(self) -> bool:
        """Whether a pass has begun and may continue."""
        return self._pass is not None and not self.is_degraded

    def forget(self, business: Business) -> None:
        """End the pass over a business."""
        if self._business is business:
            self._pass = self._business = None

    def step(self, *, busy: bool) -> bool:
        """Do one bounded piece of work if it is due. Raises Corruption for a finding, after storing it."""
        if self.is_degraded:
            return False
        self._skipped += 1
        if busy and self._skipped < BUSY_EVERY:
            return False
        self._skipped = 0
        try:
            self._continue_pass()
        except Corruption as found:
            batch = self._store.batch()
            batch.put(keys.STATE, keys.FINDING, str(found).encode())
            self._store.write(batch, durable=True)
            raise
        return self._pass is not None

    def _continue_pass(self) -> None:
        if self._pass is None:
            self._business = self._due()
            if self._business is None:
                return
            self._pass = check_business(self._store, self._business, keep=True)
        assert self._business is not None
        if next(self._pass, None) is not None:
            return
        self._pass = None
        self._business.scrubbed_at_us = self._clock_us()
        batch = self._store.batch()
        batch.put(keys.STATE, keys.scrubbed_key(self._business.number), b"%d" % self._business.scrubbed_at_us)
        found = json.dumps(list(self._business.undescribed.items())).encode()
        batch.put(keys.STATE, keys.undescribed_key(self._business.number), found)
        self._store.write(batch, durable=False)

    def _due(self) -> Business | None:
        now, every_us = self._clock_us(), int(PASS_EVERY_S * 1e6)
        # also if it is far in the future: the clock was ahead then and has been set since
        due = [
            b
            for b in self._businesses()
            if abs(now - b.scrubbed_at_us) >= every_us and b.materialised.offset and b.is_filled
        ]
        return min(due, key=lambda business: business.scrubbed_at_us, default=None)


def load_results(store: Store, business: Business) -> None:
    """Load the end of the last pass, and its findings that are no damage."""
    business.scrubbed_at_us = int(store.get(keys.STATE, keys.scrubbed_key(business.number)) or 0)
    found = json.loads(store.get(keys.STATE, keys.undescribed_key(business.number)) or b"[]")
    business.undescribed = {table_id: tuple(versions) for table_id, versions in found}


def check_business(store: Store, business: Business, *, keep: bool) -> Iterator[int]:
    """Check everything of a business, a piece at a time; yield the rows of each piece. Raises Corruption.

    With `keep` it stores the checksums that it finds; without it nothing is written.
    """
    yield from check_queue(store, business, rows_of_batch=_ROWS_OF_BATCH)
    found = rowscan.find_tables(store, business)
    for gone in business.undescribed.keys() - set(found):
        del business.undescribed[gone]
    for table_id in found:
        yield from rowscan.check_table(store, business, table_id, keep=keep)


def check_queue(store: Store, business: Business, *, rows_of_batch: int) -> Iterator[int]:
    """Check log and queue, and the full data against `rows_of_batch` rows of each batch, 0 = all. Raises Corruption."""
    at, nbytes, rows = business.log_start, 0, 0
    for place in walk_batches(store, business, at, business.visible_offset):
        if place.base_offset != at and at >= business.log_start:
            raise damage_error(store.path, f"{business.name}: the queue has a gap at offset {at}")
        at = place.next_offset
        try:
            body = read_body(store, business, place.index)
        except Corruption:
            if place.base_offset < business.log_start:
                continue  # the batch was trimmed meanwhile
            raise
        if place.next_offset <= business.materialised.offset:
            rows += consistency.check_batch(store, business, place, body, rows_max=rows_of_batch)
        nbytes += place.nbytes
        if nbytes >= _STEP_BYTES or rows >= _STEP_ROWS:
            yield rows
            nbytes = rows = 0
    yield rows
