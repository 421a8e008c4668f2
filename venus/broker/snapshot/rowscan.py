"""Check of a table's rows: each lies under its own key with a known version, and each segment has its checksum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from venus.broker.machine.business import Business
from venus.broker.snapshot import checksums
from venus.broker.snapshot.checksums import Segment
from venus.broker.store import keys
from venus.broker.store.files import damage_error
from venus.broker.store.rocks import Store
from venus.codec.packed import pack_items
from venus.codec.stored_rows import Sequences, StoredRows
from venus.errors import ProtocolError

RUN_ROWS_MAX, RUN_BYTES_MAX = 5000, 2 << 20
#: A new segment has so many runs; one that has grown to twice as many is split into its runs.
_RUNS = 4


@dataclass(slots=True)
class _Walk:
    """Result of the walk over one segment."""

    known: Segment | None
    found: Segment
    newer: int = 0
    ended_at: bytes | None = None  # where a new segment ends before its table does
    pieces: list[tuple[bytes, Segment]] = field(default_factory=list)
    undescribed: set[int] = field(default_factory=set)  # versions


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

    It records versions without a description in `Business.undescribed`.
    """
    start: bytes | None = b""
    undescribed: set[int] = set()
    while start is not None:
        before = _removals(business, table_id)
        known = checksums.load_segment(store, business, table_id, start)
        stop = known.stop if known is not None else checksums.next_start(store, business, table_id, start)
        walk = _Walk(known, Segment(known.as_of if known is not None else business.materialised.sequence))
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
    store: Store, business: Business, table_id: int, bounds: tuple[bytes, bytes | None], walk: _Walk
) -> Iterator[int]:
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
    store: Store, business: Business, table_id: int, bounds: tuple[bytes, bytes | None], walk: _Walk
) -> None:
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
    """Return numbers that change whenever rows of the table are removed for good."""
    with business.lock:
        return business.counters["scavenged_rows"], business.materialised.floors.get(table_id, 0)
