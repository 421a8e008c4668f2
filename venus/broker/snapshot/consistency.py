"""Consistency check of the column families at start-up: none may be older than the others.

RocksDB may open damaged files without an error although a part of the data is missing (store/files.py detects the known
cases). But write batches span several families, so log, queue, state and full data can be compared with each other.
Only the scan of the queue's records grows with the store: about 1 us for each batch that is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from venus.broker.log.entry import EntryKind
from venus.broker.machine import envelope, queue_index
from venus.broker.machine.business import Business
from venus.broker.machine.envelope import parse_body
from venus.broker.machine.folding import ChangeSection
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.records import read_body
from venus.broker.store import keys
from venus.broker.store.files import damage_error
from venus.broker.store.rocks import Store
from venus.codec.stored_rows import HEAD, HEAD_BYTES
from venus.model import ChangeKind, Verdict


def check_batch(store: Store, business: Business, place: QueuedBatch, body: bytes, *, rows_max: int = 0) -> int:
    """Check that the full data has the rows of a batch, or newer ones; return how many rows were checked.

    The batch must lie below the full data's offset. In a large batch only `rows_max` evenly spread rows are checked; 0
    means all rows. Raises Corruption.
    """
    if xxhash.xxh3_64_intdigest(body) != place.digest:
        raise damage_error(store.path, f"batch {place.batch_no} of {business.name} does not hash to its digest")
    looked = 0
    for section in envelope.build_sections(envelope.parse_body(body)):
        if section.kind is ChangeKind.CHANGES and section.count:
            looked += _check_section(store, business, place, section, rows_max)
    return looked


def _check_section(store: Store, business: Business, place: QueuedBatch, section: ChangeSection, rows_max: int) -> int:
    """Raise Corruption if a row of a section is missing or older in the full data; return how many were checked."""
    prefix = keys.row_prefix(business.number, section.table_id)
    record_ids = section.record_ids.split()
    step = max(1, section.count // rows_max) if rows_max else 1
    chosen = range(section.count - 1, -1, -step)
    wanted = [prefix + record_ids[i] for i in chosen]
    found = store.look_up(keys.ROW, wanted)
    gone_below = max(
        business.materialised.floors.get(section.table_id, 0) + 1, business.forgotten_below.get(section.table_id, 0)
    )
    stored = _sequences([found.get(key, b"") for key in wanted])
    sequences = section.first_sequence + np.array(chosen, dtype=np.int64)
    missing = np.flatnonzero((stored < sequences) & (sequences >= gone_below))
    if len(missing):
        at = int(missing[0])
        state = f"is at Sequence {stored[at]}" if stored[at] else "is missing"
        raise damage_error(
            store.path,
            f"{business.name}, table {section.table_id}: a row of batch {place.batch_no} {state} in the full data, "
            f"Sequence {sequences[at]} was written",
        )
    return len(wanted)


def _sequences(values: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the Sequence of each stored value, 0 for a missing one."""
    blank = bytes(HEAD_BYTES)
    heads = np.frombuffer(b"".join([value[:HEAD_BYTES] or blank for value in values]), dtype=HEAD)
    return heads["sequence"].astype(np.int64)


Offsets = npt.NDArray[np.int64]

#: Limit of batches that are compared at the start; the scrub compares all of them.
PLACES_MAX = 1_000_000
#: How many of the newest batches, and how many batches spread over the queue, are checked against log and full data.
NEWEST, SPREAD = 4, 12
_RUN_PLACES = 20_000
#: Layout of the compared fields in a record of the queue; see queue_index.py.
_RECORD = np.dtype(
    [("index", ">u8"), ("count", ">u4"), ("skipped", "V56"), ("digest", ">u8"), ("nbytes", ">u4"), ("before", ">u8")]
)


def check_all(store: Store, businesses: Iterable[Business]) -> None:
    """Check that the column families of a loaded and replayed store agree. Raises Corruption."""
    found = list(businesses)
    _check_finding(store)
    _check_for_unknown_businesses(store, {business.number for business in found} | _unfinished_copies(store))
    for business in found:
        check_one(store, business)


def check_one(store: Store, business: Business) -> None:
    """Check that the log, queue, tables and full data of one business agree. Raises Corruption."""
    try:
        _check_log(store, business)
        _check_halves(store, business)
        _check_queue(store, business)
        _check_tables(business)
        if not business.is_filled:
            return
        _check_full_data(store, business)
        for place in _sample(store, business):
            check_batch(store, business, place, read_body(store, business, place.index))
    except _Contradiction as found:
        raise damage_error(store.path, f"{business.name}: {found}") from None


class _Contradiction(Exception):
    """Two parts of a store contradict each other."""


