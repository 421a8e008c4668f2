"""The scrub reads everything that is stored, slowly, to find damage that start-up cannot find.

It checks that bodies match their digests, the queue has no gaps, the full data has every change of the queue, each row
lies under its own key with a known version, and each segment matches its checksum (checksums.py). It runs in the
materialising thread, between its writes of rows, in small steps while there is no more urgent work. A finding is stored
and raises Corruption: the broker stops and does not start again on that store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from venus.broker.machine.business import Business
from venus.broker.machine.records import read_body
from venus.broker.snapshot import checksums, consistency
from venus.broker.snapshot.checksums import Segment
from venus.broker.snapshot.consistency import walk_batches
from venus.broker.store import keys
from venus.broker.store.files import damage_error
from venus.broker.store.rocks import Store
from venus.codec.packed import pack_items
from venus.codec.stored_rows import Sequences, StoredRows
from venus.errors import Corruption, ProtocolError

RUN_ROWS_MAX, RUN_BYTES_MAX = 5000, 2 << 20
#: A new segment has this many runs; one that has grown to twice as many is split into its runs.
_RUNS = 4


@dataclass(slots=True)
class _WalkResult:
    """Result of checking one segment: its stored checksum, and what its rows are now."""

    known: Segment | None
    found: Segment
    newer: int = 0
    ended_at: bytes | None = None  # where a new segment ends before its table does
    pieces: list[tuple[bytes, Segment]] = field(default_factory=list)
    undescribed: set[int] = field(default_factory=set)  # versions of rows without a description


def find_tables(store: Store, business: Business) -> list[int]:
    """Return the tables with rows or checksums. Raises Corruption for a table that the state does not know."""
    found: list[int] = []
    at, end = keys.row_prefix(business.number, 0), keys.queue_key(business.number + 1, 0)[:4]
    while (first := next(store.scan(keys.ROW, at, end, limit=1), None)) is not None:
        table_id = int.from_bytes(first[0][4:8], "big")
        if table_id not in business.tables:
            raise damage_error(store.path, f"{business.name} has rows of table {table_id}, which state does not know")
        found.append(table_id)
        at = keys.after_prefix(keys.row_prefix(business.number, table_id))
    left = {t for t in list(business.tables) if checksums.load_segment(store, business, t, b"") is not None}
    return sorted({*found, *left})


def check_table(store: Store, business: Business, table_id: int, *, keep: bool) -> Iterator[int]:
    """Check a table, a run of rows at a time; yield the rows of each run. Raises Corruption.

    Versions without a description are recorded in `Business.undescribed`.
    """
    start: bytes | None = b""
    undescribed: set[int] = set()
    while start is not None:
        before = _removals(business, table_id)
        known = checksums.load_segment(store, business, table_id, start)
        stop = known.stop if known is not None else checksums.next_start(store, business, table_id, start)
        walk = _WalkResult(known, Segment(known.as_of if known is not None else business.materialised.sequence))
        yield from _walk_segment(store, business, table_id, (start, stop), walk)
        if _removals(business, table_id) != before:
            continue  # rows were removed meanwhile, and the checksums changed with them
        if walk.known is not None:
            wrong = checksums.find_fault(walk.known, walk.found, walk.newer)
            if wrong:
                raise damage_error(store.path, f"{business.name}, table {table_id}: {wrong} in the full data")
        if keep:
            _store_checksums(store, business, table_id, (start, stop if walk.ended_at is None else walk.ended_at), walk)
        undescribed |= walk.undescribed
        start = walk.ended_at if walk.ended_at is not None else stop
    business.undescribed.pop(table_id, None)
    if undescribed:
        business.undescribed[table_id] = tuple(sorted(undescribed))


def _walk_segment(
    store: Store, business: Business, table_id: int, bounds: tuple[bytes, bytes | None], walk: _WalkResult
) -> Iterator[int]:
    """Check the rows of a segment, a run at a time; yield the number of rows of each run."""
    prefix = keys.row_prefix(business.number, table_id)
    at, end = prefix + bounds[0], keys.after_prefix(prefix) if bounds[1] is None else prefix + bounds[1]
    as_of = business.materialised.sequence
    done = False
    while not done:
        found, values, done = store.read_range(keys.ROW, at, end, rows_max=RUN_ROWS_MAX, bytes_max=RUN_BYTES_MAX)
        if not found:
            break
        sequences = _check_rows(store, business, table_id, found, values, walk.undescribed)
        walk.found = walk.found.plus(sequences)
        walk.newer += int((sequences > walk.found.as_of).sum())
        walk.pieces.append((at[len(prefix) :], Segment(as_of).plus(sequences)))
        at = found[-1] + b"\0"
        yield len(found)
        if walk.known is None and len(walk.pieces) == _RUNS and not done:
            walk.ended_at = at[len(prefix) :]
            return


def _check_rows(
    store: Store,
    business: Business,
    table_id: int,
    found: Sequence[bytes],
    values: Sequence[bytes],
    undescribed: set[int],
) -> Sequences:
    """Check that rows lie under their own keys, are not too new, and have known versions; return their Sequences."""
    where = f"{business.name}, table {table_id}"
    try:
        stored = StoredRows(pack_items(values))
    except ProtocolError as error:
        raise damage_error(store.path, f"{where}: {error}") from None
    own, ids = pack_items([key[8:] for key in found]), stored.record_ids
    if own.data != ids.data or not np.array_equal(own.sizes, ids.sizes):
        raise damage_error(store.path, f"{where}: a row does not lie under its own key")
    sequences = stored.sequences
    newest = int(sequences.max())
    reached = max(business.materialised.sequence, business.rows_may_reach)
    if newest > reached:
        raise damage_error(store.path, f"{where}: a row is at Sequence {newest}, the full data is at {reached}")
    versions = stored.heads["version"]
    # the commit thread adds to `schemas`
    unknown = {int(v) for v in np.unique(versions)} - {v for t, v in business.schemas.copy() if t == table_id}
    if unknown:
        late = unknown & {int(v) for v in np.unique(versions[sequences > business.described_from])}
        if late:
            raise damage_error(store.path, f"{where}: a row is of version {min(late)}, whose columns are not known")
        undescribed |= unknown
    return sequences


def _store_checksums(
    store: Store, business: Business, table_id: int, bounds: tuple[bytes, bytes | None], walk: _WalkResult
) -> None:
    """Store the checksum of a checked segment; split one that has become too large into a segment for each run."""
    batch = store.batch()
    parts = [piece for _, piece in walk.pieces]
    if walk.known is not None and len(parts) >= 2 * _RUNS:
        ends = [*(first for first, _ in walk.pieces[1:]), bounds[1]]
        for (first, piece), end in zip(walk.pieces, ends, strict=True):
            checksums.put_segment(batch, business, table_id, first, replace(piece, stop=end))
    else:
        as_of = parts[0].as_of if parts else business.materialised.sequence
        digest = sum(part.digest for part in parts) % (1 << 64)
        total = Segment(as_of, sum(part.count for part in parts), digest, stop=bounds[1])
        checksums.put_segment(batch, business, table_id, bounds[0], total)
    store.write(batch, durable=False)


def _removals(business: Business, table_id: int) -> tuple[int, int]:
    """Return numbers that change whenever rows of the table are removed permanently."""
    with business.lock:
        return business.counters["scavenged_rows"], business.materialised.floors.get(table_id, 0)


#: A pass begins this long after the previous one.
PASS_EVERY_S = 24 * 3600.0
#: While batches keep coming, one step in this many rounds of the materialiser; else one in each.
BUSY_EVERY = 50
#: A step ends after this many bytes of bodies or looked-up rows: 3 ms, for which all other threads may wait.
_STEP_BYTES, _STEP_ROWS = 1 << 20, 250
_ROWS_OF_BATCH = 1000


class Scrub:
    """Periodic check of all stored data. Used by the materialising thread alone."""

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
        """End the running pass if it is over this business."""
        if self._business is business:
            self._pass = self._business = None

    def step(self, *, busy: bool) -> bool:
        """Check data if a step is due; return whether a pass continues. Stores a finding, then raises Corruption."""
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
        """Take the next step of the pass, or begin a pass that is due."""
        if self._pass is None:
            self._business = self._find_due()
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

    def _find_due(self) -> Business | None:
        """Return the business whose check is due for the longest time, None if none is due."""
        now, every_us = self._clock_us(), int(PASS_EVERY_S * 1e6)
        # a pass that ended far in the future counts as due too: the clock was ahead then, and has been set back since
        due = [
            b
            for b in self._businesses()
            if abs(now - b.scrubbed_at_us) >= every_us and b.materialised.offset and b.is_filled
        ]
        return min(due, key=lambda business: business.scrubbed_at_us, default=None)


def load_results(store: Store, business: Business) -> None:
    """Load when the last pass over a business ended, and which versions without a schema it found."""
    business.scrubbed_at_us = int(store.get(keys.STATE, keys.scrubbed_key(business.number)) or 0)
    found = json.loads(store.get(keys.STATE, keys.undescribed_key(business.number)) or b"[]")
    business.undescribed = {table_id: tuple(versions) for table_id, versions in found}


def check_business(store: Store, business: Business, *, keep: bool) -> Iterator[int]:
    """Check everything of a business, a piece at a time; yield the rows of each piece. Raises Corruption.

    With `keep` the computed checksums are stored; without `keep` nothing is written.
    """
    yield from check_queue(store, business, rows_of_batch=_ROWS_OF_BATCH)
    found = find_tables(store, business)
    for gone in business.undescribed.keys() - set(found):
        del business.undescribed[gone]
    for table_id in found:
        yield from check_table(store, business, table_id, keep=keep)


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
