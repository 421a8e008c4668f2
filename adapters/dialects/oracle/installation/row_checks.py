"""Checks of `venus check` on the rows of a table: values that cannot be carried, or only with changes.

A sample of each table shows frequent values. A type that cannot hold every value needs proof: `check` and the
installation read every row once, before the table is captured.

In a database whose character set is not Unicode, the server converts texts for VENUS. The server silently replaces
bytes that the character set does not define: typically bytes from a client that had set NLS_LANG to the database's own
character set. A conversion to UTF-8 and back shows undefined bytes. Texts of keys are read in full, because two keys
must not become one. Where the configuration names an encoding, a sample is fetched as bytes and decoded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

from venus.adapters.dialects import rows as limits
from venus.adapters.dialects.column_choice import WAY_OUT
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.dictionary.overrides import ENCODED
from venus.adapters.dialects.oracle.dictionary.tables import CharacterSets, OracleReading, OracleTable
from venus.adapters.dialects.oracle.dictionary.types import OracleDeclaredType
from venus.adapters.dialects.oracle.rows import canonical_texts
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.sql import literal, quote, statement
from venus.adapters.dialects.rows import LargeValues
from venus.errors import SourceError
from venus.model import Finding

SAMPLE_ROWS, FETCH_ROWS = 20_000, 500
#: A piece of a text fits a VARCHAR2 before and after its conversion; only the beginning of a CLOB is tried.
PIECE_CHARS, CLOB_CHARS = 1_000, 4_000
_CONVERTED = ("CHAR", "VARCHAR2", "CLOB")
LOBS = ("CLOB", "NCLOB", "BLOB")
#: Text of a finding about such values.
REPLACED = "bytes that {charset} does not define, and the server would replace them without an error"
#: The remedy for such values.
READ_BYTES = (
    f'"TABLE.COLUMN" = "{ENCODED}ENCODING" in [source.type_map] reads a CHAR or VARCHAR2 as bytes; or {WAY_OUT}'
)
_TEXTS = ("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "CLOB", "NCLOB")
_SAID = {
    "nul": "NUL characters, which no text of PostgreSQL can hold: such a row halts its table",
    "no_date": "dates without a year or month (of no calendar): such a row halts its table",
}


UNICODE = CharacterSets()


def character_set_findings(sets: CharacterSets) -> Iterator[Finding]:
    """Yield the character sets, which decide what a text can hold."""
    if sets.database:
        message = f"{sets.database}, of national texts {sets.national}"
        yield Finding(where="character set", message=message)


def prove_rows(session: OracleSession, table: OracleTable, sets: CharacterSets) -> Iterator[Finding]:
    """Yield the findings that need every row of a table, not only a sample; only for tables not captured yet."""
    yield from prove_types(session, table)
    yield from prove_keys(session, table, sets)


def prove_keys(session: OracleSession, table: OracleTable, sets: CharacterSets) -> Iterator[Finding]:
    """Yield the findings about the texts of all keys, if the server may replace bytes in them."""
    looked = {n: check for n, check in _replacement_checks(table, sets).items() if n in table.schema.key}
    if not looked:
        return
    try:
        count, *found = _count_in_every_row(session, table, looked.values())
    except (SourceError, SchemaChanged):
        return  # `sample_findings` reports that its rows cannot be read
    for column, number in zip(looked, found, strict=True):
        if number:
            said = REPLACED.format(charset=sets.database)
            message = f"column {column}: {int(number):,} of {int(count):,} rows have {said}"
            yield Finding(where=table.schema.qualified_name, message=message, remedy=READ_BYTES, blocks=True)


def find_large_values(session: OracleSession, tables: Iterable[OracleTable]) -> Iterator[LargeValues]:
    """Yield the tables with large objects. A row has the lengths of its LOBs, so no large value is read."""
    for table in tables:
        lobs = [name for name, reading in table.readings.items() if reading.declared.data_type in LOBS]
        lengths = " + ".join(statement("sampling", "length", c=f"T.{quote(name)}") for name in lobs)
        check = statement("sampling", "too_large", lengths=lengths, bytes=str(limits.ROW_BYTES_MAX))
        if lobs:
            count = partial(_count_in_every_row, session, table, [check])
            yield LargeValues(table=table.schema.qualified_name, columns=lobs, count=count)


def _count_in_every_row(session: OracleSession, table: OracleTable, checks: Iterable[str], _: float = 0.0) -> Row:
    """Return the number of all rows, and how many of them each check finds."""
    return session.fetch_row(
        statement("sampling", "every_row", findings=",\n       ".join(checks), table=table.keyed.sql)
    )


def _replacement_checks(table: OracleTable, sets: CharacterSets) -> dict[str, str]:
    """Return, by text column, the SQL that counts values with bytes that the server would replace."""
    if sets.is_unicode:
        return {}
    asked = {name: reading.declared for name, reading in table.readings.items() if not reading.mapping.encoding}
    return {name: _replacement_check(name, d, sets) for name, d in asked.items() if d.data_type in _CONVERTED}


def _replacement_check(name: str, declared: OracleDeclaredType, sets: CharacterSets) -> str:
    column = f"T.{quote(name)}"
    if declared.data_type == "CLOB":
        pieces = [f"DBMS_LOB.SUBSTR({column}, {PIECE_CHARS}, {n})" for n in range(1, CLOB_CHARS, PIECE_CHARS)]
    else:
        pieces = [f"SUBSTR({column}, {n}, {PIECE_CHARS})" for n in range(1, (declared.length or 1) + 1, PIECE_CHARS)]
    charset = literal(sets.database)
    differs = " OR ".join(statement("sampling", "round_trip", piece=piece, charset=charset) for piece in pieces)
    return statement("sampling", "replaced", differs=differs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampleCheck:
    """A count of unfit values of a column in a sample of its rows."""

    column: str
    sql: str
    said: str
    blocks: bool = False


def sample_findings(
    session: OracleSession, table: OracleTable, user: str, sets: CharacterSets = UNICODE
) -> Iterator[Finding]:
    """Yield the findings in a sample of a table's rows."""
    checks = _sample_checks(table, sets)
    if not checks:
        return
    where = table.schema.qualified_name
    try:
        count, *found = session.fetch_row(sample_query(table, sets))
        yield from _encoding_findings(session, table)
    except (SourceError, SchemaChanged) as error:
        remedy = f"GRANT SELECT ON {table.keyed.sql} TO {quote(user)};"
        yield Finding(where=where, message=f"its rows cannot be read: {error}", remedy=remedy, blocks=True)
        return
    for check, number in zip(checks, found, strict=True):
        if number:
            message = f"column {check.column}: {int(number)} of {int(count)} sampled rows have {check.said}"
            remedy = READ_BYTES if check.blocks else "correct these values, or exclude the table"
            yield Finding(where=where, message=message, remedy=remedy, blocks=check.blocks)


