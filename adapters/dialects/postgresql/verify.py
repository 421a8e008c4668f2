"""PostgreSQL as one side of a comparison, source or target (see dialects/verify_contract.py).

The form of a value is the output text of its type, which is also the canonical text. Only CHAR, BOOL, bytea and
numbers without a scale need an expression. MD5 hashes bytes in the server's encoding: if an encoding other than UTF-8
changes checksums, calibration fails, and the table is compared row by row.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.registry import PostgresCapturedTable
from venus.adapters.dialects.postgresql.sql import literal, log_key_columns, log_table_name, quote, statement
from venus.adapters.dialects.verify_contract import (
    HEX_DIGITS,
    NULL,
    SEPARATOR,
    ChecksumReader,
    FormStyle,
    Key,
    Slice,
    Subject,
    TableReplaced,
    row_condition,
    style_of,
)
from venus.codec.batch import TableChanges
from venus.codec.copy_text import from_copy
from venus.codec.row_bytes import Layout
from venus.config import Settings
from venus.model import Kind, LogicalType, Sequence

#: How many blocks of a table are read at a time, 8 MiB.
PIECE_BLOCKS = 1024
#: For larger tables, a sample of the pages decides where to split.
EXACT_CUTS_ROWS = 5_000_000
SAMPLED_ROWS = 1_000_000
_SEPARATOR, _NULL = (f"E'\\x{ord(c):02x}'" for c in (SEPARATOR, NULL))


class VerifySession(Protocol):
    """The common operations of source and target sessions."""

    def run(self, text: str, params: Any = None) -> int: ...
    def rows(self, text: str, params: Any = None) -> list[tuple[Any, ...]]: ...
    def literal(self, text: str, params: Any) -> str: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTableNames:
    """Quoted names of a table and its columns in this database. Columns are in wire order."""

    relation: str  # in a FROM clause
    relation_name: str  # for ::regclass
    columns: tuple[str, ...]
    casts: tuple[str, ...]  # the types of the key's columns
    equals: tuple[str, ...]  # their qualified operators, because an extension's may not be in search_path


def form_sql(kind: LogicalType, column: str, *, bare: bool = False) -> str:
    """Return SQL for the form of a column, the text that is compared. `bare`: omit the length prefix."""
    style = style_of(kind)
    text = f"{column}::text"
    if style is FormStyle.HEX:
        text = f"encode({column}, 'hex')"
    elif style is FormStyle.NUMBER:
        text = f"trim_scale({column})::text"
    elif kind.kind is Kind.BOOL:
        text = f"left({column}::text, 1)"
    elif kind.kind is Kind.NATIVE:
        # a cast to text may differ from the output text: that of inet adds the length of the mask
        text = f"CASE WHEN {column} IS NOT NULL THEN concat({column}) END"
    if style in (FormStyle.FREE, FormStyle.PADDED) and not bare:
        text = f"octet_length({text})::text || ':' || {text}"
    return f"coalesce({text}, {_NULL})"


def checksum_sql(text: str, digest: str) -> str:
    """Return the SQL of a text's checksum."""
    hashed = f"md5({text})" if digest == "md5" else f"encode(sha256(convert_to({text}, 'UTF8')), 'hex')"
    return f"('x' || substr({hashed}, 1, {HEX_DIGITS}))::bit({4 * HEX_DIGITS})::bigint"


