"""Places and DDL of a SQLite target: tables, indexes, and the step to another version (VENUS 3.4). Pure.

All tables are in the file's main schema. Tables are STRICT, and have their primary key and foreign keys from the start,
because SQLite cannot add keys later. A load creates the indexes after the rows. DDL is part of the transaction that
needs it. A step adds and renames columns, and keeps dropped ones; a change that would need another storage class, or
NULL in a NOT NULL column, halts the table with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from venus.adapters.dialects.sqlite.connection import literal, quote
from venus.adapters.targets.relational.names import fold_name
from venus.adapters.targets.relational.place import (
    OWN,
    RelationalPlace,
    VersionStep,
    is_other_key,
    join_steps,
    refuse_clashes,
)
from venus.adapters.targets.sqlite.types import (
    INTEGER,
    application_type,
    declared_type,
    keeps_values,
    scale_padding,
)
from venus.model import Column, Index, Kind, TableSchema

NAMESPACE = "main"
#: The most columns of a table, and the most values of a statement, in SQLite with its usual limits.
COLUMNS_MAX = 2000
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_TEXT = re.compile(r"'(?:[^']|'')*'")
_BOOLEANS = {"true": "1", "false": "0"}
#: Kinds whose literal default is its canonical text.
_TEXTUAL = frozenset({Kind.TEXT, Kind.CHAR, Kind.JSON, Kind.UUID})


@dataclass(frozen=True, kw_only=True)
class SqlitePlacedTable(RelationalPlace):
    """A source table and its names at the target; `is_application`: in the application's former file (`@source`)."""

    is_application: bool = False

    def quote(self, name: str) -> str:
        return quote(name)

    def fold(self, name: str) -> str:
        return fold_name(name, self.schema.source_dialect, self.names)

    @cached_property
    def types(self) -> dict[str, str]:
        declare = application_type if self.is_application else declared_type
        return {c.name: declare(c.type) for c in self.schema.columns}

    @property
    def strict(self) -> str:
        """The option STRICT of VENUS's tables; empty in an application's file, whose SQLite may not know it."""
        return "" if self.is_application else " STRICT"


def place_table(schema: TableSchema, names: str, *, is_application: bool = False) -> SqlitePlacedTable:
    """Return a source table with its names at the target."""
    name = fold_name(schema.name, schema.source_dialect, names)
    return SqlitePlacedTable(schema=schema, namespace=NAMESPACE, name=name, names=names, is_application=is_application)


def place_all(
    schemas: Iterable[TableSchema], names: str, target: str, *, is_application: bool = False
) -> list[SqlitePlacedTable]:
    """Return all tables but the heartbeat with their names. Raises Refused with a line for each impossible name."""
    placed = [
        place_table(schema, names, is_application=is_application) for schema in schemas if not schema.is_heartbeat
    ]
    return refuse_clashes(placed, _place_problems, target, "SQLite's names")


def _place_problems(placed: SqlitePlacedTable) -> Iterator[str]:
    """Yield the names and columns that SQLite cannot have, one line each."""
    if placed.name.lower().startswith("sqlite_"):
        yield f"{placed.schema.qualified_name}: names that begin with sqlite_ belong to SQLite"
    if len(placed.schema.columns) > COLUMNS_MAX:
        yield f"{placed.schema.qualified_name} has {len(placed.schema.columns)} columns, SQLite allows {COLUMNS_MAX}"
    for column in placed.schema.columns:
        if not placed.types[column.name]:
            yield f"{placed.schema.qualified_name}.{column.name}: SQLite has no type for {column.source_type}"


# -- tables ------------------------------------------------------------------------------------------------------------


def create_table(placed: SqlitePlacedTable, others: Sequence[SqlitePlacedTable] = ()) -> str:
    """Return the statement that creates a table with its key, and its foreign keys to `others`."""
    schema = placed.schema
    lines = [column_sql(placed, column) for column in schema.columns]
    if not _is_rowid(placed):
        lines.append(f"PRIMARY KEY ({placed.key})")
    lines += _foreign_keys(placed, others)
    return f"CREATE TABLE {placed.sql} (\n    " + ",\n    ".join(lines) + f"\n){placed.strict}"


