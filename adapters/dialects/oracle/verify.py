"""An Oracle database as a side of a comparison (dialects/verify_contract.py): VENUS reads rows and computes checksums.

VENUS does not let Oracle compute checksums: `||` ends at 4,000 bytes, STANDARD_HASH accepts no LOB, and neither has
been tried on a real Oracle yet. So a comparison reads the rows with the same expressions as capture. So far comparisons
were run only on the stand-in (tests/support/oracle/standin.py), not yet on a real Oracle. A write through a LOB's
locator fires no trigger, and appears here as a capture fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing
from decimal import Decimal
from typing import Any

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary.tables import OracleReading
from venus.adapters.dialects.oracle.rows import PIECE_ROWS, OracleAccess, build_access, canonical_texts, regroup_rows
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import Driver, parse_driver_url
from venus.adapters.dialects.oracle.source import OracleSource, open_source
from venus.adapters.dialects.oracle.sql import log_key_columns, quote, statement
from venus.adapters.dialects.registry_rules import UnfitRow, source_state
from venus.adapters.dialects.verify_contract import (
    FormStyle,
    Key,
    RowReader,
    Slice,
    Subject,
    TableReplaced,
    key_forms,
    range_condition,
    row_condition,
    style_of,
)
from venus.codec.batch import TableChanges
from venus.codec.schema import fingerprint
from venus.config import Settings
from venus.errors import Refused
from venus.model import Kind, LogicalType, Sequence

SECTION_BYTES = 1 << 30
#: The greatest size of the rows read at a time, unless it is a single row.
PORTION_BYTES = 16 << 20
#: The number of keys in one statement: each is a separate condition with bind values.
KEYS_AT_ONCE = 100


class OracleReader(RowReader):
    """Reader of an Oracle source for a comparison: one session has the snapshot, another writes into the log."""

    def __init__(self, driver: Driver, source: OracleSource) -> None:
        self._session = OracleSession(driver)
        self._writer = OracleSession(driver)
        self._source = source
        self._accesses: dict[int, OracleAccess] = {}
        self._refused: dict[int, str] = {}

    def close(self) -> None:
        self._session.close()
        self._writer.close()
        self._source.close()

    def begin(self, subject: Subject) -> None:
        access = self._find_access(subject)
        self.end()
        if access.archived:
            self._session.run(statement("cut", "see_archived"))
        self._session.run(statement("verify", "begin"))

    def end(self) -> None:
        self._session.rollback()

    def read_tables(self) -> list[RegisteredTable]:
        found = registry.read_tables(self._session)
        released = registry.read_tables(self._session, released=True)
        return [c.table for c in (found | released).values() if not c.is_unfinished]

    def _find_access(self, subject: Subject) -> OracleAccess:
        """Return how to read a captured table. Raises Refused, or TableReplaced if the table's version differs."""
        table_id = subject.schema.table_id
        if table_id not in self._accesses:
            self._accesses = self._read_dictionary()
        if reason := self._refused.get(table_id):
            raise Refused(f"{subject.schema.qualified_name}: {reason}", hint="`venus check` says what to do")
        access = self._accesses.get(table_id)
        if access is None or access.layout.schema.version != subject.schema.version:
            self._accesses.clear()
            raise TableReplaced.for_subject(subject)
        return access

    def _read_dictionary(self) -> dict[int, OracleAccess]:
        """Return how to read each captured table that still has its registered version."""
        dictionary = self._source.database.dictionary  # with the configured column types
        listed = {(t.owner, t.name): t for t in dictionary.list_tables()}
        found = {}
        for table_id, captured in registry.read_tables(self._session).items():
            at = listed.get((captured.schema.namespace, captured.schema.name))
            table = dictionary.read_table(at, captured.schema, captured.number_max) if at else None
            if table is not None and table.refusals:
                self._refused[table_id] = table.refusals[0]
            elif table is not None and fingerprint(table.schema) == fingerprint(captured.schema):
                found[table_id] = build_access(table)
        return found

    # -- extent --------------------------------------------------------------------------------------------------

    def estimate_rows(self, subject: Subject) -> int:
        return int(
            self._session.fetch_row(statement("verify", "estimate", table=self._find_access(subject).table_sql))[0]
        )

    def read_split_points(self, subject: Subject, rows: int) -> list[int]:
        parts = {"table": self._find_access(subject).table_sql, "key": f"T.{quote(subject.schema.key[0])}"}
        text = statement("verify", "cuts", where=row_condition(subject), rows=str(rows), **parts)
        return sorted({int(k) for (k,) in self._session.fetch_rows(text)})

    # -- rows ------------------------------------------------------------------------------------------------------

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        key = f"T.{quote(subject.schema.key[0])}"
        where = range_condition(subject, key, part, buckets) if part.step else row_condition(subject)
        if rows_max:
            where = f"{where} AND ROWNUM <= {rows_max}"
        yield from self._read_rows(subject, where, {})

    def find_rows(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        columns = [f"T.{quote(name)}" for name in subject.schema.key]
        for first in range(0, len(keys), KEYS_AT_ONCE):
            where, binds = self._key_condition(subject, columns, keys[first : first + KEYS_AT_ONCE])
            yield from self._read_rows(subject, where, binds)

    def _read_rows(self, subject: Subject, where: str, binds: dict[str, Any]) -> Iterator[TableChanges]:
        access = self._find_access(subject)
        read = [r.expression(f"T.{quote(c.name)}") for r, c in zip(access.readings, access.layout.columns, strict=True)]
        columns = ", ".join(f"{expression} AS V{n}" for n, expression in enumerate(read, 1))
        parts = {"columns": columns, "lobs": access.lobs_sql, "table": access.table_sql, "where": where}
        pieces = self._session.stream(statement("verify", "rows", **parts), binds, access.piece)
        limits = {"rows_max": PIECE_ROWS, "bytes_max": PORTION_BYTES}
        try:
            with closing(pieces):
                for rows in regroup_rows(pieces, access, self._session.read_lob, **limits):
                    yield from access.build_sections(rows, bytes_max=SECTION_BYTES)
        except UnfitRow as unfit:
            hint = "correct the row, or exclude its column or the table"
            raise Refused(f"{subject.schema.qualified_name}: {unfit}", hint=hint) from unfit

    def _key_condition(self, subject: Subject, columns: Seq[str], keys: Seq[Key]) -> tuple[str, dict[str, Any]]:
        """Return the condition for rows of the table or of its log that have one of these keys."""
        access, types = self._find_access(subject), [c.type for c in subject.schema.wire_columns]
        binds: dict[str, Any] = {}
        cases = []
        for key in keys:
            case = []
            for column, reading, kind, text in zip(columns, access.readings, types, key, strict=False):
                name = f"p{len(binds) + 1}"
                binds[name] = bind_value(reading, kind, text)
                case.append(f"{column} = {reading.bind_expression(name)}")
            cases.append(f"({' AND '.join(case)})")
        return f"({' OR '.join(cases)})", binds

    # -- the log -----------------------------------------------------------------------------------------------------

    def read_next_sequence(self) -> Sequence:
        return source_state(self._session.fetch_row(statement("registry", "state"))).next_sequence

    def find_waiting_keys(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        """Return the keys that are in the log; all of them if a DDL statement on the table is recorded."""
        schema = subject.schema
        noted = self._session.fetch_rows(statement("registry", "ddl_rows"))
        if not keys or any((owner, name) == (schema.namespace, schema.name) for _, _, owner, name, _ in noted):
            return set(keys)
        access, logged = self._find_access(subject), log_key_columns(len(schema.key))
        columns = [r.cast_logged(f"G.{k}") for r, k in zip(access.readings, logged, strict=False)]
        expressions = [r.expression(c) for r, c in zip(access.readings, columns, strict=False)]
        parts = {"keys": ", ".join(expressions), "log": self._require_log_table(access)}
        found: set[Key] = set()
        for first in range(0, len(keys), KEYS_AT_ONCE):
            where, binds = self._key_condition(subject, columns, keys[first : first + KEYS_AT_ONCE])
            rows = self._session.fetch_rows(statement("verify", "waiting", where=where, **parts), binds)
            found |= _log_keys(subject, access, rows)
        return found

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        access, types = self._find_access(subject), [c.type for c in subject.schema.wire_columns]
        values = [r.bind_expression(n) for n, r in enumerate(access.readings[: access.layout.key_count], 1)]
        names = ", ".join(log_key_columns(access.layout.key_count))
        text = statement("verify", "touch", log=self._require_log_table(access), keys=names, values=", ".join(values))
        rows = [
            [bind_value(r, t, form) for r, t, form in zip(access.readings, types, key, strict=False)] for key in keys
        ]
        with self._writer.transaction():
            self._writer.run_many(text, rows)

    @staticmethod
    def _require_log_table(access: OracleAccess) -> str:
        """Return the log of a table. Raises Refused if the table is captured inline, without a log."""
        if not access.log:
            raise Refused(
                "a table that is captured inline has no log that shows which changes are still on their way",
                hint="use --leg target",
            )
        return access.log


def bind_value(reading: OracleReading, kind: LogicalType, text: str) -> Any:
    """Return the object to bind for a key value that is given as a form, the text that is compared."""
    if style_of(kind) is FormStyle.HEX:
        return bytes.fromhex(text)
    if kind.kind is Kind.UUID:
        return bytes.fromhex(text.replace("-", ""))
    if reading.mapping.text in ("number", "whole"):
        return Decimal(text)
    if encoding := reading.mapping.encoding:
        return text.encode(encoding, "backslashreplace")  # no row has a key with other characters
    if reading.mapping.text == "text":
        return reading.bind_value(text)  # without the blanks of a CHAR, which the statement adds
    is_bc, moment = text.endswith(" BC"), text.removesuffix(" BC")
    return f"{'-' if is_bc else ' '}{moment}"  # in the format of SYYYY


def _log_keys(subject: Subject, access: OracleAccess, rows: Seq[tuple[Any, ...]]) -> set[Key]:
    """Convert keys fetched from a log to forms, the texts that are compared."""
    if not rows:
        return set()
    columns = [
        canonical_texts(reading.rule, column, described.type.scale)
        for reading, column, described in zip(
            access.readings, zip(*rows, strict=True), access.layout.columns, strict=False
        )
    ]
    return set(key_forms(columns, subject.schema))


def open_reader(settings: Settings) -> OracleReader:
    """Connect to the source of the settings."""
    return OracleReader(parse_driver_url(settings.source.url.get_secret_value())[0], open_source(settings))
