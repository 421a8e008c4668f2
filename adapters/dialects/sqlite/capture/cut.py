"""One cut of a SQLite file: a read transaction, then one short write transaction (VENUS 3.3, the local transaction).

SQLite admits one writer at a time and assigns row numbers in commit order. The log rows above the last consumed
number are therefore exactly the new ones: moving that watermark is the exact delete of this dialect. The
read transaction ends before the write transaction begins, because together they would block each other.

Consumed log rows are purged a bounded piece at a time, so that no transaction holds the write lock for long.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from venus.adapters.dialects.contract import FillState
from venus.adapters.dialects.registry_rules import HaltTracker, RestoreGuard, UnfitRow
from venus.adapters.dialects.rows import FillCursor, Row, RowStream
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import quote, translate_errors, write_transaction
from venus.adapters.dialects.sqlite.dictionary.tables import log_table_name
from venus.adapters.dialects.sqlite.rows import SqliteAccess, cursor_key, fill_statement
from venus.adapters.dialects.sqlite.sql import statement
from venus.codec.batch import TableChanges
from venus.errors import SourceError
from venus.model import BatchNo, BatchRecord, Epoch

#: How many consumed rows may stay in a log: purging after every cut would write a page for each row.
SLACK_ROWS = 500
#: The most rows that one transaction removes, which takes about 5 ms.
PIECE_ROWS = 5_000


class LogPurger:
    """Remover of log rows that cuts have consumed; it knows which logs may still contain such rows."""

    def __init__(self) -> None:
        self._left: set[int] = set()

    def schedule(self, table_ids: set[int]) -> None:
        """Schedule these tables for purging: an earlier process may have left consumed rows."""
        self._left |= table_ids

    @property
    def has_work(self) -> bool:
        """Whether any log may still contain consumed rows."""
        return bool(self._left)

    def purge(self, connection: sqlite3.Connection, through: Mapping[int, int]) -> None:
        """Remove some consumed log rows in the caller's transaction. `through`: the last consumed row by table."""
        budget = PIECE_ROWS
        for table_id, end in through.items():
            log = quote(log_table_name(table_id))
            first = connection.execute(statement("registry", "log_start", log=log)).fetchone()[0]
            if end - first < SLACK_ROWS:
                self._left.discard(table_id)
                continue
            self._left.add(table_id)
            if budget > 0:
                sql = statement("registry", "purge", log=log, through=str(end), rows=str(budget))
                budget -= connection.execute(sql).rowcount

    def due_watermarks(self, watermarks: Mapping[int, int]) -> dict[int, int]:
        """Return the watermarks of the tables that still have consumed rows."""
        self._left &= watermarks.keys()
        return {table_id: watermarks[table_id] for table_id in self._left}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """The log rows of one table in this cut: those above `after`, up to `through`."""

    access: SqliteAccess
    after: int
    through: int


