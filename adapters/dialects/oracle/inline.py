"""The paper's own variant, on request: recordID, isDeleted and Sequence in the application's tables (VENUS 3.1, 3.2).

Writers of a table wait for each other until commit, at the row that holds its Sequence; that is what makes `Sequence >
lastSequence` exact here, and what makes it slow. A row's identity is its RECORDID, a deletion is ISDELETED = 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.oracle import names
from venus.adapters.dialects.oracle.connection import Row, Session
from venus.adapters.dialects.oracle.ddl import Keyed, Made
from venus.adapters.dialects.oracle.names import literal
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.versions import Version

COLUMNS = ("RECORDID", "ISDELETED", "SEQUENCE")
TABLES = (("log", "VENUS_TABLE_LOG"), ("polled", "VENUS_POLLED"))
#: RECORDID as the dictionary describes it once it is there.
_RECORDID: Row = ("RECORDID", "NUMBER", None, 22, 0, None, 19, 0, "N", None)
#: The identity of a row, as a constraint: name, type, column.
_IDENTITY: Row = ("RECORDID", "P", "RECORDID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """How far a table has been read, and how far it can be in this snapshot."""

    last: int
    highest: int


def without_columns(rows: Seq[Row]) -> tuple[list[Row], list[Row]]:
    """Return a table's columns and keys as they travel: the application's own, identified by RECORDID."""
    return [*(row for row in rows if row[0] not in COLUMNS), _RECORDID], [_IDENTITY]


def own_objects() -> list[Made]:
    """Return the paper's log table, and the one that says how far it was read."""
    return [Made(kind="TABLE", name=name, sql=statement("inline", block)) for block, name in TABLES]


def triggers(table: Keyed, table_id: int) -> Iterator[Made]:
    """Yield the three triggers of a captured table, disabled."""
    for letter, block in zip(names.TRIGGER_LETTERS, ("insert", "update", "delete"), strict=True):
        name = names.trigger(letter, table_id)
        sql = statement("inline", block, trigger=name, table=table.sql, name=_named(table))
        yield Made(kind="TRIGGER", name=name, sql=sql)


def forgotten(owner: str, name: str) -> str:
    """Return the statement that takes back what an installation left that was cut short."""
    return statement("inline", "no_polled_row", name=literal(f"{owner}.{name}"))


def rows_of(table: Keyed) -> Iterator[tuple[str, str]]:
    """Yield what marks a table as captured in this way, before it is registered; harmless if it is there."""
    yield "row of VENUS_TABLE_LOG", statement("inline", "log_row", name=_named(table))
    yield "row of VENUS_POLLED", statement("inline", "polled_row", name=_named(table))


def columns_of(table: Keyed, table_id: int, version: Version) -> Iterator[tuple[str, str]]:
    """Yield what has to be there before the triggers: its name in the dictionary, and the statement."""
    hidden = " INVISIBLE" if version.invisible_identity else ""
    yield "columns", statement("inline", "columns", table=table.sql, hidden=hidden)
    index = names.trigger("X", table_id)
    yield f"index {index}", statement("inline", "index", table=table.sql, index=index)


def after_fence(table: Keyed, table_id: int) -> Iterator[tuple[str, str]]:
    """Yield what comes once every writer meets the triggers: the rows of before get their numbers."""
    yield "numbers of the rows there are", statement("inline", "number", table=table.sql)
    constraint = names.trigger("R", table_id)
    yield f"constraint {constraint}", statement("inline", "identify", table=table.sql, constraint=constraint)
    yield "begin of the polling", statement("inline", "begin_behind", name=_named(table))


def drop_columns(owner: str, name: str) -> str:
    """Return the statement that gives a table back to the application as it was."""
    return statement("inline", "drop_columns", table=Keyed(owner=owner, name=name, key=()).sql)


def waiting(owner: str, name: str) -> str:
    """Return the query for how many rows of a table have changed since they were read."""
    table = Keyed(owner=owner, name=name, key=())
    return statement("inline", "waiting", table=table.sql, name=_named(table))


def log_view_table(owner: str, name: str) -> str:
    """Return a table's line of the view VENUS_LOG."""
    return statement("inline", "log_view_table", name=literal(f"{owner}.{name}"))


def read_tables(session: Session) -> frozenset[tuple[str, str]]:
    """Return the tables that are captured in this way."""
    return frozenset((row[0], row[1]) for row in session.rows(statement("inline", "tables")))


def claimed(session: Session) -> dict[int, Polled]:
    """Return the tables that have something new in this snapshot."""
    rows = session.rows(statement("inline", "claim"))
    return {int(t): Polled(last=int(last), highest=int(highest)) for t, last, highest in rows}


def _named(table: Keyed) -> str:
    return literal(f"{table.owner}.{table.name}")
