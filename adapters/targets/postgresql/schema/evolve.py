"""The step of a table from one schema version to the next, if PostgreSQL can make it without loss. Pure.

A new column is added. A dropped column stays at the target and becomes nullable. A rename is followed, and a type is
widened. A change that PostgreSQL cannot make without loss halts the table with a reason, until a resync or an
operator's decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from venus.adapters.targets.postgresql.naming import PlacedTable, quote, quote_literal, shorten_name
from venus.adapters.targets.postgresql.schema.constraints import object_definitions
from venus.adapters.targets.postgresql.schema.ddl import (
    NOTHING,
    column_sql,
    column_type,
    counted_default,
    has_type,
    is_counted,
    no_identity,
    statements_after_column,
    statements_before_column,
    type_sql,
)
from venus.adapters.targets.postgresql.schema.own_types import LabelSteps, create_if_missing
from venus.adapters.targets.postgresql.session import statement
from venus.adapters.targets.relational.place import VersionStep
from venus.model import Column, Kind, LogicalType, TableSchema

NO_LABELS = LabelSteps()


def plan_step(
    old: PlacedTable,
    new: PlacedTable,
    labels: LabelSteps = NO_LABELS,
    *,
    present: Mapping[str, str] = NOTHING,
    kept: Collection[str] = (),
    target: str = "NAME",
    rekeying: bool = False,
) -> VersionStep:
    """Return the statements that bring a table to its next version, or why that is impossible. Pure.

    `labels` are the changes of the table's enum labels. `present` lists the columns of the table at the target with
    their types, and `kept` lists those columns that the source has dropped (see `kept_columns`). `rekeying` means that
    the caller replaces every row by one with the new key.
    """
    if (old.namespace, old.name) != (new.namespace, new.name):
        return VersionStep(refused=f"the table was renamed from {old.qualified_name} to {new.qualified_name}")
    if not old.schema.has_same_key(new.schema) and not rekeying:
        return VersionStep(refused=_key_change_reason(old.schema, new.schema, target))
    before = {c.number: c for c in old.schema.columns}
    after = {c.number: c for c in new.schema.columns}
    if labels.refused:
        return VersionStep(refused=labels.refused)
    gone = [column for number, column in before.items() if number not in after]
    both = [(c, after[number]) for number, c in before.items() if number in after]
    parts = [*(_drop_column(old, column) for column in gone), _rename_kept(old, new, gone, present, kept)]
    parts.append(_rename_columns(old, new, both))
    parts += [_change_column(old, new, was, now, present) for was, now in both]
    if refused := next((part.refused for part in parts if part.refused), ""):
        return VersionStep(refused=refused)
    made = {own.sql_name for own in old.schema.types}
    statements: list[str] = list(labels.statements)
    statements += [create_if_missing(new, own) for own in new.schema.types if own.sql_name not in made]
    statements += [text for part in parts for text in part.statements]
    remarks = [text for part in parts for text in part.remarks]
    for number, column in after.items():
        if number not in before:
            statements += [
                *statements_before_column(new, column),
                _add_column(new, column),
                *statements_after_column(new, column),
            ]
    parted = _end_inheritance(old, new, changing=bool(statements))
    if object_definitions(old.schema) != object_definitions(new.schema):
        remarks.append("indexes, checks, domains or foreign keys have changed at the source; they are not changed here")
    return VersionStep(statements=(*parted.statements, *statements), remarks=(*remarks, *parted.remarks))


def _key_change_reason(old: TableSchema, new: TableSchema, target: str) -> str:
    """Return why a table with a changed key halts, with the two resyncs that bring the rows by the new key."""
    into = f"({', '.join(new.key)})" if old.key != new.key else "other columns of these names"
    return (
        f"the key has changed from ({', '.join(old.key)}) to {into}: when `venus resync {new.qualified_name}` has "
        "read the table again at the source, "
        f"`venus resync {new.qualified_name} --target {target}` replaces its rows here"
    )


def _end_inheritance(old: PlacedTable, new: PlacedTable, *, changing: bool) -> VersionStep:
    """Return the step that ends the inheritance of child tables if they left at the source or columns change.

    PostgreSQL would add a new column of a parent to its children, which receive the column with their own new versions.
    """
    before, after = old.schema.child_tables, new.schema.child_tables
    gone = [child for child in before if child not in after]
    more = [child for child in after if child not in before]
    remarks = [f"{', '.join(more)} now inherits from it at the source; that is not replicated"] if more else []
    if not gone and not (before and changing):
        return VersionStep(remarks=tuple(remarks))
    why = f"{', '.join(gone)} has left" if gone else "its columns have changed"
    remarks.append(f"{why} at the source: no table inherits from it here any more (ALTER TABLE ... INHERIT)")
    return VersionStep(
        statements=(statement("child_tables", "part", table=quote_literal(old.sql)),), remarks=tuple(remarks)
    )


def kept_columns(versions: Iterable[TableSchema], current: TableSchema) -> frozenset[str]:
    """Return the columns that a table has lost since earlier versions, under their last names."""
    names = {c.number: c.name for one in sorted(versions, key=lambda one: one.version) for c in one.columns}
    return frozenset(names[number] for number in set(names) - {c.number for c in current.columns})


def _rename_kept(
    old: PlacedTable, new: PlacedTable, gone: Iterable[Column], present: Collection[str], kept: Collection[str]
) -> VersionStep:
    """Return the step that renames a column kept after a DROP COLUMN if a new column of the source has its name.

    The kept values do not belong to the new column, and only an operator may delete them.
    """
    before = {c.number: c.name for c in old.schema.columns}
    ours = {old.fold(name) for name in (*kept, *(column.name for column in gone))}
    steady = {old.fold(c.name) for c in old.schema.columns} - {old.fold(column.name) for column in gone}
    statements, remarks = [], []
    for column in new.schema.columns:
        name = new.fold(column.name)
        if before.get(column.number) == column.name or name in steady or name not in present:
            continue
        if name not in ours:
            own = f"the target's table {old.qualified_name} has its own column {name}, and the source has added one"
            return VersionStep(refused=f"{own}: rename or drop the one at the target")
        aside = shorten_name(f"{name}_before_v{new.schema.version}")
        statements.append(f"ALTER TABLE {old.sql} RENAME COLUMN {quote(name)} TO {quote(aside)}")
        remarks.append(f"the source has a new column {name}; the column that was kept here is now {aside}")
    return VersionStep(statements=tuple(statements), remarks=tuple(remarks))


def _add_column(new: PlacedTable, column: Column) -> str:
    """Return the statement that adds a column; without a default it omits NOT NULL, as existing rows have no value."""
    text = column_sql(new, column)
    if not column.default_sql:
        text = text.removesuffix(" NOT NULL")
    return f"ALTER TABLE {new.sql} ADD COLUMN {text}"


def _drop_column(old: PlacedTable, column: Column) -> VersionStep:
    """Return the step for a column that the source has dropped: it stays here, and becomes nullable."""
    name = old.column(column.name)
    return VersionStep(
        statements=() if column.nullable else (f"ALTER TABLE {old.sql} ALTER COLUMN {name} DROP NOT NULL",),
        remarks=(f"column {column.name} was dropped at the source and is kept here",),
    )


def _rename_columns(old: PlacedTable, new: PlacedTable, both: Iterable[tuple[Column, Column]]) -> VersionStep:
    """Return the step that renames columns, through an intermediate name if a column gets another one's name."""
    names = [(old.fold(was.name), new.fold(now.name)) for was, now in both]
    moves = [(was, now) for was, now in names if was != now]
    taken = {was for was, _ in moves}
    aside = {was: shorten_name(f"{was}_until_v{new.schema.version}") for was, now in moves if now in taken}
    steps = [
        *aside.items(),
        *((was, now) for was, now in moves if was not in aside),
        *((aside[was], now) for was, now in moves if was in aside),
    ]
    return VersionStep(
        statements=tuple(f"ALTER TABLE {old.sql} RENAME COLUMN {quote(was)} TO {quote(now)}" for was, now in steps)
    )


