"""MariaDB or MySQL as one side of a comparison (see dialects/verify_contract.py).

The server computes forms that equal the canonical text (rows.py), except for floating-point numbers: it does not print
the shortest text that reads back equal. Tables with floating-point columns rarely pass calibration and are compared
row by row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.connection import MysqlConnection, Row, parse_address
from venus.adapters.dialects.mysql.dictionary.types import MysqlDeclaredType, read_expression
from venus.adapters.dialects.mysql.registry import MysqlCapturedTable, load_capture_state
from venus.adapters.dialects.mysql.rows import MysqlAccess, MysqlValueError
from venus.adapters.dialects.mysql.sql import literal, log_key_columns, log_table_name, quote, statement
from venus.adapters.dialects.registry_rules import UnfitRow
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
from venus.config import Settings
from venus.errors import SourceError
from venus.model import Kind, LogicalType, Sequence

PIECE_ROWS = 5_000
SECTION_BYTES = 1 << 30
_SEPARATOR, _NULL = (f"CHAR({ord(c)} USING utf8mb4)" for c in (SEPARATOR, NULL))
_FRACTIONS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)
_BARE = (Kind.INT, Kind.DECIMAL)
#: Kinds in which the server has a year 0, which is 1 BC elsewhere (rows.py).
_WITH_YEAR_0 = (Kind.DATE, Kind.TIMESTAMP)


def form_sql(kind: LogicalType, declared: MysqlDeclaredType, column: str, *, bare: bool = False) -> str:
    """Return the SQL of a column's form, the text that is compared; `bare`: without its length."""
    read = read_expression(declared, column)
    style = style_of(kind)
    if style is FormStyle.HEX:
        text = f"LOWER(HEX({column}))"
    elif kind.kind is Kind.BOOL:
        text = f"ELT({read} + 1, 'f', 't')"
    elif style in (FormStyle.FREE, FormStyle.PADDED):
        text = f"CONVERT({read} USING utf8mb4)"
        text = text if bare else f"CONCAT(LENGTH({text}), ':', {text})"
    else:
        text = f"CAST({read} AS CHAR)"
        if kind.kind in _FRACTIONS and kind.precision:
            text = f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {text}))"
        if kind.kind is Kind.TIMESTAMPTZ:
            text = f"CONCAT({text}, '+00')"
        if kind.kind in _WITH_YEAR_0:
            text = f"IF({text} < '0001', CONCAT('0001', SUBSTR({text}, 5), ' BC'), {text})"
    return f"COALESCE({text}, {_NULL})"


def key_literal(kind: LogicalType, text: str) -> str:
    """Return a key's form as an SQL literal. Numbers have no quotes: MySQL compares text and numbers as doubles."""
    if kind.kind in _BARE:
        return text
    if style_of(kind) is FormStyle.HEX:
        return f"X'{text}'"
    if kind.kind is Kind.BOOL:
        return f"b'{int(text == 't')}'"
    if kind.kind is Kind.NATIVE and kind.name.startswith("bit"):
        return f"b'{text}'"
    if kind.kind in _WITH_YEAR_0 and text.endswith(" BC"):
        text = f"0000{text[4:].removesuffix(' BC')}"
    return literal(text.removesuffix("+00") if kind.kind is Kind.TIMESTAMPTZ else text)


