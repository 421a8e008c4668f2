"""The broker's full data as a side of a comparison, pinned at a cut; and the history of single keys around it.

The full data is read by key range or by single keys. The record id of a non-negative integer is its field number, the
length of its digits and the digits, so a range of integers is a few ranges of record ids: one for each length
(codec/row_bytes.py).

The history makes it unnecessary to wait until rows stop changing. The queue alone determines the rows that a target
must have at its applied offset, and that the source must have at the Sequence that it has shipped (VENUS 3.3).
`KeyHistory` is pure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from venus.adapters.dialects.verify_contract import Key, Slice, Subject, key_forms
from venus.adapters.verify.rows import Row, columns_of, keys_of, record_ids
from venus.codec import schema as schemas_codec
from venus.codec.batch import TableChanges, decode
from venus.codec.masked_rows import Maskers, project_full_rows, project_section
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout, varint
from venus.codec.stored_rows import FullRows, Sequences
from venus.errors import Unavailable, VenusError
from venus.masking.projection import ProjectedSchema, project_schema, source_of
from venus.model import ChangeKind, TableSchema
from venus.predicates.ranges import compile_predicate
from venus.rpc.admin import AdminClient
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

#: How many keys are looked up concurrently over one connection: together they cost about one round trip.
LOOKUPS_AT_ONCE = 32
#: For this many keys or more, reading the table's full data costs less than key look-ups.
LOOKUPS_MAX = 2_000
_INT64_DIGITS = 19


class SubjectRows:
    """Converts the broker's rows to the form of the compared target; only rules for columns change a row.

    If a table has rules for columns, the predicate is applied here too, because the predicate refers to unmasked
    values.
    """

    def __init__(self, subject: Subject, maskers: Maskers) -> None:
        schema = subject.schema
        self._maskers = maskers
        self._rules = schema.rules if isinstance(schema, ProjectedSchema) else None
        has_predicate = self._rules is not None and subject.predicate
        self._predicate = compile_predicate(subject.predicate, source_of(schema)) if has_predicate else None

    def version(self, schema: TableSchema) -> TableSchema:
        """Return a version of the table in the target's form."""
        return schema if self._rules is None else project_schema(source_of(schema), self._rules)

    def full_rows(self, rows: FullRows, version: TableSchema | None) -> FullRows:
        """Return rows of the full data in the target's form."""
        if self._rules is None or version is None:
            return rows
        return project_full_rows(rows, self._predicate, self.version(version), self._maskers)

    def changes(self, section: TableChanges, version: TableSchema | None) -> TableChanges:
        """Return a section of a batch in the target's form."""
        if self._rules is None or version is None or section.kind is not ChangeKind.CHANGES:
            return section
        return project_section(section, self._predicate, self.version(version), self._maskers)


