"""A cut of a MariaDB or MySQL source: one snapshot to read from, then one short transaction of its own (VENUS 3.3).

In InnoDB, DELETE sees the newest rows, not those of a snapshot. The snapshot therefore only reads, and collects the
numbers of the log rows that it contains. The local transaction runs in another session, at READ COMMITTED, and deletes
exactly these numbers. Log rows of a transaction that commits later have other numbers and wait for the next cut.

A log that grew for a week has hundreds of millions of numbers. These row numbers are ascending, mostly without gaps,
or with equal gaps where several servers share one numbering. `LogNumbers` stores a run as its first number and its
gaps: one gap for the whole run if all gaps are equal, otherwise usually one byte for each gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from venus.adapters.dialects.contract import FillState, SchemaChanged
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.connection import MysqlConnection, NotUnicode
from venus.adapters.dialects.mysql.registry import MysqlCapturedTable, MysqlCaptureState, read_definitions
from venus.adapters.dialects.mysql.rows import MysqlAccess, MysqlValueError, cursor_key
from venus.adapters.dialects.mysql.sql import log_table_name, statement
from venus.adapters.dialects.registry_rules import HaltTracker, RestoreGuard, UnfitRow
from venus.adapters.dialects.rows import FillCursor, Row, RowStream
from venus.codec.batch import TableChanges
from venus.errors import Deadlock
from venus.model import BatchNo, BatchRecord, Epoch

_SIZES = (np.uint8, np.uint32, np.uint64)


@dataclass(frozen=True, slots=True)
class _NumberRun:
    """A run of ascending log row numbers. `gaps` is one gap for all, or the gap before each number but the first."""

    first: int
    count: int
    gaps: int | npt.NDArray[Any]

    def is_continued_by(self, first: int, gap: int) -> bool:
        """Return whether `first` continues a run that has this one gap."""
        return isinstance(self.gaps, int) and self.gaps == gap and first == self.first + gap * self.count

    def numbers(self) -> npt.NDArray[np.int64]:
        gaps = np.full(self.count - 1, self.gaps, dtype=np.int64) if isinstance(self.gaps, int) else self.gaps
        return np.cumsum(np.concatenate(([self.first], gaps.astype(np.int64))))


class LogNumbers:
    """The numbers of the rows of one log table in ascending order, compressed."""

    def __init__(self) -> None:
        self._pieces: list[_NumberRun] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, numbers: Iterable[int]) -> None:
        """Append numbers, which must be ascending."""
        found = np.fromiter(numbers, dtype=np.int64)
        if not len(found):
            return
        gaps = np.diff(found)
        if not len(gaps) or (gaps == gaps[0]).all():
            self._append_run(int(found[0]), len(found), int(gaps[0]) if len(gaps) else 1)
        else:
            size = next(size for size in _SIZES if int(gaps.max()) <= np.iinfo(size).max)
            self._pieces.append(_NumberRun(int(found[0]), len(found), gaps.astype(size)))
        self._count += len(found)

    def _append_run(self, first: int, count: int, gap: int) -> None:
        """Append a run with one gap, or extend the last run if it continues."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.is_continued_by(first, gap):
            self._pieces[-1] = _NumberRun(last.first, last.count + count, gap)
        else:
            self._pieces.append(_NumberRun(first, count, gap))

    def portions(self, rows_max: int) -> Iterator[list[int]]:
        """Yield all numbers in lists of at most `rows_max`."""
        for piece in self._pieces:
            if isinstance(piece.gaps, int):
                for start in range(0, piece.count, rows_max):
                    first, count = piece.first + piece.gaps * start, min(rows_max, piece.count - start)
                    yield list(range(first, first + piece.gaps * count, piece.gaps))
            else:
                numbers = piece.numbers()
                for start in range(0, piece.count, rows_max):
                    yield numbers[start : start + rows_max].tolist()


#: Remedies for a row that halts its table.
HINT = (
    "correct the row, exclude its column in [source.columns], pause the table, or let zero dates become NULL"
    " (venus_zero_dates=null)"
)
#: Numbers that one statement deletes.
_CLAIM_ROWS = 20_000
_NUMBERS_FETCHED = 10_000
#: The largest size of a fill chunk, in sections.
_FILL_SECTIONS = 4
_FIRST_PIECE_ROWS = 64
_ATTEMPTS = 5


