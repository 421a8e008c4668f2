"""Gives a table another key, and all its rows by it, as the end of its resync (VENUS 3.4).

A change cannot find its row by a key that the row was not written under, so a table whose key has changed at the source
halts. Its resync has its rows by the new key in a side table; here they take the place of those that are there, in the
transaction that ends it. Who reads the table meanwhile sees it as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from venus.adapters.targets.postgresql.database import TableState
from venus.adapters.targets.postgresql.naming import Placed, quoted
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema.constraints import add_key
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import TargetError
from venus.model import TableSchema


def refuse_former_key(newest: TableSchema, version: TableSchema, target: str) -> None:
    """Raise TargetError for rows of the full data that were written by another key than the newest version has."""
    if newest.identity != version.identity:
        name, former = newest.qualified, ", ".join(version.key)
        raise TargetError(
            f"the broker still has rows by the former key ({former}): `venus resync {name}` reads the table again at "
            f"the source; when that is done, `venus resync {name} --target {target}`"
        )


def replace_rows(
    session: Session, state: TableState, before: Placed, sql: RowSql, evolve: Callable[[], None]
) -> tuple[int, int]:
    """Replace key and rows; return how many were removed and brought. `evolve` = what the version changes besides.

    Raises TargetError. The key of a table that VENUS has not made is its owner's affair.
    """
    if state.created:
        _drop_key(session, before)
    else:
        _require_key(session, before, sql.placed.schema)
    evolve()
    with existing.lift_checks(session, sql.placed):
        removed = session.run(sql.text("delete_all"))
        brought = session.run(sql.text("insert_side"))
    if state.created:
        session.run(add_key(sql.placed))
    return removed, brought


def _drop_key(session: Session, placed: Placed) -> None:
    rows = session.rows(statement("dictionary", "referring"), {"table": placed.sql})
    if rows:
        drops = "; ".join(f"ALTER TABLE {table} DROP CONSTRAINT {quoted(name)}" for table, name in rows)
        raise TargetError(f"foreign keys at the target lead to the former key of {placed.qualified}: {drops}")
    for (name,) in session.rows(statement("dictionary", "primary_key"), {"table": placed.sql}):
        session.run(f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quoted(name)}")


def _require_key(session: Session, placed: Placed, newest: TableSchema) -> None:
    """Refuse a table whose owner has not given it the new key, by the names that its columns have until now."""
    known = {c.number: c.name for c in placed.schema.columns}
    key = [placed.fold(known.get(number, name)) for name, number in newest.identity]
    there = existing.read(session, placed)
    if there is None or frozenset(key) not in there.unique_keys:
        columns = ", ".join(key)
        raise TargetError(
            f"{placed.qualified} {existing.NO_KEY} on ({columns}): give it one there, and drop the former"
        )
