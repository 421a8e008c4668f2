"""Writes a source's history for tests: cuts of changes go to a broker and into a model of the expected rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import psycopg2

from tests.support.databases.postgres import libpq
from tests.support.pipelines.loops import run_loop
from tests.support.waiting import eventually
from venus.adapters.targets.relational.apply_session import ApplyReport, run_apply
from venus.codec.batch import Batch, TableChanges, marker
from venus.codec.columns import from_columns, keys_from_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.config import ApplySettings, Settings, TargetSettings
from venus.config import BrokerSettings as BrokerSettings
from venus.model import BatchNo, ChangeKind, Column, ForeignKey, Index, Kind, LogicalType, TableSchema
from venus.model import Sequence as Seq

INT = LogicalType(kind=Kind.INT, length=8)
TEXT = LogicalType(kind=Kind.TEXT)

Value = str | bytes | None
Key = tuple[Value, ...]
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Change:
    """A change of one key; `row` has the columns outside the key, or is None for a deletion."""

    table: int
    key: Key
    row: Row | None


def table(table_id: int, name: str, *columns: Column, key: tuple[str, ...] = ("id",), **more: Any) -> TableSchema:
    """Return version 1 of a table in the namespace `shop`."""
    return TableSchema(table_id=table_id, version=1, namespace="shop", name=name, columns=columns, key=key, **more)


def column(number: int, name: str, kind: LogicalType = TEXT, **more: Any) -> Column:
    return Column(name=name, number=number, type=kind, **more)


def items(table_id: int = 1, name: str = "items", **more: Any) -> TableSchema:
    """Return a table with the columns id, label and amount."""
    return table(table_id, name, column(1, "id", INT), column(2, "label"), column(3, "amount", INT), **more)


def unique_label(schema: TableSchema) -> TableSchema:
    """Return the table with a unique index on its column `label`."""
    return replace(schema, indexes=(Index(name=f"{schema.name}_label", columns=("label",), unique=True),))


def make_referring_schema(schema: TableSchema, column_name: str, to: TableSchema) -> TableSchema:
    """Return the table with a foreign key from one of its columns to another table."""
    fk = ForeignKey(
        name=f"{schema.name}_fk",
        columns=(column_name,),
        referred_namespace=to.namespace,
        referred_table=to.name,
        referred_columns=to.key,
    )
    return replace(schema, foreign_keys=(fk,))


def section(
    schema: TableSchema, changes: Sequence[Change], *, inserts_only: bool = False, first_read: bool = False
) -> TableChanges:
    """Encode changes of one table in one call, because each call of the codec takes half a millisecond."""
    layout = Layout.of(schema)
    full = [c.key + c.row for c in changes if c.row is not None]
    bare = [c.key for c in changes if c.row is None]
    put_ids, put_rows = (p.split() for p in from_columns([*zip(*full, strict=True)], layout)) if full else ([], [])
    gone_ids = keys_from_columns([*zip(*bare, strict=True)], layout).split() if bare else []
    puts, gones = iter(zip(put_ids, put_rows, strict=True)), iter(gone_ids)
    encoded = [(next(gones), b"") if c.row is None else next(puts) for c in changes]
    return TableChanges(
        table_id=schema.table_id,
        schema_version=schema.version,
        record_ids=PackedBytes.of(record_id for record_id, _ in encoded),
        rows=PackedBytes.of(row for _, row in encoded),
        is_deleted=np.array([c.row is None for c in changes]),
        inserts_only=inserts_only,
        first_read=first_read,
    )


class Broker(Protocol):
    """The methods that a feed needs of a broker, a real or a fake one."""

    address: str

    @property
    def next_offset(self) -> int: ...

    def commit(self, batch: Batch) -> None: ...


@dataclass
class Feed:
    """The source's history of one business."""

    broker: Broker
    schemas: dict[int, TableSchema] = field(default_factory=dict)
    model: dict[int, dict[Key, Row]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    batch_no: int = 0
    sequence: int = 1
    _fresh: list[TableSchema] = field(default_factory=list)

    def describe(self, *schemas: TableSchema) -> None:
        """Send table versions with the next batch."""
        for schema in schemas:
            self.schemas[schema.table_id] = schema
            self.model.setdefault(schema.table_id, {})
            self._fresh.append(schema)

    def cut(self, *changes: Change, inserts_only: bool = False, batch_rows: int = 1_000_000) -> None:
        """Commit one cut; consecutive changes of one table form a section."""
        sections: list[TableChanges] = []
        for run in _runs(changes, batch_rows):
            sections.append(section(self.schemas[run[0].table], run, inserts_only=inserts_only))
        for change in changes:
            rows = self.model[change.table]
            if change.row is None:
                rows.pop(change.key, None)
            else:
                rows[change.key] = change.row
        self.sections(sections, batch_rows=batch_rows)

    def sections(self, sections: Sequence[TableChanges], *, batch_rows: int = 1_000_000) -> None:
        """Commit one cut of ready sections."""
        batches: list[list[TableChanges]] = [[]]
        for one in sections:
            if batches[-1] and sum(s.count for s in batches[-1]) + one.count > batch_rows:
                batches.append([])
            batches[-1].append(one)
        first = self.batch_no + 1
        for number, content in enumerate(batches):
            self._make_batch(content, first, end=number == len(batches) - 1)

    def _make_batch(self, content: Sequence[TableChanges], cut: int, *, end: bool) -> None:
        """Commit a batch of a cut, with the schemas that are new."""
        self.batch_no += 1
        count = sum(s.count for s in content)
        fresh, self._fresh = tuple(self._fresh), []
        self.broker.commit(
            Batch(
                batch_no=BatchNo(self.batch_no),
                first_sequence=Seq(self.sequence),
                count=count,
                cut=BatchNo(cut),
                cut_end=end,
                captured_at_us=1_700_000_000_000_000 + self.sequence,
                schemas=fresh,
                sections=tuple(content),
            )
        )
        self.sequence += count
        for one in content:
            self.committed[one.table_id] = self.committed.get(one.table_id, 0) + one.count

    def truncate(self, table_id: int, *after: Change) -> None:
        """Commit a TRUNCATE of a table, followed by new rows."""
        self.model[table_id] = {c.key: c.row for c in after if c.row is not None}
        schema = self.schemas[table_id]
        own = [section(schema, after)] if after else []
        self.sections([marker(table_id, schema.version, ChangeKind.TRUNCATE), *own])

    def sweep_begin(self, table_id: int) -> int:
        """Commit the begin of a sweep (a second full read); return the Sequence that its rows must reach."""
        at = self.sequence
        self.sections([marker(table_id, self.schemas[table_id].version, ChangeKind.SWEEP_BEGIN)])
        return at

    def sweep_end(self, table_id: int, before: int) -> None:
        """Commit the end of a sweep: rows whose Sequence is below `before` are gone."""
        self.sections([marker(table_id, self.schemas[table_id].version, ChangeKind.SWEEP_END, before)])


def _runs(changes: Sequence[Change], rows_max: int) -> Iterator[list[Change]]:
    """Yield runs of consecutive changes of one table, each of at most `rows_max` changes."""
    run: list[Change] = []
    for change in changes:
        if run and (run[-1].table != change.table or len(run) >= rows_max):
            yield run
            run = []
        run.append(change)
    if run:
        yield run


def put(key: int | str, *row: object, table: int = 1) -> Change:
    """Return a change that inserts or updates the row of this key."""
    return Change(table, (str(key),), tuple(v if v is None or isinstance(v, bytes) else str(v) for v in row))


def deletion(key: int | str, *, table: int = 1) -> Change:
    """Return a change that deletes the row of this key."""
    return Change(table, (str(key),), None)


# -- the target
# ----------------------------------------------------------------------------------------------------------


def settings_for(
    broker: str, targets: dict[str, str], *, apply: dict[str, Any] | None = None, **target: Any
) -> Settings:
    """Return settings of an adapter with these targets at a broker."""
    return Settings(
        broker=BrokerSettings(listen=broker),
        targets={name: TargetSettings.model_validate({"url": url} | target) for name, url in targets.items()},
        apply=ApplySettings(**(apply or {})),
    )


def query(url: str, text: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run one statement at a PostgreSQL database; return its rows."""
    connection = psycopg2.connect(libpq(url))
    try:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("SET statement_timeout = 0; SET lock_timeout = 0")  # the test's limits apply to VENUS only
        cursor.execute(text, params or None)
        return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def rows_at(url: str, schema: TableSchema, namespace: str = "shop") -> dict[Key, Row]:
    """Read a target table as text, in the form of the model."""
    names = [c.name for c in schema.wire_columns]
    columns = ", ".join(f'"{n}"::text' for n in names)
    width = len(schema.key)
    found = query(url, f'SELECT {columns} FROM "{namespace}"."{schema.name}"')
    return {tuple(r[:width]): tuple(r[width:]) for r in found}


def following(settings: Settings, name: str) -> AbstractContextManager[list[ApplyReport]]:
    """Run the loop of a target; raise its errors in the test."""
    return run_loop(lambda stop, report: run_apply(settings, name, stop, report))


def applied_offset(url: str, group: str = "main/a") -> int:
    """Return the offset that a target records as applied, or -1 before its first load."""
    found = query(url, 'SELECT "offset" FROM venus.applied WHERE group_name = %s', [group])
    return int(found[0][0]) if found else -1


def wait_until_caught_up(url: str, broker: Broker, group: str = "main/a") -> None:
    """Wait until a target has applied everything."""
    eventually(lambda: applied_offset(url, group) == broker.next_offset, "the target's catching up")
