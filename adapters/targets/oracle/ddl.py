"""Places and DDL of an Oracle target: tables, indexes, foreign keys, the step to another version (VENUS 3.4). Pure.

All tables are in the schema of the user in the URL. A name in lower case is converted to upper case, so that statements
need no quotes; `[targets.X] names` changes that. A table is created with its key; a load creates indexes and foreign
keys after the rows. Foreign keys are disabled: the source has checked them, and Oracle cannot switch them off for one
session. A step adds, renames and widens columns, and keeps dropped columns, which become nullable; a change that the
target cannot follow halts the table with a reason. VENUS skips a statement if the dictionary shows that it has already
run, because DDL ends its transaction.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from venus.adapters.dialects.oracle.sql import NAME_BYTES_MAX, literal
from venus.adapters.targets.oracle.types import (
    KEY_BYTES_MAX,
    ColumnBinding,
    becomes_text,
    binding,
    declared_columns,
    indexes_of,
    is_lob,
    key_bytes,
)
from venus.adapters.targets.relational.names import fold_name, shorten_bytes
from venus.adapters.targets.relational.place import (
    RelationalPlace,
    VersionStep,
    find_refused_change,
    join_steps,
    refuse_clashes,
)
from venus.model import Column, Index, Kind, LogicalType, TableSchema

#: The longest name since 12.2; `examine` (tables.py) refuses names that are too long for the server.
NAME_BYTES = 128
COLUMNS_MAX = 1000
#: A comment has at most 4,000 bytes.
_COMMENT_CHARS = 1000
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_TEXT = re.compile(r"'(?:[^']|'')+'")
_BOOLEANS = {"true": "1", "false": "0"}


def quote(name: str) -> str:
    """Quote an identifier. Oracle's names cannot contain a quote (`_place_problems`)."""
    return f'"{name}"'


@dataclass(frozen=True, kw_only=True)
class OraclePlacedTable(RelationalPlace):
    """A source table and its names at the target."""

    def quote(self, name: str) -> str:
        return quote(name)

    def fold(self, name: str) -> str:
        return shorten_bytes(_fold_name(name, self.schema.source_dialect, self.names), NAME_BYTES)

    @cached_property
    def types(self) -> dict[str, str]:
        return declared_columns(self.schema)

    @property
    def sql(self) -> str:
        """The quoted name of the table; its schema is that of the session."""
        return quote(self.name)

    def binding_of(self, name: str, kind: LogicalType) -> ColumnBinding:
        """Return how to bind values of this type for the column with this name at the source."""
        return binding(kind, self.types[name])


def _fold_name(name: str, dialect: str, names: str) -> str:
    """Return the target's name for a name at the source; by default, lower case becomes upper case."""
    if names == "auto":
        return name.upper() if name == name.lower() else name
    return fold_name(name, dialect, names)


def place_table(schema: TableSchema, user: str, names: str) -> OraclePlacedTable:
    """Return a source table with its names at the target."""
    name = shorten_bytes(_fold_name(schema.name, schema.source_dialect, names), NAME_BYTES)
    return OraclePlacedTable(schema=schema, namespace=user, name=name, names=names)


def place_all(schemas: Iterable[TableSchema], user: str, names: str, target: str) -> list[OraclePlacedTable]:
    """Return all tables but the heartbeat with their names. Raises Refused with a line for each bad name or key."""
    placed = [place_table(schema, user, names) for schema in schemas if not schema.is_heartbeat]
    return refuse_clashes(placed, _place_problems, target, "Oracle's names without quotes")