class PinnedFullData:
    """Reader of one snapshot of the full data; `maskers` are those of the compared target."""

    def __init__(self, address: str, snapshot: broker_pb2.Snapshot, maskers: Maskers) -> None:
        self._snapshots = SnapshotClient(address)
        self._maskers = maskers
        self.snapshot = snapshot
        schemas = [schemas_codec.from_wire(wire) for wire in snapshot.schemas]
        self._versions: dict[int, dict[int, TableSchema]] = {}
        for schema in schemas:
            self._versions.setdefault(schema.table_id, {})[schema.version] = schema

    def close(self) -> None:
        """Close the connection; the snapshot belongs to the code that opened it."""
        self._snapshots.close()

    def versions(self, subject: Subject) -> dict[int, TableSchema]:
        """Return every version of a table that its rows may have."""
        seen = SubjectRows(subject, self._maskers)
        known = self._versions.get(subject.schema.table_id, {})
        return {number: seen.version(schema) for number, schema in known.items()}

    def scan(self, subject: Subject, part: Slice, buckets: Collection[int] | None) -> Iterator[TableChanges]:
        """Yield the rows of a slice, in the broker's order."""
        table_id = subject.schema.table_id
        if not part.step:
            splits = [s for s in self.snapshot.splits if s.table_id == table_id]
        else:
            bounds = [b for low, high in part.ranges(buckets) for b in key_ranges(subject.schema, low, high)]
            splits = [broker_pb2.Split(table_id=table_id, low=low, high=high) for low, high in bounds]
        for split in splits:
            for section, _ in self._read_split(subject, split, own_range=bool(part.step)):
                yield section

    def _read_split(
        self, subject: Subject, split: broker_pb2.Split, *, own_range: bool
    ) -> Iterator[tuple[TableChanges, Sequences]]:
        """Yield the rows of a key range in the form of the target, each section with its Sequences."""
        seen, versions = SubjectRows(subject, self._maskers), self._versions.get(subject.schema.table_id, {})
        for chunk in self._snapshots.read_split(self.snapshot.snapshot_id, split, own_range=own_range):
            for section in chunk.sections:
                rows = seen.full_rows(section, versions.get(section.schema_version))
                yield rows.changes, rows.stored.sequences

    def find(self, subject: Subject, keys: Seq[Key]) -> dict[Key, tuple[Row, int]]:
        """Return the rows with these keys, each with the Sequence of its last change."""
        # the broker cannot look up masked keys, so the whole table is read
        has_masked_key = isinstance(subject.schema, ProjectedSchema) and subject.schema.masks_key
        ids = record_ids(keys, subject.schema) if len(keys) <= LOOKUPS_MAX and not has_masked_key else None
        table_id = subject.schema.table_id
        if ids is None:
            bounds = [(s.low, s.high) for s in self.snapshot.splits if s.table_id == table_id]
        else:
            bounds = [(record_id, record_id + b"\0") for record_id in ids]
        splits = [broker_pb2.Split(table_id=table_id, low=low, high=high) for low, high in bounds]
        with ThreadPoolExecutor(min(LOOKUPS_AT_ONCE, max(1, len(splits)))) as pool:
            parts = pool.map(lambda split: self._find_in_split(subject, split, set(keys)), splits)
            return {key: row for part in parts for key, row in part.items()}

    def _find_in_split(self, subject: Subject, split: broker_pb2.Split, wanted: set[Key]) -> dict[Key, tuple[Row, int]]:
        schema, versions = subject.schema, self.versions(subject)
        found: dict[Key, tuple[Row, int]] = {}
        for section, sequences in self._read_split(subject, split, own_range=True):
            columns = columns_of(section, versions, schema)
            rows = zip(*columns, strict=True)
            for key, row, sequence in zip(key_forms(columns, schema), rows, sequences.tolist(), strict=True):
                if key in wanted:
                    found[key] = (row, sequence)
        return found


def key_ranges(schema: TableSchema, low: int | None, high: int | None) -> list[tuple[bytes, bytes]]:
    """Return the ranges of record ids whose leading key, an integer, is in [low, high)."""
    tag = Layout.of(schema).tags[0]
    bottom = -(10**_INT64_DIGITS) + 1 if low is None else low
    top = 10**_INT64_DIGITS if high is None else high
    found = []
    for digits in range(1, _INT64_DIGITS + 1):
        smallest = 10 ** (digits - 1) if digits > 1 else 0
        largest = 10**digits - 1
        first, last = max(bottom, smallest), min(top - 1, largest)
        if first <= last:
            found.append(_record_id_range(tag, str(first), str(last)))
        first, last = max(bottom, -largest), min(top - 1, -max(smallest, 1))
        if first <= last:  # among negative numbers of one length, the smaller number has the greater text
            found.append(_record_id_range(tag, str(last), str(first)))
    return found


def _record_id_range(tag: bytes, first: str, last: str) -> tuple[bytes, bytes]:
    """Return the range of record ids from `first` to `last`, two numbers of the same length."""
    head = tag + varint(len(first))
    return head + first.encode(), head + last[:-1].encode() + bytes([ord(last[-1]) + 1])