class SqliteCut:
    """One snapshot. The reader stays in a read transaction until `commit` or `rollback`."""

    def __init__(
        self,
        *,
        file: Path,
        reader: sqlite3.Connection,
        writer: sqlite3.Connection,
        captured_at_us: int,
        pending: Mapping[int, LogRange],
        fills: Mapping[int, tuple[FillState, SqliteAccess]],
        ends: Mapping[int, int],
        purger: LogPurger,
        halts: HaltTracker,
        left: RestoreGuard,
    ) -> None:
        self._file = file
        self._reader = reader
        self._writer = writer
        self._captured_at_us = captured_at_us
        self._pending = pending
        self._fills = fills
        self._ends = ends  # the highest number of every log
        self._purger = purger
        self._left = left
        self._halts = halts
        #: An open cursor keeps the snapshot open, even after ROLLBACK.
        self._cursors: list[sqlite3.Cursor] = []
        self._consumed: dict[int, int] = {}

    @property
    def captured_at_us(self) -> int:
        """The clock of this machine, which is the source's clock: a SQLite file is local."""
        return self._captured_at_us

    def read_sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        """Stream the changes. Raises TableHalted at a row that cannot be carried."""
        with translate_errors(self._file):
            for table_id in self._halts.order_by_halts(self._pending):
                pending = self._pending[table_id]
                self._halts.start_table()
                try:
                    yield from self._read_changes(pending, rows_max, bytes_max)
                except UnfitRow as why:
                    raise self._halts.record_halt(pending.access.layout.schema, pending.through, why) from why
                self._consumed[table_id] = pending.through

    def _read_changes(self, pending: LogRange, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        access = pending.access
        bounds = (pending.after, pending.through)
        rows = RowStream(self._execute(access.changes_sql, bounds), access)
        while portion := self._take_rows(rows, access, access.changes_sql, bounds, rows_max, bytes_max):
            if access.key_may_be_null:
                portion = self._drop_null_keys(portion, access)
            yield from access.build_sections(portion, bytes_max=bytes_max)

    def _drop_null_keys(self, portion: list[Row], access: SqliteAccess) -> list[Row]:
        """Drop the log entries of deleted rows whose key was NULL: such rows were never shipped."""
        keyed = [row for row in portion if None not in row[: access.key_count]]
        if len(keyed) < len(portion) and self._execute(access.null_key_sql).fetchone():
            raise UnfitRow(f"a row has NULL in its key ({', '.join(access.layout.schema.key)})")
        return keyed

    def read_fill_chunk(
        self, fill: FillState, *, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], FillState]:
        """Read the next key range. The fill of a paused table does not advance. Raises TableHalted."""
        if fill.table_id not in self._fills:
            return [], fill
        access = self._fills[fill.table_id][1]
        sql, place = fill_statement(access, fill.cursor)
        bounds = (*place, rows_max)
        self._halts.start_table()
        try:
            with translate_errors(self._file):
                rows = RowStream(self._execute(sql, bounds), access)
                portion = self._take_rows(rows, access, sql, bounds, rows_max, bytes_max)
                sections = list(access.build_sections(portion, bytes_max=bytes_max))
                done = rows.ended and len(portion) < rows_max
                cursor = self._cursor_after(portion[-1], fill, access, done=done) if portion else fill.cursor
        except UnfitRow as why:
            raise self._halts.record_halt(access.layout.schema, self._ends[fill.table_id], why) from why
        return sections, replace(fill, cursor=cursor, rows_done=fill.rows_done + len(portion), done=done)

    def _cursor_after(self, row: Row, fill: FillState, access: SqliteAccess, *, done: bool) -> bytes:
        """Return a fill's cursor after this row. The first chunk also finds the fill's end, in the same snapshot."""
        end = FillCursor.parse(fill.cursor).end if fill.cursor else None
        if not fill.cursor and not done:
            tail = RowStream(self._execute(access.tail_sql, (1,)), access)
            (last,) = self._take_rows(tail, access, access.tail_sql, (1,), 1, 1)
            end = cursor_key(last, access.key_count)
        return FillCursor(cursor_key(row, access.key_count), end).cursor

    def _execute(self, sql: str, bounds: Seq[Any] = ()) -> sqlite3.Cursor:
        """Run a query in the snapshot, and remember its cursor."""
        cursor = self._reader.cursor()
        self._cursors.append(cursor)
        return cursor.execute(sql, bounds)

    def _take_rows(
        self, rows: RowStream, access: SqliteAccess, sql: str, bounds: Seq[Any], rows_max: int, bytes_max: int
    ) -> list[Row]:
        """Take rows within the limits. Raises UnfitRow, which names the row, for a text that is not UTF-8."""
        try:
            return rows.take(rows_max=rows_max, bytes_max=bytes_max)
        except sqlite3.OperationalError as e:
            if "decode" not in str(e):
                raise
            raise UnfitRow(self._describe_undecodable(access, sql, bounds)) from e

    def _describe_undecodable(self, access: SqliteAccess, sql: str, bounds: Seq[Any]) -> str:
        """Describe the row whose text is not UTF-8: decode leniently, because the driver does not name the row."""
        self._reader.text_factory = lambda octets: octets.decode(errors="surrogateescape")
        try:
            for row in self._execute(sql, bounds):
                for column, value in zip(access.layout.columns, row, strict=False):
                    if isinstance(value, str) and not _is_encodable(value):
                        return f"row {access.describe_key(row)}: column {column.name}: TEXT is not UTF-8"
        finally:
            self._reader.text_factory = str
        raise AssertionError("the row that could not be decoded is not in its own snapshot")

    def commit(
        self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], forget_batches_below: BatchNo
    ) -> None:
        """Run the local transaction: epoch, batch rows, checkpoint, watermarks, fills, a piece of purging."""
        if unread := self._pending.keys() - self._consumed.keys():
            raise SourceError(f"{self._file}: the sections of {len(unread)} tables were not read to their end")
        self._end_read_transaction()
        with write_transaction(self._writer, self._file):
            registry.check_epoch(self._writer, epoch)
            self._left.check(self._file, registry.read_state(self._writer))
            if batches:
                registry.add_batches(self._writer, batches)
                position = (batches[-1].last_sequence + 1, batches[-1].batch_no)
                self._writer.execute(statement("registry", "advance"), position)
            watermarks = [(through, table_id) for table_id, through in self._consumed.items()]
            self._writer.executemany(statement("registry", "consumed"), watermarks)
            for fill in fills:
                if fill.table_id in self._fills:
                    registry.advance_fill(self._writer, self._fills[fill.table_id][0], fill)
            self._writer.execute(statement("registry", "forget_batches"), (forget_batches_below,))
            self._purger.purge(self._writer, self._consumed)
        if batches:
            self._left.record_batch(batches[-1].batch_no)

    def rollback(self) -> None:
        """Close the snapshot without writing anything."""
        self._end_read_transaction()

    def _end_read_transaction(self) -> None:
        """Close the open cursors, then the snapshot."""
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()
        if self._reader.in_transaction:
            self._reader.execute("ROLLBACK")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