def _require(fits: bool, what: str) -> None:
    """Raise _Contradiction unless `fits`."""
    if not fits:
        raise _Contradiction(what)


def _check_finding(store: Store) -> None:
    """Raise Corruption if the scrub has found damage in this store."""
    found = store.get(keys.STATE, keys.FINDING)
    if found is not None:
        raise damage_error(store.path, found.decode(errors="replace"))


def _unfinished_copies(store: Store) -> set[int]:
    """Return the numbers of copies that are being installed: they have data but no record yet."""
    return {int(json.loads(mark)["number"]) for _, mark in store.scan_prefix(keys.STATE, keys.INSTALLING)}


def _check_for_unknown_businesses(store: Store, known: set[int]) -> None:
    """Raise Corruption if a column family has data of a business that has no record."""
    for family in (keys.RLOG, keys.QUEUE, keys.ROW):
        at = b""
        while (found := next(store.scan(family, at, b"", limit=1), None)) is not None:
            number = int.from_bytes(found[0][:4], "big")
            if number not in known:
                raise damage_error(store.path, f"{family} has data of business {number}, which state does not know")
            at = keys.queue_key(number + 1, 0)


def _check_log(store: Store, business: Business) -> None:
    """Check that the log starts where the record says, and has every applied entry."""
    log, prefix = business.log, keys.log_key(business.number, 0)[:4]
    _require(log.end > log.applied, f"the log ends before entry {log.end}, entry {log.applied} was applied")
    oldest = next(store.scan(keys.RLOG, prefix, keys.after_prefix(prefix), limit=1), None)
    start = keys.log_index(oldest[0]) if oldest is not None else log.end
    _require(start == min(log.start, log.end), f"the log starts at entry {start}, not at {log.start}")


def _check_halves(store: Store, business: Business) -> None:
    """Check that log and state have the same undecided half messages."""
    state = business.committed
    wanted = state.last_batch + 1
    for found in state.halves:
        _require(found.batch_no == wanted, f"half message {wanted} is missing before {found.batch_no}")
        _require(found.index < business.log.end, f"half message {found.batch_no} is beyond the log's end")
        wanted += 1
    known = [(found.batch_no, found.index) for found in state.halves]
    logged = _undecided_halves(store, business)
    _require(known == logged, f"the log has {len(logged)} undecided half messages, the state has {len(known)}")


def _undecided_halves(store: Store, business: Business) -> list[tuple[int, int]]:
    """Return batch number and log index of each half message that the log has and does not decide.

    Undecided half messages come after the newest batch of the queue.
    """
    prefix = keys.queue_key(business.number, 0)[:4]
    newest = store.find_before(keys.QUEUE, keys.after_prefix(prefix))
    start = business.log.start
    if newest is not None and newest[0][:4] == prefix:
        start = max(start, queue_index.decode(0, newest[1]).index + 1)
    found: list[tuple[int, int]] = []
    for index, entry in business.log.read_entries(store, start, business.log.applied + 1):
        if entry.kind is EntryKind.PREPARE:
            found.append((parse_body(entry.body).batch_no, index))
        elif entry.kind is EntryKind.DECIDE:
            decided, record = entry.record["batch_no"], entry.record
            rolled_back = record["verdict"] == Verdict.ROLLBACK
            found = [f for f in found if (f[0] < decided if rolled_back else f[0] > decided)]
        elif entry.kind is EntryKind.FULL_BEGIN:
            found = []
    return found


def _check_queue(store: Store, business: Business) -> None:
    """Check the records of the queue for gaps, from its start to its end."""
    state = business.committed
    first = _first_to_compare(store, business)
    at = business.log_start if first is None else first
    after: int | None = None
    newest: QueuedBatch | None = None
    for bases, found, values in walk_runs(store, business, at):
        after = _check_run(bases, found, at, after)
        newest = queue_index.decode(int(bases[-1]), values[-1])
        at = newest.next_offset
    _require(at == state.next_offset, f"the queue ends at offset {at}, {state.next_offset} is the next one")
    if newest is not None:
        last = newest.batch_no
        _require(last == state.last_batch, f"the queue ends with batch {last}, not {state.last_batch}")
        _require(newest.after == business.nbytes, "the queue's bytes are not those of the state")


def _check_run(bases: Offsets, found: npt.NDArray[np.void], at: int, after: int | None) -> int:
    """Check a run of queue records for gaps, from offset `at` and byte `after` on. Return the run's end in bytes."""
    ends = bases + found["count"].astype(np.int64)
    _require(int(bases[0]) == at, f"the queue has a gap at offset {at}")
    _require(bool((bases[1:] == ends[:-1]).all()), f"the queue has a gap behind offset {at}")
    before = found["before"].astype(np.int64)
    sums = before + found["nbytes"].astype(np.int64)
    joined = after is None or int(before[0]) == after
    _require(joined and bool((before[1:] == sums[:-1]).all()), f"the queue's bytes do not add up behind offset {at}")
    return int(sums[-1])


