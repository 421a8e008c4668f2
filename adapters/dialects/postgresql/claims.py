"""What the log tables have for a cut, asked in its snapshot: one statement for all, one more for a large one only."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.postgresql import cutsql, names
from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.registry import Captured
from venus.adapters.dialects.postgresql.statements import statement
from venus.model import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one log table has for this cut."""

    schema: TableSchema
    table: Table
    rows: int
    #: Of the table; not asked for where the claim is small anyway.
    pages: int
    inserts_only: bool
    #: Whether to ask which rows are new; not worth it where the claim is small.
    noted: bool
    truncated: bool
    #: Changes were made while the key could not be read.
    lost: bool


def tables_with_rows(connection: Connection) -> set[int]:
    """Return the tables whose logs have rows; most logs of many need not be opened for that."""
    each = [
        statement("cut", "has_row", table_id=str(t), log=names.log_table(t))
        for (t,) in connection.rows(statement("cut", "with_pages"))
    ]
    return {r[0] for r in connection.rows(" UNION ALL ".join(each))} if each else set()


def claims_of(connection: Connection, captured: Seq[Captured]) -> list[Claim]:
    """Return what the logs of these tables have; a table with nothing has no claim."""
    of = {c.schema.table_id: c for c in captured}
    found = connection.rows(cutsql.small(of)) if of else ()
    return [claim_of(connection, of[table_id], *log) for table_id, *log in found]


def claim_of(
    connection: Connection, captured: Captured, rows: int, inserts_only: bool, truncated: bool, lost: bool
) -> Claim:
    """Return the claim of a table with these rows in its log; many are counted."""
    table, pages, inserts = captured.table, 0, False
    assert table is not None
    if rows > cutsql.SMALL_CLAIM_ROWS:
        weigh = statement("cut", "weigh", log=names.log_table(captured.schema.table_id), table=str(table.oid))
        rows, inserts_only, truncated, lost, inserts, pages = connection.row(weigh)
    return Claim(
        schema=captured.schema,
        table=table,
        rows=rows,
        pages=pages,
        inserts_only=inserts_only,
        noted=inserts and not inserts_only and table.identity_key and rows > cutsql.SMALL_CLAIM_ROWS,
        truncated=truncated,
        lost=lost,
    )