class PostgresReader(ChecksumReader):
    """Reader of a database in a comparison, over one session; `named` supplies the names of a table."""

    def __init__(
        self, session: VerifySession, named: Callable[[Subject], PostgresTableNames], copy: Callable[[str], bytes]
    ) -> None:
        self._session = session
        self._named = named
        self._copy = copy
        session.run(statement("verify", "session"))

    def close(self) -> None:
        self._session.rollback()
        self._session.close()

    def begin(self, subject: Subject) -> None:
        self._session.rollback()
        self._session.run(statement("verify", "begin", relation=self._named(subject).relation))

    def end(self) -> None:
        self._session.rollback()

    # -- tables and sizes -------------------------------------------------------------------------------------------

    def estimate_rows(self, subject: Subject) -> int:
        relation_name = self._named(subject).relation_name
        return int(self._session.rows(statement("verify", "estimate", relation_name=relation_name))[0][0])

    def read_split_points(self, subject: Subject, rows: int) -> list[int]:
        named = self._named(subject)
        parts = {"relation": named.relation, "key": f"t.{named.columns[0]}", "where": row_condition(subject)}
        estimate = self.estimate_rows(subject)
        if estimate <= EXACT_CUTS_ROWS:
            text = statement("verify", "cuts", rows=str(rows), **parts)
        else:
            share = SAMPLED_ROWS / estimate
            rows_in_share = str(max(1, int(rows * share)))
            text = statement("verify", "sampled_cuts", percent=f"{100 * share:.6f}", rows=rows_in_share, **parts)
        return sorted({int(k) for (k,) in self._session.rows(text) if k is not None})

    # -- checksums -------------------------------------------------------------------------------------------------

    def _query(self, block: str, subject: Subject, **parts: str) -> list[tuple[Any, ...]]:
        return self._session.rows(statement("verify", block, relation=self._named(subject).relation, **parts))

    def _form_terms(self, subject: Subject, *, bare: bool = False) -> list[str]:
        pairs = zip(subject.schema.wire_columns, self._named(subject).columns, strict=True)
        return [form_sql(c.type, f"t.{name}", bare=bare) for c, name in pairs]

    def _checksum_term(self, subject: Subject, forms: Seq[str]) -> str:
        return checksum_sql(f" || {_SEPARATOR} || ".join(forms), subject.digest)

    def _leading_key(self, subject: Subject) -> str:
        return f"t.{self._named(subject).columns[0]}"

    def _range_bucket(self, key: str, part: Slice) -> str:
        inside = f"least(greatest({key}::bigint, {part.origin}::bigint), {part.end}::bigint)"
        return f"(({inside} - {part.origin}::bigint) / {part.step}::bigint)"

    # -- rows ------------------------------------------------------------------------------------------------------

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        named = self._named(subject)
        parts = {
            "columns": ", ".join(f"t.{c}" for c in named.columns),
            "relation": named.relation,
            "limit": f" LIMIT {rows_max}" if rows_max else "",
        }
        if part.step or rows_max:
            where = self._slice_condition(subject, part, buckets) if part.step else row_condition(subject)
            yield from self._read_section(subject, statement("verify", "rows", where=where, **parts))
            return
        blocks = int(self._session.rows(statement("verify", "blocks", relation_name=named.relation_name))[0][0])
        for low in range(0, blocks, PIECE_BLOCKS):
            piece = f"t.ctid >= '({low},0)' AND t.ctid < '({low + PIECE_BLOCKS},0)' AND {row_condition(subject)}"
            yield from self._read_section(subject, statement("verify", "rows", where=piece, **parts))

    def find_rows(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        named, parts = self._named(subject), self._key_parts(subject, keys)
        columns = ", ".join(f"t.{c}" for c in named.columns)
        yield from self._read_section(
            subject, statement("verify", "found", columns=columns, relation=named.relation, **parts)
        )

    def _read_section(self, subject: Subject, text: str) -> Iterator[TableChanges]:
        """Yield the rows of a query as one section; nothing if there are none."""
        record_ids, rows, is_deleted = from_copy(self._copy(text), Layout.of(subject.schema), flagged=False)
        if len(record_ids):
            yield TableChanges(
                table_id=subject.schema.table_id,
                schema_version=subject.schema.version,
                record_ids=record_ids,
                rows=rows,
                is_deleted=is_deleted,
            )

    def _key_parts(self, subject: Subject, keys: Seq[Key]) -> dict[str, str]:
        """Return the parts of a query that joins a table with these keys."""
        named = self._named(subject)
        values = key_values(subject, named.casts)
        pairs = zip(named.columns, named.equals, values, strict=False)
        match = [f"t.{column} OPERATOR({equals}) {value}" for column, equals, value in pairs]
        return {"match": " AND ".join(match)} | self._array_parts(keys)

    def _array_parts(self, keys: Seq[Key]) -> dict[str, str]:
        """Return the values of these keys as one array for each column, and the columns' names."""
        columns = [list(column) for column in zip(*keys, strict=True)]
        arrays = [self._session.literal("%s::text[]", [column]) for column in columns]
        return {"arrays": ", ".join(arrays), "names": ", ".join(f"v{n}" for n in range(1, len(columns) + 1))}


class PostgresSourceReader(PostgresReader):
    """Reader of the source in a comparison, which also reads the log and writes keys into it."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._captured: dict[int, PostgresCapturedTable] = {}
        super().__init__(connection, self._source_names, self._copy_text)

    def _copy_text(self, text: str) -> bytes:
        """Return the output of a COPY statement."""
        into = io.BytesIO()
        self._connection.copy_out(text, into)
        return into.getvalue()

    def read_tables(self) -> list[RegisteredTable]:
        registry.require_installation(self._connection)
        self._captured = {c.schema.table_id: c for c in registry.load_captured_tables(self._connection)[0]}
        released = registry.read_registered_tables(self._connection, released=True)
        return [*(c.registered for c in self._captured.values()), *(t for t, _ in released)]

    def _source_names(self, subject: Subject) -> PostgresTableNames:
        """Return the names of a captured table. Raises TableReplaced if the table's version differs."""
        if not self._captured:
            self.read_tables()
        captured = self._captured.get(subject.schema.table_id)
        if (
            captured is None
            or captured.table is None
            or not captured.usable
            or captured.schema.version != subject.schema.version
        ):
            raise TableReplaced.for_subject(subject)
        table = captured.table
        return PostgresTableNames(
            relation=table.from_sql,
            relation_name=literal(table.name_sql),
            columns=tuple(quote(c.name) for c in subject.schema.wire_columns),
            casts=tuple(k.log_type for k in table.key),
            equals=tuple(k.equals for k in table.key),
        )

    def read_next_sequence(self) -> Sequence:
        return Sequence(int(self._connection.row(statement("verify", "next_sequence"))[0]))

    def find_waiting_keys(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        log = log_table_name(subject.schema.table_id)
        if not keys or self._connection.row(statement("verify", "whole_table_waits", log=log))[0]:
            return set(keys)
        named = self._source_names(subject)
        triples = zip(log_key_columns(len(named.casts)), named.equals, key_values(subject, named.casts), strict=True)
        match = " AND ".join(f"l.{key} OPERATOR({equals}) {value}" for key, equals, value in triples)
        rows = self._session.rows(statement("verify", "waiting", log=log, match=match, **self._array_parts(keys)))
        return {tuple(row) for row in rows}

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        values = key_values(subject, self._source_names(subject).casts)
        logged = ", ".join(log_key_columns(len(values)))
        parts = {"log": log_table_name(subject.schema.table_id), "table_id": str(subject.schema.table_id)}
        text = statement("verify", "touch", keys=logged, values=", ".join(values), **parts, **self._array_parts(keys))
        with self._connection.transaction():
            self._connection.run(text)


def key_values(subject: Subject, casts: Seq[str]) -> list[str]:
    """Return the SQL that converts the forms v1, v2, ... of a key to the types of its columns."""
    key = subject.schema.wire_columns[: len(subject.schema.key)]
    return [
        f"decode(v{n}, 'hex')" if style_of(c.type) is FormStyle.HEX else f"v{n}::{cast}"
        for n, (c, cast) in enumerate(zip(key, casts, strict=True), 1)
    ]


def open_reader(settings: Settings) -> PostgresSourceReader:
    """Connect to the source in the settings."""
    url = settings.source.url.get_secret_value()
    return PostgresSourceReader(
        PostgresConnection(url, application="venus verify", columns=ColumnChoice.from_settings(settings))
    )
