"""History of single keys at any offset: the pinned full data, and the increments around it.

With it no row has to be waited for to come to rest: what a target must show at the offset that it has applied, and what
the source must show at the Sequence that it has shipped, follow from the queue alone (VENUS 3.3). `History` is pure.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from venus.adapters.dialects.verify_contract import Key, Subject
from venus.adapters.verify.rows import Row, columns_of, keys_of
from venus.codec.batch import decode
from venus.codec.changes import TableChanges
from venus.codec.packed import PackedBytes
from venus.errors import Unavailable
from venus.model import ChangeKind, TableSchema
from venus.rpc.admin import AdminClient
from venus.rpc.subscriber import Subscriber

CREDIT_BYTES = 8 << 20
#: The broker pushes increments; a silence this long means that it has stopped.
SILENCE_S = 60.0
_NOTHING: tuple[Row | None, int] = (None, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRow:
    """State of a key; `row` None: there is no row."""

    row: Row | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """A change of one key, or (`before` set) the removal of all rows whose Sequence is below that."""

    offset: int
    sequence: int
    row: Row | None
    before: int = 0


@dataclass(slots=True)
class KeyHistory:
    """History of some keys of one table. `pinned`: cut of the full data; `end`: increments below it were read."""

    pinned: int
    sequence: int  # of the last change in the full data
    start: int = 0  # increments from here on were read
    end: int = 0
    #: Every change below this Sequence was read.
    end_sequence: int = 0
    #: Rows of the full data, each with the Sequence of its last change.
    base: dict[Key, tuple[Row, int]] = field(default_factory=dict)
    steps: dict[Key, list[KeyChange]] = field(default_factory=dict)
    removals: list[KeyChange] = field(default_factory=list)

    def at_offset(self, key: Key, offset: int) -> KnownRow | None:
        """Return the state after every change below `offset`; None if that is not known."""
        if not self.start <= offset <= self.end:
            return None
        if offset < self.pinned:
            # the full data is ahead: it has no older state of keys that have changed in between
            touched = [s for s in self._of(key) if offset <= s.offset < self.pinned]
            return None if touched else KnownRow(row=self.base.get(key, _NOTHING)[0])
        return self._after(key, [s for s in self._of(key) if self.pinned <= s.offset < offset])

    def at_sequence(self, key: Key, sequence: int) -> KnownRow | None:
        """Return the state after every change below `sequence`; None if that is not known."""
        if sequence <= self.sequence or sequence > max(self.end_sequence, self.sequence + 1):
            return None
        return self._after(key, [s for s in self._of(key) if s.offset >= self.pinned and s.sequence < sequence])

    def _of(self, key: Key) -> list[KeyChange]:
        return sorted([*self.steps.get(key, ()), *self.removals], key=lambda step: step.offset)

    def _after(self, key: Key, steps: Iterable[KeyChange]) -> KnownRow:
        row, changed = self.base.get(key, _NOTHING)
        for step in steps:
            if not step.before:
                row, changed = step.row, step.sequence
            elif changed < step.before:
                row = None
        return KnownRow(row=row)


def read_increments(
    history: KeyHistory, *, address: str, business: str, subject: Subject, versions: Mapping[int, TableSchema],
    keys: Collection[Key], start: int, end: int, end_sequence: int,
) -> None:  # fmt: skip
    """Add the changes of these keys in the increments from `start` up to `end`."""
    wanted, known = set(keys), dict(versions)
    subscriber = Subscriber(address, business, f"{business}/verify", credit_bytes=CREDIT_BYTES, transient=True)
    try:
        subscriber.open(start, 0, [subject.schema.table_id])
        heard = time.monotonic()
        while subscriber.position < end:
            before = subscriber.position
            for increment in subscriber.increments(1.0):
                batch = decode(increment.body)
                known |= {s.version: s for s in batch.schemas if s.table_id == subject.schema.table_id}
                offset, sequence = increment.base_offset, int(batch.first_sequence)
                for section in batch.sections:
                    if section.table_id == subject.schema.table_id and offset < end:
                        _add(history, section, offset, sequence, subject, known, wanted)
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
    """Return a matching offset and Sequence: everything committed by now is below both.

    Read from the newest increment itself; the broker's status may name the Sequence of a batch that no reader is
    shown yet.
    """
    with AdminClient(address) as admin:
        found = admin.status(business).businesses
    end = next((b.next_offset for b in found if b.business == business), 0)
    if end <= history.pinned:
        return history.pinned, history.sequence + 1
    with Subscriber(
        address, business, f"{business}/verify", credit_bytes=CREDIT_BYTES, transient=True
    ) as subscriber:  # fmt: skip
        subscriber.open(end - 1, 0)
        increments = subscriber.increments(SILENCE_S)
    if not increments:
        raise Unavailable("the broker does not hand out the end of its queue")
    newest = increments[-1]
    batch = decode(newest.body)
    return newest.base_offset + newest.count, int(batch.first_sequence) + batch.count


def _add(
    history: KeyHistory, section: TableChanges, offset: int, sequence: int, subject: Subject,
    versions: Mapping[int, TableSchema], wanted: set[Key],
) -> None:  # fmt: skip
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
    rows = _rows(section, touched, subject, versions)
    for n in touched:
        step = KeyChange(offset=offset + n, sequence=sequence + n, row=rows.get(n))
        history.steps.setdefault(keys[n], []).append(step)


def _rows(
    section: TableChanges, touched: Seq[int], subject: Subject, versions: Mapping[int, TableSchema]
) -> dict[int, Row]:
    """Return the rows of the touched changes, without deletions."""
    live = [n for n in touched if not section.is_deleted[n]]
    if not live:
        return {}
    columns = columns_of(_pick_rows(section, live), versions, subject.schema)
    return dict(zip(live, zip(*columns, strict=True), strict=True))


def _pick_rows(section: TableChanges, numbers: Seq[int]) -> TableChanges:
    ids, rows = section.record_ids.split(), section.rows.split()
    return TableChanges(
        table_id=section.table_id, schema_version=section.schema_version,
        record_ids=PackedBytes.of([ids[n] for n in numbers]), rows=PackedBytes.of([rows[n] for n in numbers]),
        is_deleted=section.is_deleted[list(numbers)],
    )  # fmt: skip
