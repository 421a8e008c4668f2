"""The statements that change one target table, composed once for a table version; COPY of full data (VENUS 3.3, 3.4).

A few rows are written by keyed statements that contain the values: one round trip and no staging table. Rows of the
full data have any version of the schema: rows from before an ADD COLUMN lack that column and get its default, and rows
from before a DROP COLUMN lose that column.
"""

from __future__ import annotations

from functools import cached_property
from zlib import crc32

import xxhash

from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, PlacedTable, quote_literal
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.under.row_changes import RowChanges
from venus.codec.batch import TableChanges
from venus.codec.columns import from_columns, keys_to_columns, to_columns
from venus.codec.copy_text import messages_to_copy, to_copy
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import HEAD_BYTES, FullRows
from venus.model import Column, TableSchema

#: Limit for prepared statements of a session.
PREPARED_MAX = 64
#: How many rows a sequential scan reads in the time that one lookup by key takes.
_ROWS_A_DESCENT = 8


class RowSql:
    """SQL statements that change one target table, for one version of the table."""

    def __init__(self, placed: PlacedTable, group: str) -> None:
        schema = placed.schema
        self.placed = placed
        self.table = placed.sql
        self.columns = placed.wire_columns
        self.key = placed.key
        others = [placed.column(c.name) for c in schema.wire_columns[len(schema.key) :]]
        self.action = "UPDATE SET " + ", ".join(f"{c} = EXCLUDED.{c}" for c in others) if others else "NOTHING"
        self.same = " AND ".join(f"t.{c}::text IS NOT DISTINCT FROM s.{c}::text" for c in others) or "true"
        self.stage = f"pg_temp.venus_s_{schema.table_id}_{schema.version}"
        self.key_stage = f"pg_temp.venus_d_{schema.table_id}_{schema.version}"
        self.probe = f"pg_temp.venus_p_{schema.table_id}_{schema.version}"
        suffix = f"{schema.table_id}_{group_number(group):08x}"
        self.touched = f"{OWN_SCHEMA}.touched_{suffix}"
        self.side = f"{OWN_SCHEMA}.side_{suffix}"
        moved = "venus_offset"
        while placed.column(moved) in map(placed.column, schema.key):
            moved += "_"
        self._names = {
            "moved": moved,
            "table": self.table,
            "table_name": quote_literal(self.table),
            "rows": placed.rows_sql,
            "columns": self.columns,
            "key": self.key,
            "stage": self.stage,
            "touched": self.touched,
            "side": self.side,
            "action": self.action,
            "match": self.match_condition("t", "s"),
            "match_ab": self.match_condition("a", "b"),
            "same": self.same,
            "rows_a_descent": str(_ROWS_A_DESCENT),
        }

    def match_condition(self, left: str, right: str) -> str:
        """Return the condition that two aliases have the same key."""
        keys = [self.placed.column(k) for k in self.placed.schema.key]
        return " AND ".join(f"{left}.{k} = {right}.{k}" for k in keys)

    def text(self, block: str, **more: str) -> str:
        """Return a block of apply.sql for this table."""
        return statement("apply", block, **(self._names | more))

    @property
    def create_stages(self) -> str:
        """Statements that create both staging tables unless this session has them."""
        keys = self.text("create_stage", stage=self.key_stage, columns=self.key)
        return f"{self.text('create_stage')}; {keys}"

    @property
    def create_probe(self) -> str:
        """Statement that creates the staging table of the search for refused rows."""
        return self.text("create_stage", stage=self.probe)

    @cached_property
    def prepared_upsert(self) -> tuple[str, str]:
        """Name and text of the upsert of one row for PREPARE. A different text gets a different name."""
        values = ", ".join(f"${n}" for n in range(1, len(self.placed.schema.columns) + 1))
        text = self.text("upsert_values", values=f"({values})")
        return f"venus_upsert_{xxhash.xxh3_128_hexdigest(text.encode())}", text


def group_number(group: str) -> int:
    """Return a number that distinguishes the side tables of consumer groups in one database."""
    return crc32(group.encode())


def keyed_statements(session: TargetSession, sql: RowSql, layout: Layout, rows: RowChanges) -> str:
    """Return statements that delete, then upsert rows by key. Raises Refusal if no statement can contain a value."""
    parts: list[str] = []
    if rows.is_deleted.any():
        gone = rows.where(rows.is_deleted)
        parts.append(sql.text("delete_values", values=key_values(session, layout, gone.record_ids)))
    if not rows.is_deleted.all():
        live = rows.where(~rows.is_deleted)
        columns = to_columns(live.record_ids, live.rows, layout)
        values = _row_values(session, list(zip(*columns, strict=True)))
        parts.append(sql.text("upsert_values", values=values))
    return "; ".join(parts)


