"""One cut of an Oracle database: a read-only transaction, then the local transaction (VENUS 3.3).

The claim list contains every log row that the snapshot sees, or as many as one cut takes (session/options.py). The
local transaction deletes exactly the rows that were read, by their numbers. A log row that commits later may have a
number in the same range, but it is not on the claim list and waits for the next cut.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.contract import FillState, SnapshotLost
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import segments
from venus.adapters.dialects.oracle.language.inline import PolledRange
from venus.adapters.dialects.oracle.rows import DELETED, OracleAccess, cursor_key, find_vanished_rows, regroup_rows
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.options import SLICE_ROWS, CutBounds, slice_numbers
from venus.adapters.dialects.oracle.sql import statement
from venus.adapters.dialects.registry_rules import HaltTracker, UnfitRow
from venus.adapters.dialects.rows import FillCursor
from venus.codec.batch import TableChanges, marker
from venus.errors import SourceError
from venus.model import BatchNo, BatchRecord, ChangeKind, Epoch

#: Why a table has to be read again: a row has vanished without a logged deletion. VENUS does not send a tombstone.
VANISHED = (
    "row {key} was changed and has vanished without a logged deletion: a policy hides it from VENUS's user"
    " (`venus check` names it), or it was removed without a trigger (TRUNCATE, a partition, FLASHBACK TABLE):"
    " read the table again"
)
#: The number of log rows that one round trip of the exact delete removes.
DELETE_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleClaim:
    """The part of a table's log that a cut reads: log row numbers, or a range of Sequences for an inline table."""

    access: OracleAccess
    numbers: array[int]
    truncated: bool
    polled: PolledRange | None = None
    #: Whether the claim contains all rows of the log that the snapshot sees.
    complete: bool = True

    @property
    def log_version(self) -> int:
        """A number that changes with every write to the table: the count of its log rows, or its highest Sequence."""
        return self.polled.highest if self.polled else len(self.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The part of a table's log that one statement reads."""

    #: The statement reads the whole log and no key was sent before, so the log shows everything about each key.
    whole: bool
    #: The statement reads everything that this cut claims.
    in_one: bool = True
    #: Keys of earlier slices.
    seen: set[Row] = field(default_factory=set)

    def drop_sent_rows(self, rows: list[Row], keys: int) -> list[Row]:
        """Return the rows that this cut has not sent yet. All slices read one snapshot, so a sent row is unchanged."""
        if self.in_one:
            return rows
        found = [row for row in rows if row[:keys] not in self.seen]
        self.seen.update(row[:keys] for row in found)
        return found


class OracleCut:
    """An open cut: the reader is in a read-only transaction, the snapshot, until `commit` or `rollback`."""

    def __init__(
        self,
        *,
        reader: OracleSession,
        writer: OracleSession,
        captured_at_us: int,
        claims: Seq[OracleClaim],
        ddl_numbers: Seq[int],
        fills: Mapping[int, tuple[FillState, OracleAccess]],
        halts: HaltTracker,
        bounds: CutBounds,
        deleted: dict[str, int],
        watches_segments: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._captured_at_us = captured_at_us
        self._claims = {c.access.layout.schema.table_id: c for c in claims}
        self._ddl_numbers = ddl_numbers
        self._fills = fills
        self._halts = halts
        self._deleted = deleted
        self._read = False
        self._vanished: dict[int, str] = {}
        self._bounds = bounds
        self._watches_segments = watches_segments
        self._monotonic = monotonic
        #: The log rows read of each table, which `commit` removes.
        self._taken: dict[int, array[int]] = {}
        self._partly: set[int] = set()
        self._left = False

    @property
    def captured_at_us(self) -> int:
        """The database's clock when the snapshot was opened, in Unix microseconds."""
        return self._captured_at_us

    def read_sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        """Stream the changes table by table, within the bounds of a cut. Raises TableHalted at an unfit row."""
        began, nbytes, is_first = self._monotonic(), 0, True
        for table_id in self._halts.order_by_halts(self._claims):
            claim = self._claims[table_id]
            # the records of TRUNCATE belong to the whole database: this cut carries all of them
            if not (is_first or claim.truncated) and self._bounds.is_full(nbytes, self._monotonic() - began):
                self._postpone(table_id)
                continue
            is_first = False
            schema = claim.access.layout.schema
            self._halts.start_table()
            if claim.truncated:
                yield marker(schema.table_id, schema.version, ChangeKind.TRUNCATE)
            try:
                for section in self._read_claim(claim, began, nbytes, rows_max=rows_max, bytes_max=bytes_max):
                    nbytes += section.nbytes
                    yield section
            except UnfitRow as why:
                raise self._halts.record_halt(schema, claim.log_version, why) from why
            except SnapshotLost:
                self._bounds.record_lost_snapshot(sum(map(len, self._taken.values())) + len(claim.numbers))
                raise
        self._read = True

    def _postpone(self, table_id: int) -> None:
        """Postpone a table to the next cut, which begins with it."""
        self._claims.pop(table_id)
        if not self._left:
            self._bounds.first_table = table_id
        self._left = True

    def _read_claim(
        self, claim: OracleClaim, began: float, nbytes: int, *, rows_max: int, bytes_max: int
    ) -> Iterator[TableChanges]:
        """Read the claimed part of a table's log in slices; when the cut is full, leave the rest to the next cut."""
        if claim.polled:
            place = {"last": claim.polled.last, "hi": claim.polled.highest}
            yield from self._read_changes(claim, place, LogPart(whole=True), rows_max=rows_max, bytes_max=bytes_max)
            return
        table_id = claim.access.layout.schema.table_id
        taken = self._taken[table_id] = array("q")
        in_one = len(claim.numbers) <= SLICE_ROWS
        part = LogPart(whole=in_one and claim.complete and table_id not in self._bounds.incomplete, in_one=in_one)
        for numbers in slice_numbers(claim.numbers):
            if taken and self._bounds.is_full(nbytes, self._monotonic() - began):
                break
            place = {"lo": min(numbers), "hi": max(numbers)}
            for section in self._read_changes(claim, place, part, rows_max=rows_max, bytes_max=bytes_max):
                nbytes += section.nbytes
                # a part of the log does not show whether a row is new
                yield section if part.whole else replace(section, inserts_only=False)
            taken.extend(numbers)
        if len(taken) < len(claim.numbers) or not claim.complete:
            self._partly.add(table_id)

    def _read_changes(
        self, claim: OracleClaim, place: dict[str, int], part: LogPart, *, rows_max: int, bytes_max: int
    ) -> Iterator[TableChanges]:
        """Read the changes of one slice: its log rows joined with the present rows of the table."""
        access = claim.access
        deleted: set[Row] | None = None if not part.whole else set()
        # a generator that is abandoned midway would keep the session's cursor open
        with closing(self._reader.stream(access.changes_sql, place, access.piece)) as pieces:
            for portion in regroup_rows(pieces, access, self._reader.read_lob, rows_max=rows_max, bytes_max=bytes_max):
                rows = part.drop_sent_rows(portion, access.layout.key_count)
                if not self._is_truncated_claim(claim) and find_vanished_rows(rows):
                    if deleted is None:
                        deleted = {tuple(key) for key in self._reader.fetch_rows(access.deleted_sql, place)}
                    rows = self._drop_vanished_rows(rows, access, deleted)
                yield from access.build_sections(rows, bytes_max=bytes_max)

    def _is_truncated_claim(self, claim: OracleClaim) -> bool:
        """Whether a TRUNCATE may have removed rows whose keys the claimed log rows name."""
        return claim.truncated or claim.access.layout.schema.table_id in self._bounds.emptied

    def _drop_vanished_rows(self, rows: list[Row], access: OracleAccess, deleted: Collection[Row]) -> list[Row]:
        """Drop rows that no longer exist although the log has no deletion, and record the first of them."""
        keys = access.layout.key_count
        lost = [row for row in find_vanished_rows(rows) if row[:keys] not in deleted]
        if lost:
            self._vanished.setdefault(access.layout.schema.table_id, access.describe_key(lost[0]))
        return [row for row in rows if row[-2] or row[-1] == DELETED or row[:keys] in deleted]

    def read_fill_chunk(
        self, fill: FillState, *, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], FillState]:
        """Read the next key range of a table. Raises TableHalted."""
        if fill.table_id not in self._fills:
            return [], fill
        access = self._fills[fill.table_id][1]
        rows_max = min(rows_max, self._bounds.rows)
        self._halts.start_table()
        try:
            # rows beyond the byte limit are dropped: the next chunk reads them again
            with closing(self._read_next_rows(access, fill.cursor, rows_max)) as pieces:
                found = regroup_rows(pieces, access, self._reader.read_lob, rows_max=rows_max, bytes_max=bytes_max)
                rows = next(found, [])
            sections = list(access.build_sections(rows, bytes_max=bytes_max)) if rows else []
        except SnapshotLost:
            self._bounds.record_lost_snapshot(rows_max)
            raise
        except UnfitRow as why:
            claim = self._claims.get(fill.table_id)
            raise self._halts.record_halt(access.layout.schema, claim.log_version if claim else 0, why) from why
        cursor = self._cursor_after(rows[-1], fill, access) if rows else fill.cursor
        done = len(rows) < rows_max and self._is_end(access, cursor)
        return sections, replace(fill, cursor=cursor, rows_done=fill.rows_done + len(rows), done=done)

    def _cursor_after(self, row: Row, fill: FillState, access: OracleAccess) -> bytes:
        """Return the cursor of a fill after this row. The first call also reads the key at which the fill ends."""
        keys = access.layout.key_count
        if fill.cursor:
            end = FillCursor.parse(fill.cursor).end
        else:
            end = cursor_key(self._reader.fetch_row(access.fill.last, {"lines": 1}), keys)
        return FillCursor(cursor_key(row, keys), end).cursor

    def _is_end(self, access: OracleAccess, cursor: bytes) -> bool:
        """Return whether a fill has no row after a cursor: a short portion may have ended at the byte limit."""
        if not cursor:
            return True
        with closing(self._read_next_rows(access, cursor, 1)) as pieces:
            return next(pieces, None) is None

    def _read_next_rows(self, access: OracleAccess, cursor: bytes, rows_max: int) -> Generator[list[Row], None, None]:
        """Yield at most `rows_max` rows after a cursor, in pieces."""
        left = rows_max
        for sql, binds in access.fill.build_reads(cursor, rows_max):
            with closing(self._reader.stream(sql, binds, min(access.piece, left))) as pieces:
                for piece in pieces:
                    yield piece[:left]
                    left -= len(piece)
                    if left <= 0:
                        return

    def commit(
        self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], forget_batches_below: BatchNo
    ) -> None:
        """Run the local transaction: epoch, batch rows, checkpoint, exact delete, fills."""
        if self._claims and not self._read:
            raise SourceError(f"{self._writer.place}: the sections were not read to their end")
        self._reader.rollback()
        with self._writer.transaction():
            registry.lock_epoch(self._writer, epoch)
            if batches:
                registry.add_batches(self._writer, batches)
                last = batches[-1]
                binds = {"next_sequence": last.last_sequence + 1, "last_batch": last.batch_no}
                self._writer.run(statement("registry", "advance"), binds)
            self._delete_log()
            for claim in self._claims.values():
                if claim.truncated and self._watches_segments:
                    segments.forget_segment_marks(self._writer, claim.access.layout.schema.table_id)
            for table_id, key in self._vanished.items():
                registry.mark_missed_changes(self._writer, table_id, VANISHED.format(key=key))
            for fill in fills:
                if fill.table_id in self._fills:
                    registry.advance_fill(self._writer, self._fills[fill.table_id][0], fill)
            self._writer.run(statement("registry", "forget_batches"), {"below": forget_batches_below})
        for table_id, taken in self._taken.items():
            log = self._claims[table_id].access.log
            self._deleted[log] = self._deleted.get(log, 0) + len(taken)
        emptied = {t for t in self._partly if self._is_truncated_claim(self._claims[t])}
        self._bounds.emptied = (self._bounds.emptied - self._claims.keys()) | emptied
        self._bounds.incomplete = (self._bounds.incomplete - self._claims.keys()) | self._partly
        self._bounds.record_success()

    def _delete_log(self) -> None:
        """Remove exactly the log rows that were read and shipped."""
        for claim in self._claims.values():
            if claim.polled:
                self._advance_polled(claim.access.layout.schema.qualified_name, claim.polled)
            else:
                taken = self._taken[claim.access.layout.schema.table_id]
                self._delete_numbers(statement("cut", "delete", log=claim.access.log), taken)
        self._delete_numbers(statement("registry", "ddl_done"), self._ddl_numbers)

    def _advance_polled(self, name: str, polled: PolledRange) -> None:
        """Store the Sequence up to which this cut has read a table that is captured inline."""
        binds = {"name": name, "last": polled.last, "hi": polled.highest}
        if self._writer.run(statement("inline", "advance"), binds) != 1:
            raise SourceError(
                f"{self._writer.place}: another session has changed LAST_SEQUENCE of {name} in VENUS_POLLED"
            )

    def _delete_numbers(self, sql: str, numbers: Seq[int]) -> None:
        """Delete the rows with these numbers. Raises SourceError if a log row no longer exists."""
        gone = 0
        for start in range(0, len(numbers), DELETE_ROWS):
            gone += self._writer.run_many(sql, [(n,) for n in numbers[start : start + DELETE_ROWS]])
        if gone != len(numbers):
            raise SourceError(
                f"{self._writer.place}: {len(numbers) - gone} log rows of this cut were deleted by another session",
                hint="only this adapter may delete from VENUS_L tables: read the tables again (resync)",
            )

    def rollback(self) -> None:
        """Close the snapshot; the cut has written nothing."""
        self._reader.rollback()
