"""MariaDB or MySQL as one side of a comparison (see dialects/verifying.py).

The server computes forms that equal the canonical text of values.py, except for floating-point numbers: it does not
print the shortest text that reads back equal. Tables with such columns rarely pass calibration and are compared row by
row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq

from venus.adapters.dialects.columns import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.forms import range_condition, where_of
from venus.adapters.dialects.halting import UnfitRow
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.captured import Captured, load
from venus.adapters.dialects.mysql.connection import Connection, Row, address_of
from venus.adapters.dialects.mysql.names import literal, log_keys, log_table, quoted
from venus.adapters.dialects.mysql.reading import Access, sections_of
from venus.adapters.dialects.mysql.statements import statement
from venus.adapters.dialects.mysql.types import Declared, read_as
from venus.adapters.dialects.mysql.values import DoesNotFit
from venus.adapters.dialects.verifying import (
    HEX_DIGITS,
    NULL,
    SEPARATOR,
    AnotherTable,
    Buckets,
    Key,
    Slice,
    Style,
    Subject,
    style_of,
)
from venus.codec.changes import TableChanges
from venus.config import Settings
from venus.errors import SourceError
from venus.model import Kind, LogicalType, Sequence

PIECE_ROWS = 5_000
SECTION_BYTES = 1 << 30
_SEPARATOR, _NULL = (f"CHAR({ord(c)} USING utf8mb4)" for c in (SEPARATOR, NULL))
_FRACTIONS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)
_BARE = (Kind.INT, Kind.DECIMAL)
#: Kinds in which the server has a year 0, which is 1 BC elsewhere (values.py).
_WITH_YEAR_0 = (Kind.DATE, Kind.TIMESTAMP)


def form(kind: LogicalType, declared: Declared, column: str, *, bare: bool = False) -> str:
    """Return the SQL of a column's form. `bare`: without its length."""
    read = read_as(declared, column)
    style = style_of(kind)
    if style is Style.HEX:
        text = f"LOWER(HEX({column}))"
    elif kind.kind is Kind.BOOL:
        text = f"ELT({read} + 1, 'f', 't')"
    elif style in (Style.FREE, Style.PADDED):
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


def checksum(text: str, digest: str) -> str:
    """Return the SQL of a text's checksum."""
    hashed = f"MD5({text})" if digest == "md5" else f"SHA2({text}, 256)"
    return f"CAST(CONV(LEFT({hashed}, {HEX_DIGITS}), 16, 10) AS UNSIGNED)"


def key_literal(kind: LogicalType, text: str) -> str:
    """Return a key's form as SQL. Numbers have no quotes, because MySQL compares text and numbers as doubles."""
    if kind.kind in _BARE:
        return text
    if style_of(kind) is Style.HEX:
        return f"X'{text}'"
    if kind.kind is Kind.BOOL:
        return f"b'{int(text == 't')}'"
    if kind.kind is Kind.NATIVE and kind.name.startswith("bit"):
        return f"b'{text}'"
    if kind.kind in _WITH_YEAR_0 and text.endswith(" BC"):
        text = f"0000{text[4:].removesuffix(' BC')}"
    return literal(text.removesuffix("+00") if kind.kind is Kind.TIMESTAMPTZ else text)