def upsert_text(session: TargetSession, sql: RowSql, layout: Layout, rows: RowChanges) -> str:
    """Return statements for changes: an EXECUTE for one upsert, which is planned only once, else keyed statements."""
    name, text = sql.prepared_upsert
    is_new = name not in session.prepared
    if len(rows) != 1 or rows.is_deleted.any() or (is_new and len(session.prepared) >= PREPARED_MAX):
        return keyed_statements(session, sql, layout, rows)
    if is_new:
        session.run(f"PREPARE {name} AS {text}")
        session.prepared.add(name)
    columns = to_columns(rows.record_ids, rows.rows, layout)
    return f"EXECUTE {name} {_row_values(session, list(zip(*columns, strict=True)))}"


def key_values(session: TargetSession, layout: Layout, record_ids: PackedBytes, more: tuple[int, ...] = ()) -> str:
    """Return keys as a list of SQL row values; each row ends with the numbers `more`."""
    columns = keys_to_columns(record_ids, layout)
    rows = [(*key, *more) for key in zip(*columns, strict=True)]
    return _row_values(session, rows)


def _row_values(session: TargetSession, rows: list[tuple[object, ...]]) -> str:
    """Return rows as a list of SQL row values."""
    one = "(" + ", ".join(["%s"] * len(rows[0])) + ")"
    return session.literal(", ".join([one] * len(rows)), [value for row in rows for value in row])


def copy_rows(
    session: TargetSession, table: str, placed: PlacedTable, section: TableChanges, schema: TableSchema
) -> None:
    """COPY a section of version `schema` into `table`, which has the columns of `placed`."""
    session.copy_in(copy_statement(table, placed, schema), copy_text(placed, section, schema))


def copy_statement(table: str, placed: PlacedTable, schema: TableSchema) -> str:
    """Return the COPY statement for rows of version `schema`."""
    names = {c.number: c.name for c in placed.schema.columns}
    columns = placed.columns(names[c.number] for c in schema.wire_columns if c.number in names)
    return statement("apply", "copy_in", table=table, columns=columns)


def copy_full(session: TargetSession, table: str, placed: PlacedTable, rows: FullRows, schema: TableSchema) -> None:
    """COPY rows of the full data of version `schema` into `table`, which has the columns of `placed`."""
    session.copy_in(copy_statement(table, placed, schema), full_rows_text(placed, rows, schema))


def copy_text(placed: PlacedTable, section: TableChanges, schema: TableSchema) -> bytes:
    """Return a section's rows as lines for `copy_statement`."""
    kept = _kept_columns(placed, schema)
    record_ids, rows, layout = section.record_ids, section.rows, Layout.of(schema)
    if len(kept) < len(schema.columns):
        record_ids, rows, layout = _drop_columns(record_ids, rows, schema, kept)
    return to_copy(record_ids, rows, layout)


def full_rows_text(placed: PlacedTable, rows: FullRows, schema: TableSchema) -> bytes:
    """Return rows of the full data as lines for `copy_statement`, without a copy in memory if no column is dropped."""
    if len(_kept_columns(placed, schema)) < len(schema.columns):
        return copy_text(placed, rows.changes, schema)
    return messages_to_copy(rows.stored.packed, Layout.of(schema), head=HEAD_BYTES)


def _kept_columns(placed: PlacedTable, schema: TableSchema) -> list[Column]:
    """Return the columns of `schema` that the target's table still has, in wire order."""
    numbers = {c.number for c in placed.schema.columns}
    return [c for c in schema.wire_columns if c.number in numbers]


def _drop_columns(
    record_ids: PackedBytes, rows: PackedBytes, schema: TableSchema, kept: list[Column]
) -> tuple[PackedBytes, PackedBytes, Layout]:
    """Remove dropped columns, value by value; only rows from before a DROP COLUMN need this."""
    values = dict(
        zip((c.number for c in schema.wire_columns), to_columns(record_ids, rows, Layout.of(schema)), strict=True)
    )
    narrow = TableSchema(
        table_id=schema.table_id,
        version=-schema.version,  # layouts are cached by version, and no real version is negative
        namespace=schema.namespace,
        name=schema.name,
        columns=tuple(kept),
        key=schema.key,
    )
    layout = Layout.of(narrow)
    new_ids, new_rows = from_columns([values[c.number] for c in kept], layout)
    return new_ids, new_rows, layout
