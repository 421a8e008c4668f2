"""DDL of a MariaDB or MySQL target: tables, indexes, foreign keys, and the step to another version (VENUS 3.4). Pure.

A table is created with its key, because InnoDB stores rows in key order. A load creates indexes and foreign keys after
the rows. A step adds, renames and widens columns, and keeps dropped columns, which become nullable; a change that the
target cannot follow halts the table with a reason. VENUS skips a statement if the dictionary shows that it has already
run: DDL ends its transaction, so a killed process may have run any number of statements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from venus.adapters.dialects.mysql.sql import literal
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, quote
from venus.adapters.targets.mysql.types import becomes_text, is_text, key_bytes
from venus.adapters.targets.relational.names import shorten_chars
from venus.adapters.targets.relational.place import RelationalPlace, VersionStep, find_refused_change, join_steps
from venus.model import Column, Index, TableSchema

_COMMENT_CHARS = 1024
_LITERAL_DEFAULTS = ("'", "-", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentColumn:
    """Type and nullability of a column in the existing table."""

    type: str
    not_null: bool


def collation(*, is_mariadb: bool) -> str:
    """Return the collation that compares texts byte by byte, with their trailing blanks."""
    return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"


def charset_sql(*, is_mariadb: bool) -> str:
    """Return the character set of a table."""
    return f"DEFAULT CHARACTER SET utf8mb4 COLLATE {collation(is_mariadb=is_mariadb)}"


def column_sql(placed: MysqlPlacedTable, column: Column, *, is_added: bool = False) -> str:
    """Return one column of a CREATE TABLE. An added column without a default is nullable: older rows have no value."""
    declared = placed.types[column.name]
    required = not column.nullable or column.name in placed.schema.key
    default = _default_sql(column, declared)
    parts = [placed.column(column.name), declared]
    if required and (default or not is_added):
        parts.append("NOT NULL")
    else:
        parts.append("NULL")
    if default:
        parts.append(f"DEFAULT {default}")
    return " ".join(parts) + _comment_sql(column.comment)


def _comment_sql(comment: str) -> str:
    return f" COMMENT {literal(comment[:_COMMENT_CHARS])}" if comment else ""


def _default_sql(column: Column, declared: str) -> str:
    """Return the column's default in a form that MariaDB and MySQL accept; empty if there is none."""
    text = column.default_sql
    if declared.startswith("long") or column.identity or not text:
        return ""
    if text.upper() == "CURRENT_TIMESTAMP":
        digits = declared.partition("(")[2].rstrip(")")
        return f"CURRENT_TIMESTAMP({digits})" if declared.startswith("datetime") else ""
    if declared.startswith("tinyint(1)"):
        return {"true": "1", "false": "0"}.get(text.lower(), "")
    return text if text.startswith(_LITERAL_DEFAULTS) else ""


def create_table(placed: MysqlPlacedTable, *, is_mariadb: bool) -> str:
    """Return the statement that creates a table with its key."""
    lines = [f"    {column_sql(placed, column)}" for column in placed.schema.columns]
    lines.append(f"    PRIMARY KEY ({placed.key})")
    return (
        f"CREATE TABLE IF NOT EXISTS {placed.sql} (\n" + ",\n".join(lines) + "\n) ENGINE = InnoDB "
        f"ROW_FORMAT = DYNAMIC {charset_sql(is_mariadb=is_mariadb)}{_comment_sql(placed.schema.comment)}"
    )


def side_definitions(placed: RelationalPlace) -> str:
    """Return the columns of a resync's side table, with defaults for rows that are older than a column."""
    return ", ".join(_side_column(placed, column) for column in placed.schema.wire_columns)


def _side_column(placed: RelationalPlace, column: Column) -> str:
    """Return the definition of a column of the side table."""
    declared = placed.types[column.name]
    default = _default_sql(column, declared)
    required = "NOT NULL" if column.name in placed.schema.key else "NULL"
    return f"{placed.column(column.name)} {declared} {required}" + (f" DEFAULT {default}" if default else "")


def index_name(index: Index) -> str:
    """Return the name of an index at the target."""
    return shorten_chars(index.name, 64)


def index_statements(placed: MysqlPlacedTable, there: Collection[str] = ()) -> list[str]:
    """Return the statements that create the indexes which the table does not have."""
    known = {name.lower() for name in there}
    return [
        f"ALTER TABLE {placed.sql} ADD {'UNIQUE ' if index.unique else ''}INDEX {quote(index_name(index))} "
        f"({', '.join(_index_columns(placed, index))})"
        for index in placed.schema.indexes
        if not index.definition and index_name(index).lower() not in known
    ]


def _index_columns(placed: MysqlPlacedTable, index: Index) -> Iterator[str]:
    for name in index.columns:
        declared = placed.types[name]
        prefix = "(255)" if declared.startswith("long") and not index.unique else ""
        yield placed.column(name) + prefix


