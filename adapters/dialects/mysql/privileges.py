"""Captured tables that VENUS's user may not read any more. They halt alone, and go on when they may be read again.

information_schema shows only what a user has privileges for: a table whose SELECT was revoked may look as if it were
gone, or had lost its columns. And triggers run with the privileges of their definer, which is this user: without SELECT
they fail the application's own statements, so they have to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from venus.adapters.dialects.mysql.captured import Captured
from venus.adapters.dialects.mysql.connection import Connection, NotPermitted
from venus.adapters.dialects.mysql.names import log_table, quoted
from venus.adapters.dialects.mysql.statements import statement
from venus.errors import DatabaseUnavailable, SourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What a captured table lacks: the statement that gives it back, and whether the table itself cannot be read."""

    grant: str
    of_table: bool


def lacking(connection: Connection, captured: Sequence[Captured], *, logs: bool) -> dict[int, Lack]:
    """Return the tables that may not be read; `logs` = also those whose logs may not be read and emptied."""
    there = [c for c in captured if c.table is not None and c.table.key and c.definition]
    if not logs and len(there) == len(captured) and _may_read(connection, there):
        return {}
    return {c.table_id: lack for c in captured if (lack := _lack(connection, c, logs=logs)) is not None}


def _may_read(connection: Connection, captured: Sequence[Captured]) -> bool:
    """Ask for all in one round trip: that is how it nearly always is."""
    each = [f"({statement('registry', 'may_read', table=c.table.sql)})" for c in captured if c.table is not None]
    return not each or _allowed(connection, " UNION ALL ".join(each))


def _lack(connection: Connection, captured: Captured, *, logs: bool) -> Lack | None:
    database = quoted(connection.address.database)
    table, log = f"{database}.{quoted(captured.schema.name)}", f"{database}.{log_table(captured.table_id)}"
    if not _allowed(connection, statement("registry", "may_read", table=table)):
        return Lack(grant=_grant(connection, "SELECT", table), of_table=True)
    if logs and not _allowed(connection, statement("registry", "may_empty", log=log)):
        return Lack(grant=_grant(connection, "SELECT, DELETE", log), of_table=False)
    return None


def _allowed(connection: Connection, text: str) -> bool:
    try:
        connection.rows(text)
    except NotPermitted:
        return False
    except DatabaseUnavailable:
        raise
    except SourceError:  # gone, or turned into something else
        return True
    return True


def _grant(connection: Connection, privileges: str, place: str) -> str:
    user, _, host = str(connection.row("SELECT current_user()")[0]).rpartition("@")
    return f"GRANT {privileges} ON {place} TO '{user}'@'{host}'".replace("`", "")