def _encoding_findings(session: OracleSession, table: OracleTable) -> Iterator[Finding]:
    """Yield the columns with sampled values that cannot be decoded in the configured encoding."""
    encoded = {name: reading for name, reading in table.readings.items() if reading.mapping.encoding}
    if not encoded:
        return
    count, unfit = 0, dict.fromkeys(encoded, 0)
    for piece in session.stream(encoded_query(table), None, FETCH_ROWS):
        count += len(piece)
        for (name, reading), values in zip(encoded.items(), zip(*piece, strict=True), strict=True):
            unfit[name] += sum(not _can_convert(reading, value) for value in values)
    for name, number in unfit.items():
        if number:
            what = f"bytes that are no characters in {encoded[name].mapping.encoding}, and such a row halts its table"
            message = f"column {name}: {number} of {count} sampled rows have {what}"
            remedy = f"name another encoding in [source.type_map], or correct these values; or {WAY_OUT}"
            yield Finding(where=table.schema.qualified_name, message=message, remedy=remedy, blocks=True)


def _can_convert(reading: OracleReading, value: object) -> bool:
    """Return whether a fetched value has a canonical text."""
    try:
        canonical_texts(reading.rule, [value])
    except SourceError:
        return False
    return True


def encoded_query(table: OracleTable) -> str:
    """Return the query that reads some values of the columns with a named encoding, as capture reads them."""
    encoded = [(quote(name), reading) for name, reading in table.readings.items() if reading.mapping.encoding]
    columns = ", ".join(f"{reading.expression(name)} AS C{n}" for n, (name, reading) in enumerate(encoded))
    rows = str(SAMPLE_ROWS)
    return statement(
        "sampling", "values", columns=columns, table=table.keyed.sql, sample=_sample_clause(table), rows=rows
    )