class MysqlChecksumReader(ChecksumReader):
    """Base of the readers of source and target; a subclass defines how it reads the rows that meet a condition."""

    def read_split_points(self, subject: Subject, rows: int) -> list[int]:
        parts = {"key": self._leading_key(subject), "where": row_condition(subject), "rows": str(rows)}
        found = self._query("cuts", subject, **parts)
        return sorted({int(k) for (k,) in found})

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        where = self._slice_condition(subject, part, buckets) if part.step else row_condition(subject)
        yield from self._read_rows(subject, where, f" LIMIT {rows_max}" if rows_max else "")

    def find_rows(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        if keys:
            yield from self._read_rows(subject, self._key_parts(subject, keys)["where"], "")

    @abstractmethod
    def _read_rows(self, subject: Subject, where: str, limit: str) -> Iterator[TableChanges]: ...

    def _checksum_term(self, subject: Subject, forms: Seq[str]) -> str:
        text = f"CONCAT_WS({_SEPARATOR}, {', '.join(forms)})"
        hashed = f"MD5({text})" if subject.digest == "md5" else f"SHA2({text}, 256)"
        return f"CAST(CONV(LEFT({hashed}, {HEX_DIGITS}), 16, 10) AS UNSIGNED)"

    def _range_bucket(self, key: str, part: Slice) -> str:
        inside = f"LEAST(GREATEST(CAST({key} AS SIGNED), {part.origin}), {part.end})"
        return f"(({inside} - ({part.origin})) DIV {part.step})"


class MysqlReader(MysqlChecksumReader):
    """Reader of a MariaDB or MySQL source for a comparison: one session has the snapshot, one writes to the log."""

    def __init__(self, url: str, columns: ColumnChoice = NO_CHOICE) -> None:
        address = parse_address(url, columns)
        self._connection = MysqlConnection(address, "REPEATABLE READ")
        self._writer = MysqlConnection(address, "READ COMMITTED")
        self._connection.open()
        self._captured: dict[int, MysqlCapturedTable] = {}

    def close(self) -> None:
        self._connection.close()
        self._writer.close()

    def begin(self, subject: Subject) -> None:
        self.end()
        self._find_captured_table(subject)
        self._connection.begin(statement("cut", "begin"))

    def end(self) -> None:
        self._connection.rollback()

    def read_tables(self) -> list[RegisteredTable]:
        registry.require_installation(self._connection)
        self._captured = {c.table_id: c for c in load_capture_state(self._connection).captured}
        released = registry.read_tables(self._connection, released=True)
        return [*(c.known.table for c in self._captured.values()), *(k.table for k in released)]

    def _find_captured_table(self, subject: Subject) -> tuple[MysqlCapturedTable, MysqlAccess]:
        """Return the captured table, and how to read it. Raises TableReplaced if the table's version differs."""
        if not self._captured:
            self.read_tables()
        captured = self._captured.get(subject.schema.table_id)
        if captured is None or captured.access is None or captured.schema.version != subject.schema.version:
            raise TableReplaced.for_subject(subject)
        return captured, captured.access

    # -- tables and sizes -------------------------------------------------------------------------------------------

    def estimate_rows(self, subject: Subject) -> int:
        names = {"database": literal(self._connection.address.database), "name": literal(subject.schema.name)}
        return int(self._connection.row(statement("verify", "estimate", **names))[0])

    # -- checksums -------------------------------------------------------------------------------------------------

    def _query(self, block: str, subject: Subject, **parts: str) -> Seq[Row]:
        table = self._find_captured_table(subject)[1].table_sql
        return self._connection.rows(statement("verify", block, table=table, **parts))

    def _form_terms(self, subject: Subject, *, bare: bool = False) -> list[str]:
        table = self._find_captured_table(subject)[0].table
        assert table is not None
        return [
            form_sql(c.type, table.declared[c.name], f"t.{quote(c.name)}", bare=bare)
            for c in subject.schema.wire_columns
        ]

    def _leading_key(self, subject: Subject) -> str:
        return f"t.{quote(subject.schema.key[0])}"

    def _key_parts(self, subject: Subject, keys: Seq[Key]) -> dict[str, str]:
        return {"where": key_condition(subject, [f"t.{quote(name)}" for name in subject.schema.key], keys)}

    # -- rows ------------------------------------------------------------------------------------------------------

    def _read_rows(self, subject: Subject, where: str, limit: str) -> Iterator[TableChanges]:
        access = self._find_captured_table(subject)[1]
        parts = {"columns": access.columns_sql, "table": access.table_sql, "where": where, "limit": limit}
        with self._connection.stream(statement("verify", "rows", **parts)) as cursor:
            while rows := cursor.fetchmany(PIECE_ROWS):
                yield from self._build_sections(list(rows), access)

    def _build_sections(self, rows: list[Row], access: MysqlAccess) -> Iterator[TableChanges]:
        try:
            yield from access.build_sections(rows, bytes_max=SECTION_BYTES)
        except (UnfitRow, MysqlValueError) as unfit:
            raise SourceError(
                f"{access.layout.schema.qualified_name}: {unfit}",
                hint="correct the row, or exclude its column or the table",
            ) from unfit

    # -- the log --------------------------------------------------------------------------------------------------

    def read_next_sequence(self) -> Sequence:
        return registry.read_state(self._connection).next_sequence

    def find_waiting_keys(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        if not keys:
            return set()
        declared, logged = self._find_captured_table(subject)[1].declared, log_key_columns(len(subject.schema.key))
        columns = subject.schema.wire_columns
        texts = [form_sql(c.type, d, f"g.{k}", bare=True) for c, d, k in zip(columns, declared, logged, strict=False)]
        where = key_condition(subject, [f"g.{k}" for k in logged], keys)
        parts = {"keys": ", ".join(texts), "log": log_table_name(subject.schema.table_id), "where": where}
        return {tuple(row) for row in self._connection.rows(statement("verify", "waiting", **parts))}

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        types = [c.type for c in subject.schema.wire_columns[: len(subject.schema.key)]]
        values = (", ".join(key_literal(kind, text) for kind, text in zip(types, key, strict=True)) for key in keys)
        rows = ", ".join(f"('U', {value})" for value in values)
        names = ", ".join(log_key_columns(len(types)))
        self._writer.run(
            statement("verify", "touch", log=log_table_name(subject.schema.table_id), keys=names, rows=rows)
        )


def open_reader(settings: Settings) -> MysqlReader:
    """Connect to the source in the settings."""
    return MysqlReader(settings.source.url.get_secret_value(), ColumnChoice.from_settings(settings))


def key_condition(subject: Subject, columns: Seq[str], keys: Seq[Key]) -> str:
    """Return the condition that a row of the table, or of its log, has one of these keys."""
    types = [c.type for c in subject.schema.wire_columns[: len(columns)]]
    values = (", ".join(key_literal(kind, text) for kind, text in zip(types, key, strict=True)) for key in keys)
    return f"({', '.join(columns)}) IN ({', '.join(f'({v})' for v in values)})"