def _change_column(
    old: PlacedTable, new: PlacedTable, before: Column, after: Column, present: Mapping[str, str]
) -> VersionStep:
    """Return the step for a changed type, default or NOT NULL of a column."""
    statements: list[str] = []
    remarks: list[str] = []
    name = new.column(after.name)
    # an operator may have set the new type; present values do not matter, because every row is sent again
    altered = has_type(new, after, present.get(old.fold(before.name), ""))
    if before.type != after.type and type_sql(before.type) != type_sql(after.type) and not altered:
        if not can_widen(before.type, after.type):
            return VersionStep(refused=_narrowing_reason(old, new, before, after))
        statements.append(f"ALTER TABLE {new.sql} ALTER COLUMN {name} TYPE {type_sql(after.type)}")
    default = _change_default(old, new, before, after)
    statements += default.statements
    remarks += default.remarks
    if after.nullable and not before.nullable:
        statements.append(f"ALTER TABLE {new.sql} ALTER COLUMN {name} DROP NOT NULL")
    elif before.nullable and not after.nullable:
        remarks.append(f"column {after.name} is NOT NULL at the source now; NULL stays allowed here")
    return VersionStep(statements=tuple(statements), remarks=tuple(remarks))


def _change_default(old: PlacedTable, new: PlacedTable, before: Column, after: Column) -> VersionStep:
    """Return the step for a changed default. An operator must add a new identity, as the column may contain NULL."""
    alter = f"ALTER TABLE {new.sql} ALTER COLUMN {new.column(after.name)}"
    if before.identity and after.identity:
        return VersionStep(statements=(no_identity(new, after),) if is_counted(new, after) else ())
    if after.identity:
        way = f"{alter} ADD GENERATED BY DEFAULT AS IDENTITY"
        if is_counted(new, after):
            default = f"{alter} SET DEFAULT {counted_default(new, after)}"
            way = "; ".join((*statements_before_column(new, after), default, *statements_after_column(new, after)))
        return VersionStep(remarks=(f"column {after.name} now has a counter at the source, and not here: {way}",))
    statements = []
    if before.identity:
        statements.append(f"{alter} DROP IDENTITY IF EXISTS")
    if before.default_sql != after.default_sql or (is_counted(old, before) and not after.default_sql):
        statements.append(f"{alter} {f'SET DEFAULT {after.default_sql}' if after.default_sql else 'DROP DEFAULT'}")
    return VersionStep(statements=tuple(statements))


