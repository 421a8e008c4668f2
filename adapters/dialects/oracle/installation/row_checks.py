"""What `venus check` finds in the rows of a table: values that cannot be carried, or not as they are.

A sample of each table shows frequent values. A type that cannot hold every value is proved: `check` and the
installation read every row once, before the table is captured.

In a database whose character set is not Unicode, the server converts texts for VENUS. It replaces bytes that the
character set does not define, without an error: typically those of a client that had set NLS_LANG to the database's own
character set. A round trip of the values shows such bytes. Texts of keys are read in full, because two keys must not
become one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.column_choice import WAY_OUT
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.dictionary.tables import OracleTable
from venus.adapters.dialects.oracle.dictionary.types import OracleDeclaredType
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.sql import literal, quote, statement
from venus.adapters.dialects.rows import ROW_BYTES_MAX
from venus.errors import SourceError
from venus.model import Finding

SAMPLE_ROWS = 20_000
#: A piece of a text fits a VARCHAR2 before and after its conversion; of a CLOB only the beginning is tried.
PIECE_CHARS, CLOB_CHARS = 1_000, 4_000
_CONVERTED = ("CHAR", "VARCHAR2", "CLOB")
LOBS = ("CLOB", "NCLOB", "BLOB")
#: What the findings say of values.
REPLACED = "bytes that {charset} does not define, and the server would replace them without an error"
TOO_LARGE = f"have more than the {ROW_BYTES_MAX >> 20} MiB of a row, and such a row halts its table"
_TEXTS = ("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "CLOB", "NCLOB")
_SAID = {
    "nul": "NUL characters, which no text of PostgreSQL can hold: such a row halts its table",
    "no_date": "dates without a year or month (of no calendar): such a row halts its table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterSets:
    """The character sets of a database; empty if it does not say."""

    database: str = ""
    national: str = ""

    @property
    def is_unicode(self) -> bool:
        """Whether VENUS gets every text as it is stored."""
        return self.database in ("", "AL32UTF8", "UTF8", "UTFE")


UNICODE = CharacterSets()


def read_character_sets(session: OracleSession) -> CharacterSets:
    """Read the character sets."""
    found = {str(name): str(value) for name, value in session.fetch_rows(statement("sampling", "character_sets"))}
    return CharacterSets(database=found.get("NLS_CHARACTERSET", ""), national=found.get("NLS_NCHAR_CHARACTERSET", ""))


def character_set_findings(sets: CharacterSets) -> Iterator[Finding]:
    """Yield the character sets, which decide what a text can hold."""
    if sets.database:
        message = f"{sets.database}, of national texts {sets.national}"
        yield Finding(where="character set", message=message)


def prove_rows(session: OracleSession, table: OracleTable, sets: CharacterSets) -> Iterator[Finding]:
    """Read every row of a table that is not captured yet, as far as a sample is not enough."""
    yield from prove_types(session, table)
    yield from prove_keys(session, table, sets)
    yield from count_large_rows(session, table)


def prove_keys(session: OracleSession, table: OracleTable, sets: CharacterSets) -> Iterator[Finding]:
    """Read the texts of all keys, if the server may replace bytes of them."""
    looked = {n: check for n, check in _replacement_checks(table, sets).items() if n in table.schema.key}
    yield from _every_row_findings(
        session, table, looked, "have " + REPLACED.format(charset=sets.database), blocks=True
    )


def count_large_rows(session: OracleSession, table: OracleTable) -> Iterator[Finding]:
    """Count the rows of a table that are larger than a message, by the lengths of their large values."""
    kinds = {name: reading.declared.data_type for name, reading in table.readings.items()}
    lobs = [name for name, kind in kinds.items() if kind in LOBS]
    lengths = " + ".join(statement("sampling", "length", c=f"T.{quote(name)}") for name in lobs)
    check = statement("sampling", "too_large", lengths=lengths, bytes=str(ROW_BYTES_MAX)) if lobs else ""
    looked = {", ".join(lobs): check} if lobs else {}
    yield from _every_row_findings(session, table, looked, TOO_LARGE, blocks=False)


def _every_row_findings(
    session: OracleSession, table: OracleTable, looked: Mapping[str, str], said: str, *, blocks: bool
) -> Iterator[Finding]:
    """Yield what is found in all rows by these checks of columns."""
    if not looked:
        return
    text = statement("sampling", "every_row", findings=",\n       ".join(looked.values()), table=table.keyed.sql)
    try:
        count, *found = session.fetch_row(text)
    except (SourceError, SchemaChanged):
        return  # `sample_findings` reports that its rows cannot be read
    for column, number in zip(looked, found, strict=True):
        if number:
            message = f"column {column}: {int(number):,} of {int(count):,} rows {said}"
            yield Finding(where=table.schema.qualified, message=message, remedy=WAY_OUT, blocks=blocks)


def _replacement_checks(table: OracleTable, sets: CharacterSets) -> dict[str, str]:
    """Return the check of each text of the database's character set; empty if that is Unicode."""
    if sets.is_unicode:
        return {}
    kinds = {name: reading.declared for name, reading in table.readings.items()}
    return {name: _replacement_check(name, d, sets) for name, d in kinds.items() if d.data_type in _CONVERTED}


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
    where = table.schema.qualified
    try:
        count, *found = session.fetch_row(sample_query(table, sets))
    except (SourceError, SchemaChanged) as error:
        remedy = f"GRANT SELECT ON {table.keyed.sql} TO {quote(user)};"
        yield Finding(where=where, message=f"its rows cannot be read: {error}", remedy=remedy, blocks=True)
        return
    for check, number in zip(checks, found, strict=True):
        if number:
            message = f"column {check.column}: {int(number)} of {int(count)} sampled rows have {check.said}"
            remedy = WAY_OUT if check.blocks else "correct these values, or exclude the table"
            yield Finding(where=where, message=message, remedy=remedy, blocks=check.blocks)


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
    """Return the query that checks some rows.

    It samples blocks if the statistics show many rows, and reads at most SAMPLE_ROWS rows in any case.
    """
    checks = _sample_checks(table, sets)
    percent = 100 * SAMPLE_ROWS / table.listed.rows if table.listed.rows else 100
    return statement(
        "sampling",
        "sampled",
        findings=",\n       ".join(check.sql for check in checks),
        columns=", ".join(quote(name) for name in dict.fromkeys(check.column for check in checks)),
        table=table.keyed.sql,
        sample=f" SAMPLE BLOCK ({percent:.6f})" if percent < 50 else "",
        rows=str(SAMPLE_ROWS),
    )


#: The requested type by the rule that would carry it (rows.py); these are also the blocks of proving.sql.
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