@contextmanager
def open_snapshot(address: str, business: str, table_ids: Seq[int], holder: str) -> Iterator[broker_pb2.Snapshot]:
    """Pin the full data while the block runs."""
    stop = threading.Event()
    with SnapshotClient(address) as snapshots:
        snapshot = snapshots.open(business, table_ids=table_ids, splits=1, holder=holder)

        def renew_lease() -> None:
            while not stop.wait(max(1.0, snapshot.lease_s / 3)):
                try:
                    snapshots.renew(snapshot.snapshot_id)
                except VenusError:
                    return  # the next reader gets SnapshotExpired

        thread = threading.Thread(target=renew_lease, name="venus-lease", daemon=True)
        thread.start()
        try:
            yield snapshot
        finally:
            stop.set()
            thread.join()
            with suppress(VenusError):  # if this fails, the snapshot's lease ends by itself
                snapshots.close(snapshot.snapshot_id)


CREDIT_BYTES = 8 << 20
#: The broker pushes increments; a silence this long means that it has stopped.
SILENCE_S = 60.0
_NOTHING: tuple[Row | None, int] = (None, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRow:
    """What is known about a key at a position; `row` None: no row has this key."""

    row: Row | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """A change of one key, or, if `before` is set, the removal of all rows whose Sequence is below it."""

    offset: int
    sequence: int
    row: Row | None
    before: int = 0


@dataclass(slots=True)
class KeyHistory:
    """Changes of some keys of one table. `pinned`: offset of the full data; `end`: increments below this were read."""

    pinned: int
    sequence: int  # the Sequence of the last change in the full data
    start: int = 0  # increments from this offset were read
    end: int = 0
    #: Every change below this Sequence was read.
    end_sequence: int = 0
    #: Rows of the full data, each with the Sequence of its last change.
    base: dict[Key, tuple[Row, int]] = field(default_factory=dict)
    steps: dict[Key, list[KeyChange]] = field(default_factory=dict)
    removals: list[KeyChange] = field(default_factory=list)

    def at_offset(self, key: Key, offset: int) -> KnownRow | None:
        """Return the row of a key after every change below `offset`; None if that is not known."""
        if not self.start <= offset <= self.end:
            return None
        if offset < self.pinned:
            # the full data is ahead: it has no older state of keys that have changed in between
            touched = [s for s in self._list_changes(key) if offset <= s.offset < self.pinned]
            return None if touched else KnownRow(row=self.base.get(key, _NOTHING)[0])
        return self._state_after(key, [s for s in self._list_changes(key) if self.pinned <= s.offset < offset])

    def at_sequence(self, key: Key, sequence: int) -> KnownRow | None:
        """Return the row of a key after every change below `sequence`; None if that is not known."""
        if sequence <= self.sequence or sequence > max(self.end_sequence, self.sequence + 1):
            return None
        return self._state_after(
            key, [s for s in self._list_changes(key) if s.offset >= self.pinned and s.sequence < sequence]
        )

    def _list_changes(self, key: Key) -> list[KeyChange]:
        """Return the changes of a key and the removals of many rows, in the order of the queue."""
        return sorted([*self.steps.get(key, ()), *self.removals], key=lambda step: step.offset)

    def _state_after(self, key: Key, steps: Iterable[KeyChange]) -> KnownRow:
        """Return the row of a key after these changes to the row of the full data."""
        row, changed = self.base.get(key, _NOTHING)
        for step in steps:
            if not step.before:
                row, changed = step.row, step.sequence
            elif changed < step.before:
                row = None
        return KnownRow(row=row)


def read_increments(
    history: KeyHistory,
    *,
    address: str,
    business: str,
    subject: Subject,
    versions: Mapping[int, TableSchema],
    maskers: Maskers,
    keys: Collection[Key],
    start: int,
    end: int,
    end_sequence: int,
) -> None:
    """Add the changes of these keys in the increments from `start` up to `end`."""
    wanted, known, seen = set(keys), dict(versions), SubjectRows(subject, maskers)
    subscriber = Subscriber(address, business, f"{business}/verify", credit_bytes=CREDIT_BYTES, transient=True)
    try:
        subscriber.open(start, 0, [subject.schema.table_id])
        heard = time.monotonic()
        while subscriber.position < end:
            before = subscriber.position
            for increment in subscriber.increments(1.0):
                batch = decode(increment.body)
                known |= {s.version: seen.version(s) for s in batch.schemas if s.table_id == subject.schema.table_id}
                offset, sequence = increment.base_offset, int(batch.first_sequence)
                for section in batch.sections:
                    if section.table_id == subject.schema.table_id and offset < end:
                        there = seen.changes(section, known.get(section.schema_version))
                        _add_section(history, there, offset, sequence, subject, known, wanted)
                    offset, sequence = offset + section.count, sequence + section.count
            if subscriber.position > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                break  # later increments stay unknown, and the history records that
        history.end = max(history.end, min(subscriber.position, end))
        if subscriber.position >= end:
            history.end_sequence = max(history.end_sequence, end_sequence)
    finally:
        subscriber.close()


def read_queue_end(address: str, business: str, history: KeyHistory) -> tuple[int, int]:
    """Return the end of the queue, as offset and as Sequence: everything committed by now is below both.

    Both are read from the newest increment itself, because the broker's status may name the Sequence of a batch that
    readers do not get yet.
    """
    with AdminClient(address) as admin:
        found = admin.status(business).businesses
    end = next((b.next_offset for b in found if b.business == business), 0)
    if end <= history.pinned:
        return history.pinned, history.sequence + 1
    with Subscriber(address, business, f"{business}/verify", credit_bytes=CREDIT_BYTES, transient=True) as subscriber:
        subscriber.open(end - 1, 0)
        increments = subscriber.increments(SILENCE_S)
    if not increments:
        raise Unavailable("the broker does not report the end of its queue")
    newest = increments[-1]
    batch = decode(newest.body)
    return newest.base_offset + newest.count, int(batch.first_sequence) + batch.count


def _add_section(
    history: KeyHistory,
    section: TableChanges,
    offset: int,
    sequence: int,
    subject: Subject,
    versions: Mapping[int, TableSchema],
    wanted: set[Key],
) -> None:
    """Add the changes of the wanted keys in a section to the history."""
    if section.kind is ChangeKind.TRUNCATE:
        history.removals.append(KeyChange(offset=offset, sequence=sequence, row=None, before=sequence))
    elif section.kind is ChangeKind.SWEEP_END:
        before = int(section.sweep_before)
        history.removals.append(KeyChange(offset=offset, sequence=sequence, row=None, before=before))
    if section.kind is not ChangeKind.CHANGES:
        return
    keys = keys_of(section, versions, subject.schema)
    touched = [n for n, key in enumerate(keys) if key in wanted]
    if not touched:
        return
    rows = _rows_of_changes(section, touched, subject, versions)
    for n in touched:
        step = KeyChange(offset=offset + n, sequence=sequence + n, row=rows.get(n))
        history.steps.setdefault(keys[n], []).append(step)


def _rows_of_changes(
    section: TableChanges, touched: Seq[int], subject: Subject, versions: Mapping[int, TableSchema]
) -> dict[int, Row]:
    """Return the rows of these changes by their number in the section, without deletions."""
    live = [n for n in touched if not section.is_deleted[n]]
    if not live:
        return {}
    columns = columns_of(_pick_rows(section, live), versions, subject.schema)
    return dict(zip(live, zip(*columns, strict=True), strict=True))


def _pick_rows(section: TableChanges, numbers: Seq[int]) -> TableChanges:
    ids, rows = section.record_ids.split(), section.rows.split()
    return TableChanges(
        table_id=section.table_id,
        schema_version=section.schema_version,
        record_ids=PackedBytes.of([ids[n] for n in numbers]),
        rows=PackedBytes.of([rows[n] for n in numbers]),
        is_deleted=section.is_deleted[list(numbers)],
    )