def walk_runs(
    store: Store, business: Business, offset: int, stop: int | None = None
) -> Iterator[tuple[Offsets, npt.NDArray[np.void], list[bytes]]]:
    """Read the records of a queue from an offset on; yield runs: base offsets, fields to compare, whole records.

    While the broker runs, `stop` must be a visible offset, because batches are being committed after it.
    """
    at = keys.queue_key(business.number, offset)
    end = keys.queue_key(business.number + 1, 0) if stop is None else keys.queue_key(business.number, stop)
    done = False
    while not done:
        found, values, done = store.read_range(keys.QUEUE, at, end, rows_max=_RUN_PLACES, bytes_max=8 << 20)
        if not found:
            return
        bases = np.array([keys.queue_offset(key) for key in found], dtype=np.int64)
        size = _RECORD.itemsize
        records = np.frombuffer(b"".join([value[:size] for value in values]), dtype=_RECORD)
        yield bases, records, values
        at = found[-1] + b"\0"


def walk_batches(store: Store, business: Business, offset: int, stop: int) -> Iterator[QueuedBatch]:
    """Yield the batches of a queue between two offsets. No iterator of the store stays open between batches."""
    for bases, _, values in walk_runs(store, business, offset, stop):
        yield from map(queue_index.decode, bases.tolist(), values)


def _first_to_compare(store: Store, business: Business) -> int | None:
    """Return the offset from which a very long queue is compared; None = the queue is compared as a whole."""
    kept = business.committed.next_offset - business.log_start
    if kept <= PLACES_MAX:
        return None
    held = store.find_at_or_before(
        keys.QUEUE, keys.queue_key(business.number, business.committed.next_offset - PLACES_MAX)
    )
    return keys.queue_offset(held[0]) if held is not None else None


def _check_full_data(store: Store, business: Business) -> None:
    """Check that the position of the full data is the end of a batch in the queue."""
    reached, state = business.materialised, business.committed
    _require(
        business.log_start <= reached.offset <= state.next_offset,
        f"the full data is at offset {reached.offset}, the queue has {business.log_start} to {state.next_offset}",
    )
    _require(
        reached.sequence <= state.last_sequence, f"the full data is at Sequence {reached.sequence}, beyond the queue"
    )
    _require(reached.nbytes <= business.nbytes, "the full data has more bytes than the queue ever had")
    prefix = keys.queue_key(business.number, 0)[:4]
    held = store.find_before(keys.QUEUE, keys.queue_key(business.number, reached.offset))
    if held is None or held[0][:4] != prefix:
        _require(reached.offset == business.log_start, "the full data is ahead of the queue")
        return
    place = queue_index.decode(keys.queue_offset(held[0]), held[1])
    fits = (place.next_offset, place.after) == (reached.offset, reached.nbytes)
    _require(
        fits and place.last_sequence <= reached.sequence,
        f"the full data is at offset {reached.offset}, Sequence {reached.sequence}, where no batch ends",
    )


def _check_tables(business: Business) -> None:
    """Check that no table is ahead of the queue, and that each table with changes has a schema."""
    described = {table_id for table_id, _ in business.schemas}
    for table_id, figures in business.tables.items():
        _require(
            figures.last_sequence <= business.committed.last_sequence,
            f"table {table_id} is at Sequence {figures.last_sequence}, beyond the queue",
        )
        # rows that an older broker took without columns are no damage: the scrub reports them
        fits = table_id in described or figures.last_sequence <= business.described_from
        _require(fits or not figures.changes, f"table {table_id} has changes and no columns")


def _sample(store: Store, business: Business) -> Iterator[QueuedBatch]:
    """Yield batches to compare with the full data: its newest ones, and some spread over the queue."""
    start, end = business.log_start, business.materialised.offset
    wanted = [start + (end - start) * i // SPREAD for i in range(SPREAD)] if end > start else []
    seen: set[int] = set()
    at = end
    for _ in range(NEWEST):
        held = store.find_before(keys.QUEUE, keys.queue_key(business.number, at))
        if at > start and held is not None:
            at = keys.queue_offset(held[0])
            wanted.append(at)
    for offset in wanted:
        found = store.find_at_or_before(keys.QUEUE, keys.queue_key(business.number, offset))
        if found is not None and found[0][:4] == keys.queue_key(business.number, 0)[:4]:
            base = keys.queue_offset(found[0])
            if base not in seen:
                seen.add(base)
                yield queue_index.decode(base, found[1])