def _place_problems(placed: OraclePlacedTable) -> Iterator[str]:
    """Yield the names, columns and keys that Oracle cannot have, one line each."""
    schema = placed.schema
    for name in (placed.name, *(placed.fold(c.name) for c in schema.columns)):
        if '"' in name or "\0" in name:
            yield f"{schema.qualified_name}: Oracle has no name with a quote, as in {name!r}"
    if "ROWID" in {placed.fold(c.name) for c in schema.columns}:
        yield f"{schema.qualified_name}: an Oracle table cannot have a column named ROWID"
    if len(schema.columns) > COLUMNS_MAX:
        yield f"{schema.qualified_name} has {len(schema.columns)} columns, Oracle allows {COLUMNS_MAX}"
    kinds = ("the key", *(f"index {i.name}" for i in _plain_indexes(schema)))
    for what, names in zip(kinds, indexes_of(schema), strict=True):
        size = sum(key_bytes(placed.types[name]) for name in names if name in placed.types)
        if size > KEY_BYTES_MAX:
            limit = f"an index of 8 KB blocks {KEY_BYTES_MAX:,}"
            yield f"{schema.qualified_name}: {what} may be {size:,} bytes long, {limit}"


def find_long_names(placed: OraclePlacedTable, bytes_max: int) -> list[str]:
    """Return the names that are too long for an older server."""
    names = (placed.name, *(placed.fold(c.name) for c in placed.schema.columns))
    return [name for name in names if len(name.encode()) > bytes_max]


# -- tables ------------------------------------------------------------------------------------------------------------


def create_table(placed: OraclePlacedTable) -> str:
    """Return the statement that creates a table with its key."""
    lines = [column_sql(placed, column) for column in placed.schema.columns]
    lines.append(f"PRIMARY KEY ({placed.key})")
    return f"CREATE TABLE {placed.sql} (\n    " + ",\n    ".join(lines) + "\n)"


def column_sql(placed: OraclePlacedTable, column: Column, *, is_added: bool = False) -> str:
    """Return the definition of a column. An added one without a default is nullable: older rows have no value."""
    default = _default_sql(column, placed.types[column.name])
    is_required = column.name in placed.schema.key or not column.nullable
    parts = [placed.column(column.name), placed.types[column.name]]
    parts += [f"DEFAULT {default}"] if default else []
    parts += ["NOT NULL"] if is_required and (default or not is_added) else []
    return " ".join(parts)


def _default_sql(column: Column, declared: str) -> str:
    """Return a constant default as Oracle reads it; empty if the column has none."""
    text, kind = column.default_sql, column.type.kind
    if column.identity or not text or is_lob(declared):
        return ""
    if kind is Kind.BOOL:
        return _BOOLEANS.get(text.lower(), "")
    if kind in (Kind.INT, Kind.DECIMAL, Kind.FLOAT):
        return text if _NUMBER.fullmatch(text) else ""
    return text if kind in (Kind.TEXT, Kind.CHAR, Kind.UUID) and _TEXT.fullmatch(text) else ""


def side_definitions(placed: OraclePlacedTable, names: Iterable[str]) -> str:
    """Return the definitions of these columns of the target table, with defaults, for a table of VENUS's own."""
    columns = {c.name: c for c in placed.schema.columns}
    return ", ".join(_side_column(placed, columns[name]) for name in names)


def _side_column(placed: OraclePlacedTable, column: Column) -> str:
    """Return the definition of a column of a table of VENUS's own."""
    default = _default_sql(column, placed.types[column.name])
    parts = [placed.column(column.name), placed.types[column.name]]
    parts += [f"DEFAULT {default}"] if default else []
    parts += ["NOT NULL"] if column.name in placed.schema.key else []
    return " ".join(parts)


def comment_statements(placed: OraclePlacedTable) -> list[str]:
    """Return the statements that describe the table and its columns."""
    table = placed.schema.comment[:_COMMENT_CHARS]
    found = [f"COMMENT ON TABLE {placed.sql} IS {literal(table)}"] if table else []
    return found + [
        f"COMMENT ON COLUMN {placed.sql}.{placed.column(c.name)} IS {literal(c.comment[:_COMMENT_CHARS])}"
        for c in placed.schema.columns
        if c.comment
    ]


def _plain_indexes(schema: TableSchema) -> list[Index]:
    """Return the indexes of plain columns, without those of expressions."""
    return [index for index in schema.indexes if not index.definition]


