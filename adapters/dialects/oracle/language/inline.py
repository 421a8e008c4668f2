"""The paper's own variant, on request: recordID, isDeleted and Sequence in the application's tables (VENUS 3.1, 3.2).

Writers of a table lock the row that holds the table's Sequence, and so wait for each other until commit. The lock
makes `Sequence > lastSequence` exact, and writes slow. RECORDID identifies a row; ISDELETED = 1 marks a deleted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.oracle.language.ddl import KeyedTable, OracleOwnObject
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import TRIGGER_LETTERS, literal, statement, trigger_name

COLUMNS = ("RECORDID", "ISDELETED", "SEQUENCE")
TABLES = (("log", "VENUS_TABLE_LOG"), ("polled", "VENUS_POLLED"))
#: RECORDID as the dictionary describes it.
_RECORDID: Row = ("RECORDID", "NUMBER", None, 22, 0, None, 19, 0, "N", None)
#: The identity of a row, as a constraint: name, type, column.
_IDENTITY: Row = ("RECORDID", "P", "RECORDID")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledRange:
    """The Sequence up to which a table captured inline was read, and the highest one in this snapshot."""

    last: int
    highest: int


def application_columns(rows: Seq[Row]) -> tuple[list[Row], list[Row]]:
    """Return the columns and the key to carry: the application's own columns, and RECORDID as the key."""
    return [*(row for row in rows if row[0] not in COLUMNS), _RECORDID], [_IDENTITY]


def build_inline_objects() -> list[OracleOwnObject]:
    """Return the paper's log table, and the table of the Sequences up to which each table was read."""
    return [OracleOwnObject(kind="TABLE", name=name, sql=statement("inline", block)) for block, name in TABLES]


def inline_triggers(table: KeyedTable, table_id: int) -> Iterator[OracleOwnObject]:
    """Yield the three disabled triggers of a table that is captured inline."""
    for letter, block in zip(TRIGGER_LETTERS, ("insert", "update", "delete"), strict=True):
        name = trigger_name(letter, table_id)
        sql = statement("inline", block, trigger=name, table=table.sql, name=_name_literal(table))
        yield OracleOwnObject(kind="TRIGGER", name=name, sql=sql)


def delete_polled_row(owner: str, name: str) -> str:
    """Return the statement that deletes a table's row of VENUS_POLLED, which an interrupted installation has left."""
    return statement("inline", "no_polled_row", name=literal(f"{owner}.{name}"))


def initial_inline_rows(table: KeyedTable) -> Iterator[tuple[str, str]]:
    """Yield the statements that mark a table as captured inline before it is registered; repeatable."""
    yield "row of VENUS_TABLE_LOG", statement("inline", "log_row", name=_name_literal(table))
    yield "row of VENUS_POLLED", statement("inline", "polled_row", name=_name_literal(table))


def inline_columns(table: KeyedTable, table_id: int, version: Version) -> Iterator[tuple[str, str]]:
    """Yield name and statement of the columns and the index that inline capture adds to a table."""
    hidden = " INVISIBLE" if version.invisible_identity else ""
    yield "columns", statement("inline", "columns", table=table.sql, hidden=hidden)
    index = trigger_name("X", table_id)
    yield f"index {index}", statement("inline", "index", table=table.sql, index=index)


def after_fence_steps(table: KeyedTable, table_id: int) -> Iterator[tuple[str, str]]:
    """Yield the steps after the fence, when every writer fires the triggers; these steps number older rows."""
    yield "numbers of the existing rows", statement("inline", "number", table=table.sql)
    constraint = trigger_name("R", table_id)
    yield f"constraint {constraint}", statement("inline", "identify", table=table.sql, constraint=constraint)
    yield "start of the polling", statement("inline", "begin_behind", name=_name_literal(table))


def drop_inline_columns(owner: str, name: str) -> str:
    """Return the statement that restores a table to its original columns."""
    return statement("inline", "drop_columns", table=KeyedTable(owner=owner, name=name, key=()).sql)


def count_waiting_sql(table_id: int, owner: str, name: str, most: int = 0) -> str:
    """Return the query that counts the rows of a table that have changed since they were read.

    It stops counting at `most` (0 = never).
    """
    table = KeyedTable(owner=owner, name=name, key=())
    parts = {"table": table.sql, "name": _name_literal(table), "bound": f" AND ROWNUM <= {most}" if most else ""}
    return statement("inline", "waiting", table_id=str(table_id), **parts)


def inline_view_line(owner: str, name: str) -> str:
    """Return the SELECT that shows a table captured inline in the view VENUS_LOG."""
    return statement("inline", "log_view_table", name=literal(f"{owner}.{name}"))


def read_inline_tables(session: OracleSession) -> frozenset[tuple[str, str]]:
    """Return the tables that are captured inline."""
    return frozenset((row[0], row[1]) for row in session.fetch_rows(statement("inline", "tables")))


def read_polled_ranges(session: OracleSession) -> dict[int, PolledRange]:
    """Return the ranges of new Sequences in this snapshot, by the id of each table that is captured inline."""
    rows = session.fetch_rows(statement("inline", "claim"))
    return {int(t): PolledRange(last=int(last), highest=int(highest)) for t, last, highest in rows}


def _name_literal(table: KeyedTable) -> str:
    return literal(f"{table.owner}.{table.name}")