def column_sql(placed: SqlitePlacedTable, column: Column) -> str:
    """Return the definition of a column. Only the key is NOT NULL, because SQLite cannot drop NOT NULL later."""
    parts = [placed.column(column.name), placed.types[column.name]]
    if column.name in placed.schema.key:
        parts.append("NOT NULL")
        parts += ["PRIMARY KEY"] if _is_rowid(placed) else []
    if default := default_sql(column):
        parts.append(f"DEFAULT {default}")
    return " ".join(parts)


def _is_rowid(placed: SqlitePlacedTable) -> bool:
    """Return whether the key is a single integer, which SQLite uses as its own row number."""
    key = placed.schema.key
    return len(key) == 1 and placed.types[key[0]] == INTEGER


def default_sql(column: Column) -> str:
    """Return a constant default in the stored form of its column; empty if the column has none."""
    text, kind = column.default_sql, column.type
    if column.identity or not text:
        return ""
    if kind.kind is Kind.BOOL:
        return _BOOLEANS.get(text.lower(), "")
    if kind.kind is Kind.DECIMAL and _NUMBER.fullmatch(text):
        return literal(f"{Decimal(text):.{max(kind.scale, 0)}f}" if kind.precision else text)
    if kind.kind in (Kind.INT, Kind.FLOAT):
        return text if _NUMBER.fullmatch(text) else ""
    return text if kind.kind in _TEXTUAL and _TEXT.fullmatch(text) else ""


def _foreign_keys(placed: SqlitePlacedTable, others: Sequence[SqlitePlacedTable]) -> Iterator[str]:
    by_name = {(o.schema.namespace, o.schema.name): o for o in others}
    for key in placed.schema.foreign_keys:
        parent = by_name.get((key.referred_namespace, key.referred_table))
        if parent is not None and not key.not_valid:
            actions = "".join(f" {w} {a}" for w, a in (("ON DELETE", key.on_delete), ("ON UPDATE", key.on_update)) if a)
            yield (
                f"CONSTRAINT {quote(key.name)} FOREIGN KEY ({placed.columns(key.columns)}) "
                f"REFERENCES {quote(parent.name)} ({parent.columns(key.referred_columns)}){actions}"
            )


def index_statements(placed: SqlitePlacedTable) -> list[str]:
    """Return the statements that create the indexes, whose names are unique in the whole file."""
    return [
        f"CREATE {'UNIQUE ' if index.unique else ''}INDEX IF NOT EXISTS {quote(NAMESPACE)}."
        f"{quote(index_name(placed, index))} ON {quote(placed.name)} ({placed.columns(index.columns)})"
        for index in placed.schema.indexes
        if not index.definition
    ]


def index_name(placed: SqlitePlacedTable, index: Index) -> str:
    """Return the name of an index at the target."""
    return f"{placed.name}.{index.name}"


def side_definitions(placed: SqlitePlacedTable, names: Iterable[str]) -> str:
    """Return the definitions of these columns of the target table, with defaults, for a table of VENUS's own."""
    columns = {c.name: c for c in placed.schema.columns}
    parts = ((name, default_sql(columns[name])) for name in names)
    return ", ".join(
        f"{placed.column(name)} {placed.types[name]}" + (f" DEFAULT {default}" if default else "")
        for name, default in parts
    )


def file_heads(target: str) -> list[str]:
    """Return the first comments of the file with the DDL of a load."""
    return [f"Objects that `venus migrate --target {target}` creates in the SQLite file; indexes follow the rows."]


# -- another version ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteColumn:
    """A column of an existing table, as the dictionary describes it."""

    name: str
    declared: str
    not_null: bool
    has_default: bool = False
    generated: bool = False


