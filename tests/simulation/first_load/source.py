"""A source with writers and its capture: the product's choice of fill chunks on a simulated database."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np

from venus.adapters.dialects.contract import Cut, FillState, RegisteredTable
from venus.adapters.upper.batching import Batcher
from venus.adapters.upper.fills import ACTIVE, FillChunk, Fills
from venus.codec.batch import Batch, TableChanges, marker
from venus.codec.packed import PackedBytes
from venus.model import BatchNo, BatchRecord, ChangeKind, Column, Epoch, Kind, LogicalType, Sequence, TableSchema

#: A row: its value and, from the second version on, an added column.
Row = tuple[bytes, ...]
ADDED = b"default"
TEXT = LogicalType(kind=Kind.TEXT)


def schema(table_id: int) -> TableSchema:
    """Return version 1 of a table with a key and a value."""
    columns = tuple(Column(name=name, number=n, type=TEXT) for n, name in enumerate(("id", "value"), 1))
    return TableSchema(
        table_id=table_id, version=1, namespace="shop", name=f"t{table_id}", columns=columns, key=("id",)
    )


def width_of(found: TableSchema) -> int:
    """Return the number of a row's columns besides its key."""
    return len(found.columns) - 1


def encode_row(row: Row) -> bytes:
    return b"|".join(row)


def decode_row(text: bytes, width: int) -> Row:
    """Return a row of any version as a row of this width."""
    found = tuple(text.split(b"|"))
    return (*found, *[ADDED] * (width - len(found)))


@dataclass
class Table:
    """A table at the source with its log and the progress of its fill."""

    table_id: int
    versions: list[TableSchema]
    rows: dict[bytes, Row] = field(default_factory=dict)
    log: set[bytes] = field(default_factory=set)
    is_truncated: bool = False
    fill: FillState = field(init=False)
    #: Whether the key was replaced, which changes the bytes of every key.
    has_other_key: bool = False

    def __post_init__(self) -> None:
        self.fill = FillState(
            table_id=self.table_id, sweep_from=Sequence(0), cursor=b"", rows_done=0, rows_estimate=0, done=False
        )

    @property
    def schema(self) -> TableSchema:
        return self.versions[-1]

    def read_again(self) -> None:
        """Fill the table again with a sweep."""
        self.fill = replace(self.fill, sweep_from=Sequence(1), cursor=b"", done=False)


def changes(table: Table, rows: Mapping[bytes, Row | None]) -> TableChanges:
    """Return a section of changes; a row of None is a deletion."""
    values = list(rows.values())
    return TableChanges(
        table_id=table.table_id,
        schema_version=table.schema.version,
        record_ids=PackedBytes.of(rows),
        rows=PackedBytes.of(b"" if v is None else encode_row(v) for v in values),
        is_deleted=np.array([v is None for v in values]),
    )


class SimulatedCut(Cut):
    """One snapshot: every method sees the current tables, because no writer runs while it is open."""

    captured_at_us = 0

    def __init__(self, tables: Mapping[int, Table]) -> None:
        self._tables = tables

    def read_sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        for table in self._tables.values():
            if table.is_truncated:
                yield marker(table.table_id, table.schema.version, ChangeKind.TRUNCATE)
            keys = sorted(table.log)
            for start in range(0, len(keys), rows_max):
                yield changes(table, {key: table.rows.get(key) for key in keys[start : start + rows_max]})

    def read_fill_chunk(
        self, fill: FillState, *, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], FillState]:
        table = self._tables[fill.table_id]
        last, end = json.loads(fill.cursor) if fill.cursor else ("", max(table.rows, default=b"").hex())
        keys = [key for key in sorted(table.rows) if last < key.hex() <= end]
        taken, done = keys[:rows_max], len(keys) <= rows_max
        cursor = json.dumps([taken[-1].hex() if taken else last, end]).encode()
        sections = [changes(table, {key: table.rows[key] for key in taken})] if taken else []
        return sections, replace(fill, cursor=cursor, rows_done=fill.rows_done + len(taken), done=done)

    def commit(
        self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], forget_batches_below: BatchNo
    ) -> None:
        for table in self._tables.values():
            table.log, table.is_truncated = set(), False
        for fill in fills:
            self._tables[fill.table_id].fill = fill

    def rollback(self) -> None:
        pass