def _narrowing_reason(old: PlacedTable, new: PlacedTable, before: Column, after: Column) -> str:
    """Return why a change of type is not a widening, with the statement that an operator can run at the target."""
    name, wanted = old.column(before.name), column_type(new, after)
    return (
        f"column {after.name} has changed from {type_sql(before.type)} to {type_sql(after.type)}, which does not widen "
        f"it; all of its values come again: ALTER TABLE {old.sql} ALTER COLUMN {name} TYPE {wanted} USING "
        f"{name}::{wanted}, or another USING"
    )


def can_widen(before: LogicalType, after: LogicalType) -> bool:
    """Return whether every value of the old type is also a value of the new one, so that a conversion loses nothing."""
    match before.kind, after.kind:
        case (Kind.INT, Kind.INT) | (Kind.FLOAT, Kind.FLOAT):
            return before.length <= after.length
        case Kind.INT, Kind.DECIMAL:
            digits = {2: 5, 4: 10, 8: 19}[before.length]
            return not after.precision or after.precision - after.scale >= digits
        case Kind.DECIMAL, Kind.DECIMAL:
            if not after.precision:
                return True
            whole = before.precision - before.scale <= after.precision - after.scale
            return bool(before.precision) and whole and before.scale <= after.scale
        case Kind.TEXT, Kind.TEXT:
            return not after.length or 0 < before.length <= after.length
        case Kind.CHAR, Kind.CHAR:
            return before.length <= after.length
        case (Kind.TIME, Kind.TIME) | (Kind.TIMETZ, Kind.TIMETZ):
            return True
        case (Kind.TIMESTAMP, Kind.TIMESTAMP) | (Kind.TIMESTAMPTZ, Kind.TIMESTAMPTZ):
            return not after.precision or before.precision <= after.precision
    return False