def plan_step(
    old: SqlitePlacedTable,
    new: SqlitePlacedTable,
    present: dict[str, SqliteColumn],
    target: str,
    *,
    rekeying: bool = False,
) -> VersionStep:
    """Return the step from one version to the next; only a resync (`rekeying`) may rename key columns. Pure.

    `present` maps lower-case names to the existing columns.
    """
    again = f"`venus migrate --target {target} --empty-meanwhile` loads it again"
    if old.name != new.name:
        return VersionStep(
            refused=f"the table was renamed from {old.schema.qualified_name} to {new.schema.qualified_name}"
        )
    if is_other_key(old.schema, new.schema, rekeying=rekeying):
        key = ", ".join(new.schema.key)
        return VersionStep(refused=f"the key has changed to ({key}), which SQLite cannot follow: {again}")
    before = {c.number: c for c in old.schema.columns}
    after = {c.number: c for c in new.schema.columns}
    kept = [number for number in before if number in after]
    parts = [_drop_column(old, c, present, again) for number, c in before.items() if number not in after]
    parts += _rename_columns(old, new, [(before[n], after[n]) for n in kept])
    parts += [_change_column(old, new, before[n], after[n], present, again) for n in kept]
    names = {old.fold(before[n].name).lower() for n in kept}
    parts += [_add_column(new, c, present, names) for number, c in after.items() if number not in before]
    return join_steps(parts)


def _add_column(
    new: SqlitePlacedTable, column: Column, present: dict[str, SqliteColumn], renamed: set[str]
) -> VersionStep:
    """Return the statement that adds a column, or a refusal if the target has one of this name."""
    name = new.fold(column.name)
    if name.lower() in present and name.lower() not in renamed:
        own = f"the target's table {new.name} has a column {name} already, and the source has added one"
        return VersionStep(refused=f"{own}: rename or drop the one at the target")
    return VersionStep(statements=(f"ALTER TABLE {new.sql} ADD COLUMN {column_sql(new, column)}",))


def _drop_column(old: SqlitePlacedTable, column: Column, present: dict[str, SqliteColumn], again: str) -> VersionStep:
    """Return a remark that a dropped column stays, or a refusal if it would need values."""
    has = present.get(old.fold(column.name).lower())
    if has is not None and has.not_null and not has.has_default:
        return VersionStep(refused=f"column {column.name} was dropped at the source and is NOT NULL here: {again}")
    return VersionStep(remarks=(f"column {column.name} was dropped at the source and is kept here",))


def _rename_columns(
    old: SqlitePlacedTable, new: SqlitePlacedTable, both: Sequence[tuple[Column, Column]]
) -> list[VersionStep]:
    """Return a step that renames columns through intermediate names, because two may have exchanged names."""
    moved = [(old.fold(b.name), new.fold(a.name), a.number) for b, a in both if old.fold(b.name) != new.fold(a.name)]
    rename = f"ALTER TABLE {new.sql} RENAME COLUMN"
    first = [f"{rename} {quote(was)} TO {quote(f'{OWN}{number}')}" for was, _, number in moved]
    then = [f"{rename} {quote(f'{OWN}{number}')} TO {quote(name)}" for _, name, number in moved]
    return [VersionStep(statements=(*first, *then))]


def _change_column(
    old: SqlitePlacedTable,
    new: SqlitePlacedTable,
    before: Column,
    after: Column,
    present: dict[str, SqliteColumn],
    again: str,
) -> VersionStep:
    """Return the statement that pads decimals to a larger scale, or a refusal if SQLite cannot change the column."""
    if not keeps_values(before.type, after.type):
        was, now = before.source_type or before.type.kind.name, after.source_type or after.type.kind.name
        return VersionStep(refused=f"column {after.name} has changed from {was} to {now}: {again}")
    has = present.get(old.fold(before.name).lower())
    if after.nullable and has is not None and has.not_null and after.name not in new.schema.key:
        return VersionStep(refused=f"column {after.name} allows NULL now and is NOT NULL here: {again}")
    padding, name = scale_padding(before.type, after.type), new.column(after.name)
    if not padding:
        return VersionStep()
    padded = f"UPDATE {new.sql} SET {name} = {name} || '{padding}' WHERE {name} GLOB '*[0-9]'"
    return VersionStep(statements=(padded,))