@dataclass(slots=True)
class MysqlFillPace:
    """Average row sizes by table, which bound how much a fill reads into memory."""

    row_bytes: dict[int, int] = field(default_factory=dict)

    def next_row_count(self, table_id: int, access: MysqlAccess, rows_left: int, bytes_left: int) -> int:
        """Return how many rows a fill should read next, to stay about within its limits of rows and bytes."""
        average = self.row_bytes.get(table_id)
        if average is None:
            return min(rows_left, _FIRST_PIECE_ROWS) if access.wide else rows_left
        return max(1, min(rows_left, bytes_left // average))

    def record_rows(self, table_id: int, access: MysqlAccess, piece: Seq[Row]) -> int:
        """Record the average size of these rows; return their total size."""
        weight = access.estimate_size(piece)
        if piece and access.wide:
            self.row_bytes[table_id] = max(1, weight // len(piece))
        return weight


class MysqlCut:
    """An open cut: first `read_sections`, then fill chunks, then `commit`; `rollback` is possible at any time."""

    def __init__(
        self,
        *,
        reader: MysqlConnection,
        writer: MysqlConnection,
        captured_at_us: int,
        dirty: Seq[MysqlCapturedTable],
        filling: Mapping[int, tuple[FillState, MysqlCapturedTable]],
        pace: MysqlFillPace,
        halts: HaltTracker,
        left: RestoreGuard,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._captured_at_us = captured_at_us
        self._dirty = dirty
        self._filling = filling
        self._pace = pace
        self._halts = halts
        self._left = left
        self._seen: dict[int, LogNumbers] = {}

    @property
    def captured_at_us(self) -> int:
        return self._captured_at_us

    # -- reading -------------------------------------------------------------------------------------------------

    def read_sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        dirty = {c.table_id: c for c in self._dirty}
        for table_id in self._halts.order_by_halts(dirty):
            access = _require_access(dirty[table_id])
            self._halts.start_table()
            numbers = self._read_numbers(table_id)
            try:
                with self._reader.stream(access.changes_sql) as cursor:
                    rows = RowStream(cursor, access)
                    while portion := rows.take(rows_max=rows_max, bytes_max=bytes_max):
                        yield from access.build_sections(portion, bytes_max=bytes_max)
            except (UnfitRow, MysqlValueError, NotUnicode) as why:
                raise self._halts.record_halt(dirty[table_id].schema, len(numbers), why, hint=HINT) from why
            self._seen[table_id] = numbers

    def _read_numbers(self, table_id: int) -> LogNumbers:
        """Read the numbers of the log rows that this snapshot shows; `commit` deletes exactly these rows."""
        numbers = LogNumbers()
        with self._reader.stream(statement("cut", "numbers", log=log_table_name(table_id))) as cursor:
            while piece := cursor.fetchmany(_NUMBERS_FETCHED):
                numbers.add(int(row[0]) for row in piece)
        return numbers

    def read_fill_chunk(
        self, fill: FillState, *, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], FillState]:
        if fill.table_id not in self._filling:
            return [], fill
        captured = self._filling[fill.table_id][1]
        access = _require_access(captured)
        rows: list[Row] = []
        self._halts.start_table()
        budget, cursor, done = bytes_max * _FILL_SECTIONS, fill.cursor, False
        try:
            while not done and len(rows) < rows_max and budget > 0:
                wanted = self._pace.next_row_count(fill.table_id, access, rows_max - len(rows), budget)
                piece = self._reader.rows(access.fill_sql(cursor, wanted))
                budget -= self._pace.record_rows(fill.table_id, access, piece)
                done = len(piece) < wanted
                if piece:
                    cursor = self._cursor_after(piece[-1], cursor, access, done=done)
                rows += piece
            sections = list(access.build_sections(rows, bytes_max=bytes_max))
        except (UnfitRow, MysqlValueError, NotUnicode) as why:
            waiting = len(self._seen.get(fill.table_id, ()))
            raise self._halts.record_halt(captured.schema, waiting, why, hint=HINT) from why
        return sections, replace(fill, cursor=cursor, rows_done=fill.rows_done + len(rows), done=done)

    def _cursor_after(self, row: Row, cursor: bytes, access: MysqlAccess, *, done: bool) -> bytes:
        """Return the cursor of a fill after this row. In the first chunk, also read the key at which the fill ends."""
        end = FillCursor.parse(cursor).end if cursor else None
        if not cursor and not done:
            (last,) = self._reader.rows(access.last_sql)
            end = cursor_key(last, access.key_count)
        return FillCursor(cursor_key(row, access.key_count), end).cursor

    # -- the local transaction -------------------------------------------------------------------------------------

    def commit(
        self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], forget_batches_below: BatchNo
    ) -> None:
        assert self._seen.keys() >= {c.table_id for c in self._dirty}, (
            "a cut is committed before its sections were read"
        )
        self._reader.rollback()
        # a deadlock rolls back the whole transaction, and its input is still in memory
        attempts = Retrying(
            retry=retry_if_exception_type(Deadlock),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random(0, 0.05),
            reraise=True,
        )
        attempts(self._commit_once, epoch, batches, fills, forget_batches_below)
        if batches:
            self._left.record_batch(batches[-1].batch_no)

    def _commit_once(self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], below: BatchNo) -> None:
        """Run the local transaction once; `commit` repeats it after a deadlock."""
        writer = self._writer
        writer.run(statement("registry", "claimed_numbers"))
        with writer.transaction():
            self._left.check(f"source {writer.place}", registry.lock_epoch(writer, epoch))
            if batches:
                last = batches[-1]
                writer.run(statement("registry", "add_batch", rows=registry.batch_rows(batches)))
                position = {"next_sequence": str(last.last_sequence + 1), "last_batch": str(int(last.batch_no))}
                writer.run(statement("registry", "advance", **position))
            for table_id, numbers in self._seen.items():
                delete_exactly(writer, log_table_name(table_id), numbers)
            for fill in fills:
                if fill.table_id in self._filling:
                    writer.run(registry.store_fill_sql(self._filling[fill.table_id][0], fill))
            writer.run(statement("registry", "forget_batches", below=str(int(below))))

    def rollback(self) -> None:
        self._reader.rollback()


def _require_access(captured: MysqlCapturedTable) -> MysqlAccess:
    """Return the statements that read a table. Raises SchemaChanged if the table differs from the registry."""
    if captured.access is None:
        raise SchemaChanged(f"{captured.schema.qualified_name} differs from the registry")
    return captured.access


def delete_exactly(writer: MysqlConnection, log: str, numbers: LogNumbers) -> None:
    """Delete the log rows with these numbers, without waiting for uncommitted rows of other sessions."""
    for portion in numbers.portions(_CLAIM_ROWS):
        rows = ",".join(f"({n})" for n in portion)
        writer.run(statement("registry", "forget_claimed"))
        writer.run(statement("registry", "claim", rows=rows))
        writer.run(statement("registry", "delete_claimed", log=log))


def open_cut(
    reader: MysqlConnection,
    writer: MysqlConnection,
    loaded: MysqlCaptureState,
    fills: Seq[FillState],
    pace: MysqlFillPace,
    halts: HaltTracker,
    left: RestoreGuard,
) -> MysqlCut | None:
    """Open a snapshot and return the cut of its changes and fills; None if it has neither."""
    watched = [c for c in loaded.captured if c.access is not None and c.state != registry.PAUSED]
    reader.begin(statement("cut", "begin"))
    try:
        dirty_sql = "".join(statement("cut", "dirty_table", log=log_table_name(c.table_id)) for c in watched)
        head = reader.row(statement("cut", "head", dirty=dirty_sql))
        _require_unchanged_registry(reader, loaded.mark, head[1])
        dirty = [c for c, something in zip(watched, head[2:], strict=True) if something == "1"]
        by_table = {f.table_id: f for f in fills}
        filling = {c.table_id: (by_table[c.table_id], c) for c in watched if c.table_id in by_table}
        if not dirty and not filling:
            reader.rollback()
            return None
        _lock_definitions(reader, [*dirty, *(c for _, c in filling.values())])
        return MysqlCut(
            reader=reader,
            writer=writer,
            captured_at_us=int(head[0]),
            dirty=dirty,
            filling=filling,
            pace=pace,
            halts=halts,
            left=left,
        )
    except BaseException:
        reader.rollback()
        raise


def _require_unchanged_registry(reader: MysqlConnection, loaded: str, now: str) -> None:
    """Raise SchemaChanged if the digest of the registry has changed since it was loaded."""
    if now != loaded:
        raise SchemaChanged(f"source {reader.place}: the registry has changed")


def _lock_definitions(reader: MysqlConnection, tables: Seq[MysqlCapturedTable]) -> None:
    """Lock the definitions of the tables until the snapshot ends. Raises SchemaChanged if a table has changed."""
    for captured in tables:
        reader.rows(statement("cut", "pin", table=_require_access(captured).table_sql))
    now = read_definitions(reader, (c.schema.name for c in tables))
    for captured in tables:
        if now.get(captured.schema.name) != captured.definition:
            raise SchemaChanged(f"{captured.schema.qualified_name} has changed")
