"""The findings of `venus check` in rows and tablespaces, and the sessions that block capture. Reads only.

A table with a type that cannot hold every value would halt sooner or later. So `check` and the installation read every
row of a table before it is captured, once for all columns with a requested type.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.dictionary.overrides import SWITCHES, switch_applies
from venus.adapters.dialects.oracle.dictionary.tables import OracleTable
from venus.adapters.dialects.oracle.names import quote
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.sql import statement
from venus.adapters.dialects.session_descriptions import describe_session
from venus.errors import SourceError
from venus.model import Finding

SAMPLE_ROWS = 20_000
#: With less free space, a batch job of the application may fill the tablespace of the logs while VENUS is down.
ROOM_BYTES_MIN = 256 << 20
_TEXTS = ("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "CLOB", "NCLOB")
#: The views that show blocking transactions, by their names in a GRANT.
BLOCKER_VIEWS = ("GV_$LOCKED_OBJECT", "GV_$TRANSACTION")
_SAID = {
    "nul": "NUL characters, which no text of PostgreSQL can hold: such a row halts its table",
    "no_date": "dates without a year or month (of no calendar): such a row halts its table",
}


def sample_findings(session: OracleSession, table: OracleTable, user: str) -> Iterator[Finding]:
    """Yield the findings in a sample of a table's rows."""
    looked = _column_checks(table)
    if not looked:
        return
    where = table.schema.qualified
    try:
        count, *found = session.fetch_row(sample_query(table))
    except (SourceError, SchemaChanged) as error:
        remedy = f"GRANT SELECT ON {table.keyed.sql} TO {quote(user)};"
        yield Finding(where=where, message=f"its rows cannot be read: {error}", remedy=remedy, blocks=True)
        return
    for (column, block), number in zip(looked.items(), found, strict=True):
        if number:
            message = f"column {column}: {int(number)} of {int(count)} sampled rows have {_SAID[block]}"
            yield Finding(where=where, message=message, remedy="correct these values, or exclude the table")


def _column_checks(table: OracleTable) -> dict[str, str]:
    """Return the check for each column."""
    kinds = {name: reading.declared.data_type for name, reading in table.readings.items()}
    return {name: "nul" if kind in _TEXTS else "no_date" for name, kind in kinds.items() if kind in (*_TEXTS, "DATE")}


def sample_query(table: OracleTable) -> str:
    """Return the query that checks some rows.

    It samples blocks if the statistics show many rows, and reads at most SAMPLE_ROWS rows in any case.
    """
    looked = _column_checks(table)
    percent = 100 * SAMPLE_ROWS / table.listed.rows if table.listed.rows else 100
    return statement(
        "sampling",
        "sampled",
        findings=",\n       ".join(statement("sampling", b, c=f"T.{quote(n)}") for n, b in looked.items()),
        columns=", ".join(quote(name) for name in looked),
        table=table.keyed.sql,
        sample=f" SAMPLE BLOCK ({percent:.6f})" if percent < 50 else "",
        rows=str(SAMPLE_ROWS),
    )


def room_findings(session: OracleSession) -> Iterator[Finding]:
    """Yield warnings about little room for the logs; without room, the application's statements fail."""
    for tablespace, free in session.fetch_rows(statement("sampling", "room")):
        if int(free) < ROOM_BYTES_MIN:
            message = f"tablespace {tablespace} has {int(free) >> 20} MiB free in its present files"
            remedy = f"ALTER TABLESPACE {quote(str(tablespace))} ADD DATAFILE SIZE 1G AUTOEXTEND ON; (unless it grows)"
            yield Finding(where="tablespace", message=message, remedy=remedy)
    for tablespace, used, most in session.fetch_rows(statement("dictionary", "quota")):
        if 0 < int(most) < int(used) + ROOM_BYTES_MIN:
            message = f"the quota on {tablespace} has {max(int(most) - int(used), 0) >> 20} MiB left"
            yield Finding(where="tablespace", message=message, remedy="ALTER USER ... QUOTA UNLIMITED ON ...;")


def read_blocker_ages(session: OracleSession) -> dict[str, int] | None:
    """Return the age of the oldest open transaction by log table; None if this user may not see it."""
    try:
        return {str(name): int(age) for name, age in session.fetch_rows(statement("sampling", "blockers"))}
    except (SourceError, SchemaChanged):
        return None


