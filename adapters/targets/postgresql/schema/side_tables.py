"""The side tables of resyncs at a PostgreSQL target: their creation, and how their rows replace a table's rows."""

from __future__ import annotations

from collections.abc import Callable

from venus.adapters.targets.postgresql.naming import PlacedTable, quote
from venus.adapters.targets.postgresql.rowsql import RowSql, copy_full
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema.constraints import add_key
from venus.adapters.targets.postgresql.schema.ddl import type_sql
from venus.adapters.targets.postgresql.schema.own_types import require_labels
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.targets.relational.states import TableState
from venus.codec.stored_rows import FullRows
from venus.errors import TargetError
from venus.masking.projection import source_of
from venus.model import Column, TableSchema


def create_side_table(session: TargetSession, sql: RowSql, target: str) -> None:
    """Create the side table in the newest version, which the target may not have yet. Raises LabelsMissing.

    In the side table, rows that are older than a column get the column's default.
    """
    require_labels(session, sql.placed, target)
    columns = ", ".join(_side_column(sql.placed, c) for c in sql.placed.schema.wire_columns)
    session.run(f"{sql.text('drop_side_table')}; {sql.text('create_side_table', definitions=columns)}")


def _side_column(placed: PlacedTable, column: Column) -> str:
    """Return the definition of one column of the side table."""
    declared = f"{placed.column(column.name)} {type_sql(column.type, placed.type_names)}"
    return f"{declared} DEFAULT {column.default_sql}" if column.default_sql and not column.identity else declared


def copy_side(session: TargetSession, sql: RowSql, rows: FullRows, version: TableSchema) -> None:
    """Copy rows of the full data into the side table of a resync."""
    copy_full(session, sql.side, sql.placed, rows, version)


def replace_by_side(session: TargetSession, sql: RowSql, cut: int, evolve: Callable[[], None]) -> tuple[int, int]:
    """Make the table equal to the side table; return how many rows were removed and added."""
    evolve()
    session.run("SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on")
    with existing.lift_checks(session, sql.placed):
        removed, replaced, inserted = (
            session.run(sql.text(block, offset=str(cut)))
            for block in ("resync_delete", "resync_replace", "resync_insert")
        )
    return removed, inserted - replaced


def replace_rows(
    session: TargetSession, state: TableState, before: PlacedTable, sql: RowSql, evolve: Callable[[], None]
) -> tuple[int, int]:
    """Give a table the rows and the key of its side table; return how many rows were removed and added.

    `evolve` makes all other changes of the new version. VENUS does not change the key of a table that it has not
    created. Raises TargetError.
    """
    is_other_key = not source_of(before.schema).has_same_key(source_of(sql.placed.schema))
    if not is_other_key:
        pass  # only a rule for columns renames a key column, which `evolve` does
    elif state.created:
        _drop_key(session, before)
    else:
        _require_key(session, before, sql.placed.schema)
    evolve()
    with existing.lift_checks(session, sql.placed):
        removed = session.run(sql.text("delete_all"))
        brought = session.run(sql.text("insert_side"))
    if state.created and is_other_key:
        session.run(add_key(sql.placed))
    return removed, brought


def _drop_key(session: TargetSession, placed: PlacedTable) -> None:
    """Drop the primary key of a table. Raises TargetError if foreign keys refer to it."""
    rows = session.rows(statement("dictionary", "referring"), {"table": placed.sql})
    if rows:
        drops = "; ".join(f"ALTER TABLE {table} DROP CONSTRAINT {quote(name)}" for table, name in rows)
        raise TargetError(f"foreign keys at the target refer to the former key of {placed.qualified_name}: {drops}")
    for (name,) in session.rows(statement("dictionary", "primary_key"), {"table": placed.sql}):
        session.run(f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quote(name)}")


def _require_key(session: TargetSession, placed: PlacedTable, newest: TableSchema) -> None:
    """Raise TargetError unless the owner of a table has added the new key, with its columns' current names."""
    known = {c.number: c.name for c in placed.schema.columns}
    key = [placed.fold(known.get(number, name)) for name, number in newest.identity]
    there = existing.read_table(session, placed)
    if there is None or frozenset(key) not in there.unique_keys:
        columns = ", ".join(key)
        raise TargetError(
            f"{placed.qualified_name} {existing.NO_KEY} on ({columns}): add one at the target and drop the former key"
        )
