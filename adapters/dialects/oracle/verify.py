"""An Oracle database as a side of a comparison (see dialects/verifying.py): VENUS reads rows and computes checksums.

Oracle computes no checksums: `||` ends at 4,000 bytes, STANDARD_HASH takes no LOB, and neither could be tried on an
Oracle yet. So a comparison reads the rows with the same expressions as capture. It was run on the stand-in
(tests/support/oracle_standin.py), never on an Oracle. A LOB that is written only through its locator fires no trigger
and appears here as a capture fault (capture.md 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing
from decimal import Decimal
from typing import Any

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.forms import ReadsRows, key_forms, range_condition, where_of
from venus.adapters.dialects.halting import UnfitRow
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.driver import Driver, driver_of
from venus.adapters.dialects.oracle.names import log_keys, quoted
from venus.adapters.dialects.oracle.reading import PIECE_ROWS, Access, access_to, portions, sections_of
from venus.adapters.dialects.oracle.source import OracleSource, open_source
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.tables import Reading
from venus.adapters.dialects.oracle.values import texts
from venus.adapters.dialects.verifying import AnotherTable, Key, Slice, Style, Subject, style_of
from venus.codec.changes import TableChanges
from venus.codec.schema import fingerprint
from venus.config import Settings
from venus.errors import Refused
from venus.model import Kind, LogicalType, Sequence

SECTION_BYTES = 1 << 30
#: The greatest size of the rows read at a time, unless it is a single row.
PORTION_BYTES = 16 << 20
#: The number of keys in one statement: each is a separate condition with bind values.
KEYS_AT_ONCE = 100


class OracleReader(ReadsRows):
    """Reader of a comparison: one session reads, another writes into the log."""

    def __init__(self, driver: Driver, source: OracleSource) -> None:
        self._session = Session(driver)
        self._writer = Session(driver)
        self._source = source
        self._accesses: dict[int, Access] = {}
        self._refused: dict[int, str] = {}

    def close(self) -> None:
        self._session.close()
        self._writer.close()
        self._source.close()

    def begin(self, subject: Subject) -> None:
        access = self._access(subject)
        self.end()
        if access.archived:
            self._session.run(statement("cut", "see_archived"))
        self._session.run(statement("verify", "begin"))

    def end(self) -> None:
        self._session.rollback()

    def tables(self) -> list[RegisteredTable]:
        found = registry.read_tables(self._session)
        released = registry.read_tables(self._session, released=True)
        return [c.table for c in (found | released).values() if not c.is_unfinished]

    def _access(self, subject: Subject) -> Access:
        table_id = subject.schema.table_id
        if table_id not in self._accesses:
            self._accesses = self._read_dictionary()
        if reason := self._refused.get(table_id):
            raise Refused(f"{subject.schema.qualified}: {reason}", hint="`venus check` says what to do")
        access = self._accesses.get(table_id)
        if access is None or access.layout.schema.version != subject.schema.version:
            self._accesses.clear()
            raise AnotherTable.instead_of(subject)
        return access

    def _read_dictionary(self) -> dict[int, Access]:
        dictionary = self._source._database()[1]  # with the types of the configuration
        listed = {(t.owner, t.name): t for t in dictionary.listed()}
        found = {}
        for table_id, captured in registry.read_tables(self._session).items():
            at = listed.get((captured.schema.namespace, captured.schema.name))
            table = dictionary.table(at, captured.schema, captured.number_max) if at else None
            if table is not None and table.refused:
                self._refused[table_id] = table.refused[0]
            elif table is not None and fingerprint(table.schema) == fingerprint(captured.schema):
                found[table_id] = access_to(table)
        return found

    # -- extent --------------------------------------------------------------------------------------------------

    def estimate(self, subject: Subject) -> int:
        return int(self._session.row(statement("verify", "estimate", table=self._access(subject).table_sql))[0])

    def cuts(self, subject: Subject, rows: int) -> list[int]:
        parts = {"table": self._access(subject).table_sql, "key": f"T.{quoted(subject.schema.key[0])}"}
        text = statement("verify", "cuts", where=where_of(subject), rows=str(rows), **parts)
        return sorted({int(k) for (k,) in self._session.rows(text)})

    # -- rows ------------------------------------------------------------------------------------------------------

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        key = f"T.{quoted(subject.schema.key[0])}"
        where = range_condition(subject, key, part, buckets) if part.step else where_of(subject)
        if rows_max:
            where = f"{where} AND ROWNUM <= {rows_max}"
        yield from self._read(subject, where, {})

    def find(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        columns = [f"T.{quoted(name)}" for name in subject.schema.key]
        for first in range(0, len(keys), KEYS_AT_ONCE):
            where, binds = self._keyed(subject, columns, keys[first : first + KEYS_AT_ONCE])
            yield from self._read(subject, where, binds)

    def _read(self, subject: Subject, where: str, binds: dict[str, Any]) -> Iterator[TableChanges]:
        access = self._access(subject)
        read = [
            r.expression(f"T.{quoted(c.name)}") for r, c in zip(access.readings, access.layout.columns, strict=True)
        ]
        columns = ", ".join(f"{expression} AS V{n}" for n, expression in enumerate(read, 1))
        parts = {"columns": columns, "lobs": access.lobs_sql, "table": access.table_sql, "where": where}
        pieces = self._session.stream(statement("verify", "rows", **parts), binds, access.piece)
        limits = {"rows_max": PIECE_ROWS, "bytes_max": PORTION_BYTES}
        try:
            with closing(pieces):
                for rows in portions(pieces, access, self._session.lob, **limits):
                    yield from sections_of(rows, access, bytes_max=SECTION_BYTES)
        except UnfitRow as unfit:
            hint = "correct the row, or exclude its column or the table"
            raise Refused(f"{subject.schema.qualified}: {unfit}", hint=hint) from unfit

    def _keyed(self, subject: Subject, columns: Seq[str], keys: Seq[Key]) -> tuple[str, dict[str, Any]]:
        """Return the condition for rows of the table or of its log that have one of these keys."""
        access, types = self._access(subject), [c.type for c in subject.schema.wire_columns]
        binds: dict[str, Any] = {}
        cases = []
        for key in keys:
            case = []
            for column, reading, kind, text in zip(columns, access.readings, types, key, strict=False):
                name = f"p{len(binds) + 1}"
                binds[name] = bound(reading, kind, text)
                case.append(f"{column} = {reading.bind(name)}")
            cases.append(f"({' AND '.join(case)})")
        return f"({' OR '.join(cases)})", binds

    # -- the log -----------------------------------------------------------------------------------------------------

    def next_sequence(self) -> Sequence:
        return registry.state_of(self._session.row(statement("registry", "state"))).next_sequence

    def waiting(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        schema = subject.schema
        noted = self._session.rows(statement("registry", "ddl_rows"))
        if not keys or any((owner, name) == (schema.namespace, schema.name) for _, _, owner, name, _ in noted):
            return set(keys)
        access, logged = self._access(subject), log_keys(len(schema.key))
        columns = [r.logged(f"G.{k}") for r, k in zip(access.readings, logged, strict=False)]
        expressions = [r.expression(c) for r, c in zip(access.readings, columns, strict=False)]
        parts = {"keys": ", ".join(expressions), "log": self._log(access)}
        found: set[Key] = set()
        for first in range(0, len(keys), KEYS_AT_ONCE):
            where, binds = self._keyed(subject, columns, keys[first : first + KEYS_AT_ONCE])
            rows = self._session.rows(statement("verify", "waiting", where=where, **parts), binds)
            found |= _keys_of(subject, access, rows)
        return found

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        access, types = self._access(subject), [c.type for c in subject.schema.wire_columns]
        values = [r.bind(n) for n, r in enumerate(access.readings[: access.layout.key_count], 1)]
        names = ", ".join(log_keys(access.layout.key_count))
        text = statement("verify", "touch", log=self._log(access), keys=names, values=", ".join(values))
        rows = [[bound(r, t, form) for r, t, form in zip(access.readings, types, key, strict=False)] for key in keys]
        with self._writer.transaction():
            self._writer.many(text, rows)

    @staticmethod
    def _log(access: Access) -> str:
        if not access.log:
            raise Refused(
                "a table that is captured inline has no log that shows which changes are still on their way",
                hint="use --leg target",
            )
        return access.log


def bound(reading: Reading, kind: LogicalType, text: str) -> Any:
    """Return the object to bind for a form of a key."""
    if style_of(kind) is Style.HEX:
        return bytes.fromhex(text)
    if kind.kind is Kind.UUID:
        return bytes.fromhex(text.replace("-", ""))
    if reading.mapping.text in ("number", "whole"):
        return Decimal(text)
    if reading.mapping.text == "text":
        return reading.bindable(text)  # without the blanks of a CHAR, which the statement adds
    is_bc, moment = text.endswith(" BC"), text.removesuffix(" BC")
    return f"{'-' if is_bc else ' '}{moment}"  # in the format of SYYYY


def _keys_of(subject: Subject, access: Access, rows: Seq[tuple[Any, ...]]) -> set[Key]:
    """Return fetched log keys as forms."""
    if not rows:
        return set()
    columns = [
        texts(reading.mapping.text, column, described.type.scale)
        for reading, column, described in zip(
            access.readings, zip(*rows, strict=True), access.layout.columns, strict=False
        )
    ]
    return set(key_forms(columns, subject.schema))


def open_reader(settings: Settings) -> OracleReader:
    """Connect to the source of the settings."""
    return OracleReader(driver_of(settings.source.url.get_secret_value())[0], open_source(settings))
