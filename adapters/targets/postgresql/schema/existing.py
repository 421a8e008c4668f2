"""Comparison of an existing table at the target with the one that VENUS would create (VENUS 3.4).

One error lists all differences: VENUS does not alter a table that it has not created.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.schema.constraints import ConstraintNames
from venus.adapters.targets.postgresql.schema.ddl import column_type, has_type, without_quotes
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.targets.relational.session import Refusal
from venus.errors import Refused, TargetError

#: Relations that accept rows: ordinary and partitioned tables.
_TABLES = ("r", "p")
#: The remedy for an existing table that differs.
HINT = "alter the table, move it away, or give the target another schema"
NO_KEY = "has no primary key or unique index"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingColumn:
    """A column in the target's dictionary."""

    name: str
    type: str
    not_null: bool
    generated: bool
    filled: bool  # by a default or an identity
    own: str = ""  # an enum or a domain, with its schema
    default: str = ""
    identity: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTable:
    """A table in the target's dictionary."""

    kind: str
    columns: tuple[ExistingColumn, ...]
    unique_keys: tuple[frozenset[str], ...]


def read_table(session: TargetSession, placed: PlacedTable) -> ExistingTable | None:
    """Read a table from the dictionary; None if it does not exist."""
    params = {"table": placed.sql}
    relation = session.row(statement("dictionary", "relation"), params)
    if relation is None:
        return None
    keys = session.rows(statement("dictionary", "unique_keys"), params)
    return ExistingTable(
        kind=relation[0],
        columns=read_columns(session, placed),
        unique_keys=tuple(frozenset(names) for (names,) in keys),
    )


def read_columns(session: TargetSession, placed: PlacedTable) -> tuple[ExistingColumn, ...]:
    """Read the columns of a table; empty if it does not exist."""
    return tuple(
        ExistingColumn(
            name=name,
            type=spelled,
            not_null=not_null,
            generated=generated,
            filled=filled,
            own=own,
            default=default,
            identity=identity,
        )
        for name, spelled, not_null, generated, filled, own, default, identity in session.rows(
            statement("dictionary", "columns"), {"table": placed.sql}
        )
    )


def free_names(session: TargetSession, placed: Sequence[PlacedTable]) -> ConstraintNames:
    """Return an allocator of names for the indexes of these tables that avoids the names of existing relations."""
    parts = {"namespaces": sorted({one.namespace for one in placed}), "tables": [one.sql for one in placed]}
    return ConstraintNames(
        placed, [(namespace, name) for namespace, name in session.rows(statement("dictionary", "taken"), parts)]
    )


@contextmanager
def lift_checks(session: TargetSession, placed: PlacedTable) -> Iterator[None]:
    """Within the block, drop checks that are NOT VALID, in an open transaction: they would refuse older rows."""
    found = session.rows(statement("dictionary", "not_valid_checks"), {"table": placed.sql})
    for name, _ in found:
        session.run(f"ALTER TABLE {placed.sql} DROP CONSTRAINT {name}")
    yield
    for name, definition in found:
        session.run(f"ALTER TABLE {placed.sql} ADD CONSTRAINT {name} {definition}")


def has_rows(session: TargetSession, placed: PlacedTable) -> bool:
    """Return whether the table has any row."""
    found = session.row(statement("dictionary", "has_rows", table=placed.rows_sql))
    return bool(found and found[0])


def empty_hint(target: str) -> str:
    """Return the text of the remedy for a table that has rows and should be empty."""
    return f"empty it, or set targets.{target}.on_existing to truncate or append"


def count_rows(session: TargetSession, placed: PlacedTable) -> int:
    """Count the rows of the table."""
    found = session.row(statement("dictionary", "count_rows", table=placed.rows_sql))
    return int(found[0]) if found else 0


def empty_table(session: TargetSession, placed: PlacedTable, by: str) -> None:
    """Remove all rows in an open transaction, by DELETE, so that readers of an older snapshot still see the rows.

    With `by` = "truncate", use TRUNCATE unless foreign keys forbid that. Raises Refused if foreign keys forbid both.
    """
    try:
        _delete_or_truncate(session, placed, by)
    except Refusal as refusal:
        raise Refused(
            f"{placed.qualified_name} cannot be emptied: {refusal}",
            hint="drop that foreign key, which VENUS has not created, at the target",
        ) from refusal


def _delete_or_truncate(session: TargetSession, placed: PlacedTable, by: str) -> None:
    if by == "delete":
        session.run(f"DELETE FROM {placed.rows_sql}")
        return
    session.run("SAVEPOINT venus_empty")
    try:
        session.run(f"TRUNCATE {placed.rows_sql}; RELEASE SAVEPOINT venus_empty")
    except TargetError:
        session.run(f"ROLLBACK TO SAVEPOINT venus_empty; RELEASE SAVEPOINT venus_empty; DELETE FROM {placed.rows_sql}")


def table_differences(placed: PlacedTable, existing: ExistingTable) -> list[str]:
    """Return the reasons why an existing table cannot be used for a source table, one line each. Pure."""
    if existing.kind not in _TABLES:
        return [f"{placed.qualified_name} exists already and is not a table"]
    if placed.schema.child_tables and existing.kind == "p":
        return [f"{placed.qualified_name} is partitioned here, and others inherit from it at the source"]
    there = {c.name: c for c in existing.columns}
    key = frozenset(placed.fold(k) for k in placed.schema.key)
    found: list[str] = []
    for column in placed.schema.columns:
        name = placed.fold(column.name)
        if name not in there:
            found.append(f"{placed.qualified_name}: column {name} is missing")
            continue
        have, wanted = there.pop(name), column_type(placed, column)
        if not has_type(placed, column, have.own or have.type):
            found.append(f"{placed.qualified_name}.{name} is {have.type}, the source needs {without_quotes(wanted)}")
        if have.not_null and column.nullable and name not in key:
            found.append(f"{placed.qualified_name}.{name} is NOT NULL, the source allows NULL")
        if have.generated:
            found.append(f"{placed.qualified_name}.{name} is generated and cannot be written")
    found += [
        f"{placed.qualified_name}.{c.name} is NOT NULL without a default, and the source does not have it"
        for c in there.values()
        if c.not_null and not c.filled and not c.generated
    ]
    if key not in existing.unique_keys:
        columns = ", ".join(sorted(key))
        found.append(f"{placed.qualified_name} {NO_KEY} on ({columns})")
    return found