def _sample_clause(table: OracleTable) -> str:
    """Return the clause that samples about SAMPLE_ROWS rows of a large table; empty for a small one."""
    percent = 100 * SAMPLE_ROWS / table.listed.rows if table.listed.rows else 100
    return f" SAMPLE BLOCK ({percent:.6f})" if percent < 50 else ""


def _sample_checks(table: OracleTable, sets: CharacterSets) -> list[_SampleCheck]:
    kinds = {name: reading.declared.data_type for name, reading in table.readings.items()}
    blocks = {name: "nul" if kind in _TEXTS else "no_date" for name, kind in kinds.items() if kind in (*_TEXTS, "DATE")}
    checks = [
        _SampleCheck(column=name, sql=statement("sampling", block, c=f"T.{quote(name)}"), said=_SAID[block])
        for name, block in blocks.items()
    ]
    said = REPLACED.format(charset=sets.database)
    replaced = _replacement_checks(table, sets)
    return checks + [_SampleCheck(column=n, sql=sql, said=said, blocks=True) for n, sql in replaced.items()]


def sample_query(table: OracleTable, sets: CharacterSets = UNICODE) -> str:
    """Return the query that counts unfit values of each column in a sample of a table's rows.

    The query samples blocks if the statistics show many rows, and reads at most SAMPLE_ROWS rows in any case.
    """
    checks = _sample_checks(table, sets)
    return statement(
        "sampling",
        "sampled",
        findings=",\n       ".join(check.sql for check in checks),
        columns=", ".join(quote(name) for name in dict.fromkeys(check.column for check in checks)),
        table=table.keyed.sql,
        sample=_sample_clause(table),
        rows=str(SAMPLE_ROWS),
    )


#: The requested type, by the rule of rows.py for it; the rules are also the names of blocks in proving.sql.
_RULES = {"uuid": "uuid", "whole": "bigint", "flag": "boolean"}
_MUST = {
    "uuid": "do not have 16 bytes",
    "bigint": "are not whole numbers of 64 bits",
    "boolean": "are neither 0 nor 1",
}


def prove_types(session: OracleSession, table: OracleTable) -> Iterator[Finding]:
    """Yield findings from all rows of a table, if a requested type may not hold every value of its column."""
    asked = columns_to_prove(table)
    if not asked:
        return
    where = table.schema.qualified_name
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
    """Return whether the declared type guarantees that every value fits the requested type."""
    declared = table.readings[column].declared
    return way == "bigint" and declared.scale == 0 and declared.precision is not None and declared.precision <= 18


def proof_query(table: OracleTable, asked: Seq[tuple[str, str]]) -> str:
    """Return the query that counts the values that do not fit the type that is requested for each column."""
    unfit = [statement("proving", way, c=f"T.{quote(column)}") for column, way in asked]
    return statement("proving", "proof", unfit=",\n       ".join(unfit), table=table.keyed.sql)