def describe_blocker(session: OracleSession, user: str) -> str:
    """Describe the session with the oldest open transaction on a log table, or the grants needed to see it."""
    try:
        rows = session.fetch_rows(statement("sampling", "holder"))
    except (SourceError, SchemaChanged):
        return f"not shown without {_missing_grants(user)}"
    return "".join(_describe_session(*row) for row in rows[:1])


def _describe_session(number: int, instance: int, user: str | None, os_user: str | None, since: str | None) -> str:
    facts = [f"user {user}" if user else "", f"of the system {os_user}" if os_user else "", f"instance {instance}"]
    opened = f"transaction open since {since}, the server's time" if since else ""
    return describe_session(int(number), *facts, opened)


def _missing_grants(user: str) -> str:
    return " ".join(f"GRANT SELECT ON {view} TO {quote(user)};" for view in BLOCKER_VIEWS)


def blocker_findings(session: OracleSession, user: str) -> Iterator[Finding]:
    """Yield the grants that a user lacks to see the transactions that delay a cut."""
    if read_blocker_ages(session) is None:
        message = "whose open transaction delays changes is not shown by `venus status`"
        yield Finding(where="privileges", message=message, remedy=_missing_grants(user))


#: The requested type by the rule that would carry it (canonical_text.py); these are also the blocks of proving.sql.
_RULES = {"uuid": "uuid", "whole": "bigint", "flag": "boolean"}
_MUST = {
    "uuid": "do not have 16 bytes",
    "bigint": "are not whole numbers of 64 bits",
    "boolean": "are neither 0 nor 1",
}


def prove_types(session: OracleSession, table: OracleTable) -> Iterator[Finding]:
    """Read all rows of a table that has a column whose requested type may not hold every value."""
    asked = columns_to_prove(table)
    if not asked:
        return
    where = table.schema.qualified
    try:
        count, *unfit = session.fetch_row(proof_query(table, asked))
    except (SourceError, SchemaChanged):
        return  # `sample_findings` reports that its rows cannot be read
    for (column, way), number in zip(asked, unfit, strict=True):
        if number:
            share = f"{int(number):,} of {int(count):,} values"
            message = f"column {column} cannot be carried as {way}: {share} {_MUST[way]}"
            remedy = f'"{where}.{column}" = "usual" in [source.type_map]'
            yield Finding(where=where, message=message, remedy=remedy, blocks=True)
        else:
            message = f"column {column} fits {way}: all {int(count):,} rows were read"
            yield Finding(where=where, message=message)


def columns_to_prove(table: OracleTable) -> list[tuple[str, str]]:
    """Return the columns whose declared type does not guarantee that every value fits, with the requested types."""
    ways = [(name, _RULES.get(reading.mapping.text, "")) for name, reading in table.readings.items()]
    return [(name, way) for name, way in ways if way and not _is_certain(table, name, way)]


def _is_certain(table: OracleTable, column: str, way: str) -> bool:
    declared = table.readings[column].declared
    return way == "bigint" and declared.scale == 0 and declared.precision is not None and declared.precision <= 18


def proof_query(table: OracleTable, asked: Seq[tuple[str, str]]) -> str:
    """Return the query that counts the values that do not fit."""
    unfit = [statement("proving", way, c=f"T.{quote(column)}") for column, way in asked]
    return statement("proving", "proof", unfit=",\n       ".join(unfit), table=table.keyed.sql)


def switch_proposals(tables: Seq[OracleTable]) -> Iterator[Finding]:
    """Yield the switches that are not set and that would apply to some columns."""
    for switch, way in SWITCHES.items():
        places = {
            table.schema.qualified: [
                name
                for name, reading in table.readings.items()
                if switch_applies(switch, reading.declared)
                and reading.mapping.text in ("octets", "number")
                and (way == "uuid" or reading.declared.precision is None)
            ]
            for table in tables
        }
        count = sum(map(len, places.values()))
        if count:
            first = next(f"{table}.{columns[0]}" for table, columns in places.items() if columns)
            message = f"{count} columns of type {switch} could be carried as {way}, for example {first}"
            remedy = f'"{switch}" = "{way}" in [source.type_map]; `venus check` then proves that the data fits'
            yield Finding(where="types", message=message, remedy=remedy)