class MysqlReader:
    """Reader of one side, with a session for the snapshot and one that writes to the log."""

    pushes_down = True

    def __init__(self, url: str, columns: ColumnChoice = NO_CHOICE) -> None:
        address = address_of(url, columns)
        self._connection = Connection(address, "REPEATABLE READ")
        self._writer = Connection(address, "READ COMMITTED")
        self._connection.open()
        self._captured: dict[int, Captured] = {}

    def close(self) -> None:
        self._connection.close()
        self._writer.close()

    def begin(self, subject: Subject) -> None:
        self.end()
        self._known(subject)
        self._connection.begin(statement("cut", "begin"))

    def end(self) -> None:
        self._connection.rollback()

    def tables(self) -> list[RegisteredTable]:
        registry.require_installed(self._connection)
        self._captured = {c.table_id: c for c in load(self._connection).captured}
        released = registry.tables(self._connection, released=True)
        return [*(c.known.table for c in self._captured.values()), *(k.table for k in released)]

    def _known(self, subject: Subject) -> tuple[Captured, Access]:
        if not self._captured:
            self.tables()
        captured = self._captured.get(subject.schema.table_id)
        if captured is None or captured.access is None or captured.schema.version != subject.schema.version:
            raise AnotherTable.instead_of(subject)
        return captured, captured.access

    # -- tables and sizes -------------------------------------------------------------------------------------------

    def estimate(self, subject: Subject) -> int:
        names = {"database": literal(self._connection.address.database), "name": literal(subject.schema.name)}
        return int(self._connection.row(statement("verify", "estimate", **names))[0])

    def cuts(self, subject: Subject, rows: int) -> list[int]:
        parts = {"key": f"t.{quoted(subject.schema.key[0])}", "where": where_of(subject), "rows": str(rows)}
        found = self._connection.rows(statement("verify", "cuts", table=self._table(subject), **parts))
        return sorted({int(k) for (k,) in found})

    # -- checksums -------------------------------------------------------------------------------------------------

    def buckets(self, subject: Subject, part: Slice) -> Buckets:
        found = self._connection.rows(
            statement(
                "verify", "buckets", table=self._table(subject), bucket=self._bucket(subject, part),
                checksum=self._checksum(subject), where=self._condition(subject, part, None),
            )
        )  # fmt: skip
        return {int(bucket): (int(count), int(total)) for bucket, count, total in found}

    def hashes(self, subject: Subject, part: Slice, buckets: Collection[int]) -> Iterator[tuple[Key, int]]:
        found = self._connection.rows(
            statement(
                "verify", "hashes", table=self._table(subject), checksum=self._checksum(subject),
                keys=", ".join(self._key_forms(subject)), where=self._condition(subject, part, buckets),
            )
        )  # fmt: skip
        return ((row[1:], int(row[0])) for row in found)

    def forms(self, subject: Subject, keys: Seq[Key]) -> list[tuple[Key, int, tuple[str, ...]]]:
        width = len(subject.schema.key)
        text = statement(
            "verify", "forms", table=self._table(subject), checksum=self._checksum(subject),
            keys=", ".join(self._key_forms(subject)), forms=", ".join(self._forms(subject)),
            where=_keyed(subject, [f"t.{quoted(name)}" for name in subject.schema.key], keys),
        )  # fmt: skip
        return [(r[1 : 1 + width], int(r[0]), r[1 + width :]) for r in self._connection.rows(text)]

    def _table(self, subject: Subject) -> str:
        return self._known(subject)[1].table_sql

    def _forms(self, subject: Subject, *, bare: bool = False) -> list[str]:
        table = self._known(subject)[0].table
        assert table is not None
        return [
            form(c.type, table.declared[c.name], f"t.{quoted(c.name)}", bare=bare) for c in subject.schema.wire_columns
        ]

    def _key_forms(self, subject: Subject) -> list[str]:
        return self._forms(subject, bare=True)[: len(subject.schema.key)]

    def _checksum(self, subject: Subject) -> str:
        return checksum(f"CONCAT_WS({_SEPARATOR}, {', '.join(self._forms(subject))})", subject.digest)

    def _bucket(self, subject: Subject, part: Slice) -> str:
        if part.step:
            key = f"CAST(t.{quoted(subject.schema.key[0])} AS SIGNED)"
            return f"((LEAST(GREATEST({key}, {part.origin}), {part.end}) - ({part.origin})) DIV {part.step})"
        key_forms = ", ".join(self._forms(subject)[: len(subject.schema.key)])
        return f"({checksum(f'CONCAT_WS({_SEPARATOR}, {key_forms})', subject.digest)} & {part.buckets - 1})"

    def _condition(self, subject: Subject, part: Slice, buckets: Collection[int] | None) -> str:
        if not part.step:
            bucket = self._bucket(subject, part)
            chosen = f"{bucket} IN ({', '.join(map(str, sorted(buckets)))})" if buckets else "TRUE"
            sampled = f"{bucket} < {part.sampled}" if part.sampled else "TRUE"
            return f"{where_of(subject)} AND {chosen} AND {sampled}"
        key = f"t.{quoted(subject.schema.key[0])}"
        return range_condition(subject, key, part, buckets)

    # -- rows ------------------------------------------------------------------------------------------------------

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        where = self._condition(subject, part, buckets) if part.step else where_of(subject)
        yield from self._read(subject, where, f" LIMIT {rows_max}" if rows_max else "")

    def find(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        if keys:
            yield from self._read(subject, _keyed(subject, [f"t.{quoted(n)}" for n in subject.schema.key], keys), "")

    def _read(self, subject: Subject, where: str, limit: str) -> Iterator[TableChanges]:
        access = self._known(subject)[1]
        parts = {"columns": access.columns_sql, "table": access.table_sql, "where": where, "limit": limit}
        with self._connection.stream(statement("verify", "rows", **parts)) as cursor:
            while rows := cursor.fetchmany(PIECE_ROWS):
                yield from self._sections(list(rows), access)

    def _sections(self, rows: list[Row], access: Access) -> Iterator[TableChanges]:
        try:
            yield from sections_of(rows, access, bytes_max=SECTION_BYTES)
        except (UnfitRow, DoesNotFit) as unfit:
            raise SourceError(
                f"{access.layout.schema.qualified}: {unfit}", hint="correct the row, or exclude its column or the table"
            ) from unfit

    # -- the log --------------------------------------------------------------------------------------------------

    def next_sequence(self) -> Sequence:
        return registry.state(self._connection).next_sequence

    def waiting(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        if not keys:
            return set()
        declared, logged = self._known(subject)[1].declared, log_keys(len(subject.schema.key))
        columns = subject.schema.wire_columns
        texts = [form(c.type, d, f"g.{k}", bare=True) for c, d, k in zip(columns, declared, logged, strict=False)]
        where = _keyed(subject, [f"g.{k}" for k in logged], keys)
        parts = {"keys": ", ".join(texts), "log": log_table(subject.schema.table_id), "where": where}
        return {tuple(row) for row in self._connection.rows(statement("verify", "waiting", **parts))}

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        types = [c.type for c in subject.schema.wire_columns[: len(subject.schema.key)]]
        values = (", ".join(key_literal(kind, text) for kind, text in zip(types, key, strict=True)) for key in keys)
        rows = ", ".join(f"('U', {value})" for value in values)
        names = ", ".join(log_keys(len(types)))
        self._writer.run(
            statement("verify", "touch", log=log_table(subject.schema.table_id), keys=names, rows=rows)
        )  # fmt: skip


def open_reader(settings: Settings) -> MysqlReader:
    """Connect to the source in the settings."""
    return MysqlReader(settings.source.url.get_secret_value(), ColumnChoice.of(settings))


def _keyed(subject: Subject, columns: Seq[str], keys: Seq[Key]) -> str:
    """Return the condition that a row of the table, or of its log, has one of these keys."""
    types = [c.type for c in subject.schema.wire_columns[: len(columns)]]
    values = (", ".join(key_literal(kind, text) for kind, text in zip(types, key, strict=True)) for key in keys)
    return f"({', '.join(columns)}) IN ({', '.join(f'({v})' for v in values)})"
