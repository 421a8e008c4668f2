"""A SQLite file as one side of a comparison (dialects/verify_contract.py): VENUS reads rows and computes checksums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.registry_rules import UnfitRow
from venus.adapters.dialects.rows import Row
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import (
    begin_read,
    connect,
    parse_file_url,
    quote,
    snapshot,
    translate_errors,
    write_transaction,
)
from venus.adapters.dialects.sqlite.dictionary.tables import SqliteDictionary, log_key_columns, log_table_name
from venus.adapters.dialects.sqlite.installation.schema_changes import compare_table, read_objects
from venus.adapters.dialects.sqlite.rows import SqliteAccess, build_access
from venus.adapters.dialects.sqlite.sql import statement
from venus.adapters.dialects.verify_contract import (
    Key,
    RowReader,
    Slice,
    Subject,
    TableReplaced,
    range_condition,
    row_condition,
)
from venus.codec.batch import TableChanges
from venus.config import Settings
from venus.errors import SourceError
from venus.model import Kind, LogicalType, Sequence

#: How many rows are in memory at once.
PIECE_ROWS = 20_000
SECTION_BYTES = 1 << 30
#: How many keys one statement selects. Each key is a condition with its values as parameters.
KEYS_AT_ONCE = 200


class SqliteRowReader(RowReader, ABC):
    """A reader of rows in a comparison, for a SQLite file that is the source or a target."""

    @abstractmethod
    def _table(self, subject: Subject) -> str:
        """Return the quoted table."""

    @abstractmethod
    def _column(self, subject: Subject, name: str) -> str:
        """Return SQL for a column of the table `t`, which has this name at the source."""

    @abstractmethod
    def _stored_key(self, subject: Subject, key: Key) -> tuple[Any, ...]:
        """Return the stored values of a key."""

    @abstractmethod
    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, in the snapshot of `begin` if there is one."""

    @abstractmethod
    def _read_rows(self, subject: Subject, where: str, values: list[Any], rows_max: int) -> Iterator[TableChanges]:
        """Read the rows that a condition with parameters selects."""

    def estimate_rows(self, subject: Subject) -> int:
        return int(self._fetch(statement("verify", "estimate", table=self._table(subject)))[0][0])

    def read_split_points(self, subject: Subject, rows: int) -> list[int]:
        parts = {"key": self._leading_key(subject), "table": self._table(subject), "where": row_condition(subject)}
        return sorted({int(k) for (k,) in self._fetch(statement("verify", "cuts", rows=str(rows), **parts))})

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        key = self._leading_key(subject)
        where = range_condition(subject, key, part, buckets) if part.step else row_condition(subject)
        yield from self._read_rows(subject, where, [], rows_max)

    def find_rows(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        for first in range(0, len(keys), KEYS_AT_ONCE):
            where, values = self._key_condition(subject, keys[first : first + KEYS_AT_ONCE])
            yield from self._read_rows(subject, where, values, 0)

    def _leading_key(self, subject: Subject) -> str:
        return self._column(subject, subject.schema.key[0])

    def _key_term(self, subject: Subject, name: str) -> str:
        """Return the SQL of a key column for a comparison with a stored value."""
        return self._column(subject, name)

    def _key_condition(self, subject: Subject, keys: Seq[Key]) -> tuple[str, list[Any]]:
        """Return the condition that a row has one of these keys, and the condition's parameters."""
        one = "(" + " AND ".join(f"{self._key_term(subject, name)} = ?" for name in subject.schema.key) + ")"
        return " OR ".join([one] * len(keys)), [value for key in keys for value in self._stored_key(subject, key)]


class SqliteReader(SqliteRowReader):
    """Reader of the source in a comparison, over one connection; it writes only to the log."""

    def __init__(self, file: Path, columns: ColumnChoice = NO_CHOICE) -> None:
        self._file = file
        self._columns = columns
        self._connection = connect(file)
        self._accesses: dict[int, SqliteAccess] = {}

    def close(self) -> None:
        self._connection.close()

    def begin(self, subject: Subject) -> None:
        self.end()
        with translate_errors(self._file):
            begin_read(self._connection)
            self._find_access(subject)

    def end(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def read_tables(self) -> list[RegisteredTable]:
        with snapshot(self._connection, self._file):
            registry.require_installation(self._connection, self._file)
            captured = registry.read_tables(self._connection)
            return [c.table for c in (captured | registry.read_tables(self._connection, released=True)).values()]

    def _find_access(self, subject: Subject) -> SqliteAccess:
        """Return how to read a table. Reads the dictionary once; a table of another version raises TableReplaced."""
        table_id = subject.schema.table_id
        if table_id not in self._accesses:
            dictionary, present = SqliteDictionary(self._connection, self._columns), read_objects(self._connection)
            found = [compare_table(dictionary, c, present) for c in registry.read_tables(self._connection).values()]
            self._accesses = {
                c.schema.table_id: build_access(c.table) for c in found if c.readable and c.table is not None
            }
        access = self._accesses.get(table_id)
        if access is None or access.layout.schema.version != subject.schema.version:
            self._accesses.clear()
            raise TableReplaced.for_subject(subject)
        return access

    # -- rows ------------------------------------------------------------------------------------------------------

    def _table(self, subject: Subject) -> str:
        return f"main.{quote(subject.schema.name)}"

    def _column(self, subject: Subject, name: str) -> str:
        return f"t.{quote(name)}"

    def _stored_key(self, subject: Subject, key: Key) -> tuple[Any, ...]:
        return stored_key(subject, key)

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        with snapshot(self._connection, self._file):
            return self._connection.execute(text).fetchall()

    def _read_rows(self, subject: Subject, where: str, values: list[Any], rows_max: int) -> Iterator[TableChanges]:
        with snapshot(self._connection, self._file):
            access = self._find_access(subject)
        columns = ", ".join(f"t.{quote(c.name)}" for c in access.layout.columns)
        limit = f" LIMIT {rows_max}" if rows_max else ""
        text = statement("verify", "rows", columns=columns, table=self._table(subject), where=where, limit=limit)
        with snapshot(self._connection, self._file):
            cursor = self._connection.execute(text, values)
            try:
                while rows := cursor.fetchmany(PIECE_ROWS):
                    yield from self._build_sections(rows, access)
            finally:
                cursor.close()  # a statement that is not reset keeps the snapshot open

    def _build_sections(self, rows: list[Row], access: SqliteAccess) -> Iterator[TableChanges]:
        try:
            yield from access.build_sections(rows, bytes_max=SECTION_BYTES)
        except UnfitRow as unfit:
            raise SourceError(
                f"{access.layout.schema.qualified_name}: {unfit}",
                hint="correct the row, or exclude its column or the table",
            ) from unfit

    # -- the log --------------------------------------------------------------------------------------------------

    def read_next_sequence(self) -> Sequence:
        with snapshot(self._connection, self._file):
            return registry.read_state(self._connection).next_sequence

    def find_waiting_keys(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        """Return the keys with unconsumed log rows; reads all these rows, and compares keys as stored values."""
        table_id, width = subject.schema.table_id, len(subject.schema.key)
        text = statement("verify", "waiting", keys=log_key_columns(width), log=quote(log_table_name(table_id)))
        with snapshot(self._connection, self._file):
            logged = {tuple(row) for row in self._connection.execute(text, (table_id,))}
        by_stored = {stored_key(subject, key): key for key in keys}
        return {by_stored[row] for row in logged & by_stored.keys()}

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        """Write these keys into the log, in the storage class of their rows: 1 and 1.0 are two keys in a log."""
        width = len(subject.schema.key)
        names = ", ".join(f"t.{quote(name)}" for name in subject.schema.key)
        log = quote(log_table_name(subject.schema.table_id))
        text = statement("verify", "touch", log=log, keys=log_key_columns(width), marks=", ".join("?" * width))
        with write_transaction(self._connection, self._file):
            existing: list[tuple[Any, ...]] = []
            for first in range(0, len(keys), KEYS_AT_ONCE):
                where, values = self._key_condition(subject, keys[first : first + KEYS_AT_ONCE])
                find = statement("verify", "stored_keys", keys=names, table=self._table(subject), where=where)
                existing += self._connection.execute(find, values).fetchall()
            # numbers that are equal in SQLite are equal in Python too
            absent = {stored_key(subject, key) for key in keys} - set(existing)
            self._connection.executemany(text, [*existing, *absent])


def open_reader(settings: Settings) -> SqliteReader:
    """Open the file in the settings."""
    return SqliteReader(parse_file_url(settings.source.url.get_secret_value()), ColumnChoice.from_settings(settings))


def stored_key(subject: Subject, key: Key) -> tuple[Any, ...]:
    """Return the values that SQLite stores for a key in one of the application's tables."""
    columns = subject.schema.wire_columns
    return tuple(_stored_value(column.type, form) for column, form in zip(columns, key, strict=False))


def _stored_value(kind: LogicalType, form: str) -> Any:
    """Return the value that SQLite stores for a form, the compared text: in a key, each value has one spelling."""
    match kind.kind:
        case Kind.INT:
            return int(form)
        case Kind.BOOL:
            return int(form == "t")
        case Kind.BYTES:
            return bytes.fromhex(form)
        case Kind.FLOAT:
            return float(form)
        case Kind.DECIMAL:
            return float(form) if form.partition(".")[2].strip("0") else int(form.partition(".")[0])
        case Kind.TIMESTAMPTZ:
            return form.removesuffix("+00")
    return form