def index_name(placed: OraclePlacedTable, name: str) -> str:
    """Return the name of an index or a foreign key, which is unique in the schema and fits every version."""
    return shorten_bytes(f"{placed.name}_{name}".upper().replace('"', "_"), NAME_BYTES_MAX)


def index_statements(placed: OraclePlacedTable, there: Collection[str] = ()) -> list[str]:
    """Return the statements that create the indexes which the table does not have."""
    return [
        f"CREATE {'UNIQUE ' if index.unique else ''}INDEX {quote(index_name(placed, index.name))} "
        f"ON {placed.sql} ({placed.columns(index.columns)})"
        for index in _plain_indexes(placed.schema)
        if index_name(placed, index.name) not in there
    ]


def foreign_key_statements(
    placed: OraclePlacedTable, others: Sequence[OraclePlacedTable], there: Collection[str] = ()
) -> list[str]:
    """Return the statements that add the missing foreign keys, in the disabled state."""
    by_name = {(o.schema.namespace, o.schema.name): o for o in others}
    found = []
    for key in placed.schema.foreign_keys:
        parent = by_name.get((key.referred_namespace, key.referred_table))
        name = index_name(placed, key.name)
        if parent is None or key.not_valid or name in there:
            continue
        action = f" ON DELETE {key.on_delete}" if key.on_delete in ("CASCADE", "SET NULL") else ""
        found.append(
            f"ALTER TABLE {placed.sql} ADD CONSTRAINT {quote(name)} FOREIGN KEY ({placed.columns(key.columns)}) "
            f"REFERENCES {parent.sql} ({parent.columns(key.referred_columns)}){action} DISABLE"
        )
    return found


def file_heads(target: str) -> list[str]:
    """Return the first comments of the file with the DDL of a load."""
    return [
        f"Objects that `venus migrate --target {target}` creates in the schema of its user; indexes follow the rows.",
        "Foreign keys are disabled while VENUS applies: ALTER TABLE ... ENABLE CONSTRAINT ... afterwards.",
        "SQL*Plus would ask for what follows an ampersand: SET DEFINE OFF before.",
    ]


def text_columns(schema: TableSchema) -> list[str]:
    """Return the columns whose values are text here because no type holds them exactly."""
    return [f"{schema.qualified_name}.{c.name} ({c.source_type})" for c in schema.columns if becomes_text(c.type)]


def columns_without_empty_text(placed: OraclePlacedTable) -> list[str]:
    """Return the columns that refuse an empty text or binary value of the source."""
    return [
        f"{placed.schema.qualified_name}.{c.name}"
        for c in placed.schema.columns
        if c.type.kind in (Kind.TEXT, Kind.CHAR, Kind.BYTES) and not is_lob(placed.types[c.name])
    ]


# -- another version ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTargetColumn:
    """A column of an existing table, as the dictionary describes it."""

    name: str
    declared: str
    not_null: bool
    has_default: bool = False
    is_virtual: bool = False


def plan_step(
    old: OraclePlacedTable,
    new: OraclePlacedTable,
    present: Mapping[str, OracleTargetColumn],
    target: str,
    *,
    has_begun: bool,
    rekeying: bool = False,
) -> VersionStep:
    """Return the step from one version to the next. Pure.

    `present` maps names to the columns of the table. `has_begun` means that some or all statements of this step have
    already run; `rekeying` means that a resync replaces all rows.
    """
    if refused := find_refused_change(old, new, target, rekeying=rekeying):
        return VersionStep(refused=refused)
    before = {c.number: c for c in old.schema.columns}
    after = {c.number: c for c in new.schema.columns}
    parts = [_drop_column(old, c, present) for number, c in before.items() if number not in after]
    parts += [_change_column(old, new, c, after[number], present) for number, c in before.items() if number in after]
    parts += [_add_column(new, c, present, has_begun=has_begun) for number, c in after.items() if number not in before]
    return join_steps(parts)


