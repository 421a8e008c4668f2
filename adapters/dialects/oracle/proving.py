"""Whether the rows that there are fit the types that somebody has asked for: read, not sampled. Reads only.

A type that cannot hold every value is a table that halts on the first night. So `check`, and the installation, read
every row of a table before it is captured, once for all columns that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.names import quoted
from venus.adapters.dialects.oracle.overrides import SWITCHES, fits
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.tables import Table
from venus.errors import SourceError
from venus.model import Finding

#: What is wrong with a value, by the rule that would carry it (values.py): the blocks of proving.sql.
_RULES = {"uuid": "uuid", "whole": "bigint", "flag": "boolean"}
_MUST = {
    "uuid": "have not 16 bytes",
    "bigint": "are no whole numbers of 64 bits",
    "boolean": "are neither 0 nor 1",
}


def proof(session: Session, table: Table) -> Iterator[Finding]:
    """Read a table, if a column of it is asked for as something that might not hold every value."""
    asked = asked_of(table)
    if not asked:
        return
    where = table.schema.qualified
    try:
        count, *unfit = session.row(query(table, asked))
    except (SourceError, SchemaChanged):
        return  # `rows_findings` says that its rows cannot be read
    for (column, way), number in zip(asked, unfit, strict=True):
        if number:
            message = f"column {column} cannot travel as {way}: {int(number):,} of {int(count):,} values {_MUST[way]}"
            remedy = f'"{where}.{column}" = "usual" in [source.type_map]'
            yield Finding(where=where, message=message, remedy=remedy, blocks=True)
        else:
            message = f"column {column} fits {way}: all {int(count):,} rows were read"
            yield Finding(where=where, message=message)


def asked_of(table: Table) -> list[tuple[str, str]]:
    """Return the columns whose type does not say already that every value fits, and what they are to be."""
    ways = [(name, _RULES.get(reading.mapping.text, "")) for name, reading in table.readings.items()]
    return [(name, way) for name, way in ways if way and not _is_certain(table, name, way)]


def _is_certain(table: Table, column: str, way: str) -> bool:
    declared = table.readings[column].declared
    return way == "bigint" and declared.scale == 0 and declared.precision is not None and declared.precision <= 18


def query(table: Table, asked: Seq[tuple[str, str]]) -> str:
    """Return what counts the values that do not fit."""
    unfit = [statement("proving", way, c=f"T.{quoted(column)}") for column, way in asked]
    return statement("proving", "proof", unfit=",\n       ".join(unfit), table=table.keyed.sql)


def offers(tables: Seq[Table]) -> Iterator[Finding]:
    """Name the switches that nobody has asked for and that some columns could take."""
    for switch, way in SWITCHES.items():
        places = {
            table.schema.qualified: [
                name
                for name, reading in table.readings.items()
                if fits(switch, reading.declared) and reading.mapping.text in ("octets", "number")
                and (way == "uuid" or reading.declared.precision is None)
            ]
            for table in tables
        }  # fmt: skip
        count = sum(map(len, places.values()))
        if count:
            first = next(f"{table}.{columns[0]}" for table, columns in places.items() if columns)
            message = f"{count} columns of type {switch} could travel as {way}, {first} for one"
            remedy = f'"{switch}" = "{way}" in [source.type_map]; `venus check` then proves that the data fits'
            yield Finding(where="types", message=message, remedy=remedy)