class Source:
    """The database with its writers and its capture."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self.tables = {n: Table(n, [schema(n)]) for n in (1, 2)}
        for n, most in ((1, 24), (2, 4)):
            for _ in range(random_.randint(0, most)):
                self.tables[n].rows[self._key()] = (self._value(),)
        self.last_batch = 0
        self._next_sequence = 1
        self._sent: set[tuple[int, int]] = set()
        #: The batch with the last rows of the first read of all tables; None until that read ends.
        self.first_read_ends: int | None = None

    def _key(self, table: Table | None = None) -> bytes:
        """Return a random key, in the form of the table's current key."""
        prefix = b"k" if table is not None and table.has_other_key else b""
        return prefix + b"%02d" % self._random.randrange(40)

    def _value(self) -> bytes:
        return b"v%d" % self._random.randrange(10**6)

    # -- writers -----------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Change rows as an application."""
        table = self.tables[self._random.choice((1, 1, 2))]
        chance = self._random.random()
        if chance < 0.04:
            table.rows.clear()
            table.log.clear()
            table.is_truncated = True
        elif chance < 0.06 and width_of(table.schema) < 3:
            known = table.schema
            added = Column(name=f"c{known.version}", number=known.version + 10, type=TEXT)
            table.versions.append(replace(known, version=known.version + 1, columns=(*known.columns, added)))
            table.rows = {key: (*row, ADDED) for key, row in table.rows.items()}
        elif chance < 0.07 and not table.has_other_key:
            self._change_key(table)
        elif chance < 0.15 and table.fill.done:
            for key in [key for key in table.rows if self._random.random() < 0.3]:
                del table.rows[key]  # rows change without a trigger, which makes a new fill necessary
                table.log.discard(key)
            table.read_again()
        elif chance < 0.4 and table.rows:
            key = self._random.choice(sorted(table.rows))
            del table.rows[key]
            table.log.add(key)
        else:
            key = self._key(table)
            table.rows[key] = (self._value(), *[ADDED] * (width_of(table.schema) - 1))
            table.log.add(key)

    def _change_key(self, table: Table) -> None:
        """Replace the table's key: the table is filled again with another version."""
        table.has_other_key = True
        known, code = table.schema, Column(name="code", number=9, type=TEXT)
        columns = (code, *known.columns[1:])
        table.versions.append(replace(known, version=known.version + 1, columns=columns, key=("code",)))
        table.rows = {b"k" + key: row for key, row in table.rows.items()}
        table.log, table.is_truncated = set(), False
        table.read_again()

    # -- capture -----------------------------------------------------------------------------------------------------

    @property
    def is_read(self) -> bool:
        """Whether every table has been read to its end."""
        return all(t.fill.done for t in self.tables.values())

    @property
    def _unsent(self) -> list[TableSchema]:
        """Return the versions of tables that no batch has described."""
        return [v for t in self.tables.values() for v in t.versions if (t.table_id, v.version) not in self._sent]

    def has_changes(self) -> bool:
        """Return whether capture has anything to ship: fills, logged changes or new versions."""
        is_logged = any(t.log or t.is_truncated for t in self.tables.values())
        return not self.is_read or is_logged or bool(self._unsent)

    def capture(self, *, dies: bool) -> list[Batch]:
        """Ship one cut; return its batches, or none if capture dies before the local transaction."""
        fills, tables = Fills(), self.tables.values()
        fills.read([RegisteredTable(schema=t.schema, state=ACTIVE, reason="", fill=t.fill) for t in tables])
        schemas = self._unsent
        batcher = Batcher(
            first_batch=BatchNo(self.last_batch + 1),
            first_sequence=Sequence(self._next_sequence),
            captured_at_us=0,
            schemas=schemas,
            rows_max=4,
            bytes_max=1 << 20,
        )
        found = list(batcher.schema_batches())
        cut = SimulatedCut(self.tables)
        states = fills.next_states(self._random.randint(0, 2))
        chunks = [FillChunk(cut, state, self.tables[state.table_id].schema) for state in states]
        for section in self._read(cut, chunks, batcher):
            if (batch := batcher.add(section)) is not None:
                found.append(batch)
        found.append(batcher.end())
        if dies:
            return []
        cut.commit(Epoch(1), [], [chunk.after for chunk in chunks], BatchNo(0))
        self._sent |= {(s.table_id, s.version) for s in schemas}
        self.last_batch = found[-1].batch_no
        self._next_sequence = found[-1].first_sequence + found[-1].count
        if self.is_read and self.first_read_ends is None:
            self.first_read_ends = self.last_batch
        return found

    def _read(self, cut: SimulatedCut, chunks: list[FillChunk], batcher: Batcher) -> Iterator[TableChanges]:
        parts = [cut.read_sections(rows_max=3, bytes_max=1 << 20)]
        parts += [c.read_sections(batcher, rows_max=self._random.randint(1, 8), bytes_max=1 << 20) for c in chunks]
        for part in parts:
            yield from part