def _add_column(
    new: OraclePlacedTable, column: Column, present: Mapping[str, OracleTargetColumn], *, has_begun: bool
) -> VersionStep:
    """Return the statement that adds a column, or a refusal if the target has one of this name."""
    name = new.fold(column.name)
    if name in present:
        own = f"the target's table {new.name} has a column {name} already, and the source has added one"
        return VersionStep() if has_begun else VersionStep(refused=f"{own}: rename or drop the one at the target")
    return VersionStep(statements=(f"ALTER TABLE {new.sql} ADD ({column_sql(new, column, is_added=True)})",))


def _drop_column(old: OraclePlacedTable, column: Column, present: Mapping[str, OracleTargetColumn]) -> VersionStep:
    """Return a remark that a dropped column stays, and the statement that lets it be NULL."""
    remark = f"column {column.name} was dropped at the source and is kept here"
    has = present.get(old.fold(column.name))
    if has is None or not has.not_null:
        return VersionStep(remarks=(remark,))
    return VersionStep(statements=(_nullable_sql(old, column.name, has.declared),), remarks=(remark,))


def _nullable_sql(placed: OraclePlacedTable, name: str, declared: str) -> str:
    """Return the statement that makes a column nullable; for a LOB it must not repeat the type."""
    kept = "" if is_lob(declared) else f"{placed.types[name]} "
    return f"ALTER TABLE {placed.sql} MODIFY ({placed.column(name)} {kept}NULL)"


def _change_column(
    old: OraclePlacedTable,
    new: OraclePlacedTable,
    before: Column,
    after: Column,
    present: Mapping[str, OracleTargetColumn],
) -> VersionStep:
    """Return the statements that adopt a changed name, type or nullability, or a refusal."""
    name, now = old.fold(before.name), new.fold(after.name)
    was, wanted = old.types[before.name], new.types[after.name]
    is_renamed = name != now and name in present and now not in present
    has = present.get(name if is_renamed else now)
    statements = []
    if is_renamed:
        statements.append(f"ALTER TABLE {new.sql} RENAME COLUMN {quote(name)} TO {quote(now)}")
    if was != wanted and (has is None or has.declared != wanted):
        if not can_widen(was, wanted):
            return VersionStep(
                refused=f"column {after.name} has changed from {was} to {wanted}, which does not widen it: "
                "all of its values come again"
            )
        statements.append(f"ALTER TABLE {new.sql} MODIFY ({quote(now)} {wanted})")
    if after.nullable and has is not None and has.not_null and after.name not in new.schema.key:
        statements.append(_nullable_sql(new, after.name, wanted))
    remarks: tuple[str, ...] = ()
    if before.nullable and not after.nullable:
        remarks = (f"column {after.name} is NOT NULL at the source now; NULL stays allowed here",)
    return VersionStep(statements=tuple(statements), remarks=remarks)


def can_widen(was: str, wanted: str) -> bool:
    """Return whether Oracle can change one declared type into another in a table with rows, and keeps every value."""
    if was == wanted:
        return True
    (word, old), (other, now) = _parse_type(was), _parse_type(wanted)
    if word != other:
        return False
    if word == "NUMBER":
        return not now or (bool(old) and old[1] <= now[1] and old[0] - old[1] <= now[0] - now[1])
    return word in ("VARCHAR2 CHAR", "VARCHAR2 BYTE", "RAW", "TIMESTAMP", "TIMESTAMP ZONE") and old <= now


def _parse_type(declared: str) -> tuple[str, list[int]]:
    """Return the words of a declared type, and its numbers."""
    word, *numbers = re.findall(r"[A-Z_]+2?|-?\d+", declared)
    if word == "NUMBER" and len(numbers) == 1:
        numbers.append("0")
    unit = next((u for u in ("CHAR", "BYTE", "ZONE") if declared.endswith((f" {u})", f" {u}"))), "")
    return f"{word} {unit}".strip(), [int(n) for n in numbers if n.lstrip("-").isdigit()]