def foreign_key_statements(
    placed: MysqlPlacedTable, others: Sequence[MysqlPlacedTable], there: Collection[str] = ()
) -> list[str]:
    """Return the statements that add the foreign keys which the table does not have."""
    by_name = {(o.schema.namespace, o.schema.name): o for o in others}
    known = {name.lower() for name in there}
    found = []
    for key in placed.schema.foreign_keys:
        parent = by_name.get((key.referred_namespace, key.referred_table))
        name = shorten_chars(key.name, 64)
        if parent is None or key.not_valid or name.lower() in known:
            continue
        actions = "".join(f" {w} {a}" for w, a in (("ON DELETE", key.on_delete), ("ON UPDATE", key.on_update)) if a)
        found.append(
            f"ALTER TABLE {placed.sql} ADD CONSTRAINT {quote(name)} FOREIGN KEY ({placed.columns(key.columns)}) "
            f"REFERENCES {parent.sql} ({parent.columns(key.referred_columns)}){actions}"
        )
    return found


def file_heads(target: str) -> list[str]:
    """Return the first comments of the file with the DDL of a load."""
    return [
        f"Objects that `venus migrate --target {target}` creates at MariaDB; indexes follow the rows.",
        f"MySQL: write {collation(is_mariadb=False)} instead of {collation(is_mariadb=True)}.",
    ]


def text_columns(schema: TableSchema) -> list[str]:
    """Return the columns whose values are text here because no type holds them exactly."""
    return [f"{schema.qualified_name}.{c.name} ({c.source_type})" for c in schema.columns if becomes_text(c.type)]


# -- another version ---------------------------------------------------------------------------------------------------


def plan_step(
    old: MysqlPlacedTable,
    new: MysqlPlacedTable,
    present: Mapping[str, PresentColumn],
    target: str,
    *,
    has_begun: bool,
    rekeying: bool = False,
) -> VersionStep:
    """Return the step from one version to the next; only a resync (`rekeying`) may rename key columns. Pure.

    `present` maps lower-case names to the columns of the table. `has_begun` means that some or all statements of this
    step have already run.
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
    new: MysqlPlacedTable, column: Column, present: Mapping[str, PresentColumn], *, has_begun: bool
) -> VersionStep:
    """Return the statement that adds a column, or a refusal if the target has one of this name."""
    name = new.fold(column.name)
    if name.lower() in present:
        own = f"the target's table {new.name} has a column {name} already, and the source has added one"
        return VersionStep() if has_begun else VersionStep(refused=f"{own}: rename or drop the one at the target")
    return VersionStep(statements=(f"ALTER TABLE {new.sql} ADD COLUMN {column_sql(new, column, is_added=True)}",))


def _drop_column(old: MysqlPlacedTable, column: Column, present: Mapping[str, PresentColumn]) -> VersionStep:
    """Return a remark that a dropped column stays, and the statement that lets it be NULL."""
    remark = f"column {column.name} was dropped at the source and is kept here"
    has = present.get(old.fold(column.name).lower())
    if has is None or not has.not_null:
        return VersionStep(remarks=(remark,))
    name = old.column(column.name)
    return VersionStep(
        statements=(f"ALTER TABLE {old.sql} MODIFY COLUMN {name} {old.types[column.name]} NULL",), remarks=(remark,)
    )


def _change_column(
    old: MysqlPlacedTable, new: MysqlPlacedTable, before: Column, after: Column, present: Mapping[str, PresentColumn]
) -> VersionStep:
    """Return the statement that adopts a changed name, type or nullability, or a refusal."""
    name, now = old.fold(before.name), new.fold(after.name)
    was, wanted = old.types[before.name], new.types[after.name]
    is_renamed = name != now and name.lower() in present and now.lower() not in present
    has = present.get((name if is_renamed else now).lower())
    has_type, has_not_null = (has.type, has.not_null) if has is not None else ("", False)
    is_key = after.name in new.schema.key
    null = "NULL" if (before.nullable or after.nullable) and not is_key else "NOT NULL"
    verb = f"CHANGE COLUMN {quote(name)}" if is_renamed else "MODIFY COLUMN"
    default = _default_sql(after, wanted)
    statement = f"ALTER TABLE {new.sql} {verb} {quote(now)} {wanted} {null}"
    statement += (f" DEFAULT {default}" if default else "") + _comment_sql(after.comment)
    if was != wanted and has_type != wanted and not can_widen(was, wanted):
        reason = f"column {after.name} has changed from {was} to {wanted}, which does not widen it"
        return VersionStep(refused=f"{reason}; all of its values come again: {statement}")
    alters = is_renamed or (was != wanted and has_type != wanted) or (after.nullable and has_not_null and not is_key)
    remarks: tuple[str, ...] = ()
    if before.nullable and not after.nullable:
        remarks = (f"column {after.name} is NOT NULL at the source now; NULL stays allowed here",)
    return VersionStep(statements=(statement,) if alters else (), remarks=remarks)


_INTEGERS = ("smallint", "int", "bigint")


def can_widen(was: str, wanted: str) -> bool:
    """Return whether every value of the type `was` is also a value of `wanted`."""
    if was in _INTEGERS and wanted in _INTEGERS:
        return _INTEGERS.index(was) <= _INTEGERS.index(wanted)
    if is_text(was) and is_text(wanted):
        return wanted == "longtext" or (was != "longtext" and key_bytes(was) <= key_bytes(wanted))
    if was.startswith("decimal") and wanted.startswith("decimal"):
        (p, s), (q, r) = (map(int, t[8:-1].split(",")) for t in (was, wanted))
        return s <= r and p - s <= q - r
    word, other = was.partition("(")[0], wanted.partition("(")[0]
    if word == other and word in ("time", "datetime"):
        return was <= wanted
    return was.startswith("varbinary") and wanted == "longblob"
