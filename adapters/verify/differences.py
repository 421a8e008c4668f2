"""A fill by comparison: the source's rows that differ from the broker's full data go into the log, and cuts ship them.

DROP, TRUNCATE and EXCHANGE PARTITION fire no trigger, and the source no longer shows which rows the partition had. The
full data reveals these rows: rows with missed changes are exactly the rows that differ. So capture compares the table
in a separate thread (upper/comparisons.py), instead of shipping the whole table.

Three conditions make the result exact. The full data is pinned once it holds everything that was captured before the
request. Every source row is read after the full data was pinned. The fill ends only if the table's state and reason are
unchanged, because a further missed change alters one of them. A row that is already on its way may be shipped twice; if
the process is killed, the comparison begins again. A table that cannot be compared, or that differs in too many rows,
is read and shipped as a whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

from venus.adapters.dialects.contract import RegisteredTable, Source
from venus.adapters.dialects.registry import open_source
from venus.adapters.dialects.verify_contract import Key, SourceReader, Subject, open_reader
from venus.adapters.verify.findings import DifferenceKind
from venus.adapters.verify.history import open_snapshot
from venus.adapters.verify.repair import KEYS_AT_ONCE
from venus.adapters.verify.slice_tasks import ComparisonEnds, ComparisonSide, SuspectRow, close_sides
from venus.adapters.verify.suspect_resolution import SuspectResolver
from venus.adapters.verify.table_comparison import ChosenTable, TableComparison, VerifyOptions, VerifyProgress
from venus.config import Settings
from venus.errors import OffsetTrimmed, SourceError, VenusError
from venus.model import Sequence
from venus.process.runners import LocalRunner
from venus.rpc.address import broker_address
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: How many times to compare a table that has more differences than a slice may list.
PASSES_MAX = 3
#: Pause between two reads of the log, and of the broker's full data.
LOOK_S = 0.1
#: How often the progress is stored.
PROGRESS_S = 1.0


class ComparisonEnded(Exception):
    """The comparison was stopped, or another request has replaced it."""


@dataclass(slots=True, kw_only=True)
class ComparedFill:
    """Fill of one table that ships only the rows that differ from the broker's full data."""

    settings: Settings
    table: RegisteredTable
    #: Everything below this Sequence was captured before the request was seen.
    sent_before: Sequence
    is_stopping: Callable[[], bool]
    monotonic: Callable[[], float] = time.monotonic
    #: How many rows were compared, and how many keys were written into the log.
    rows: int = 0
    shipped: int = 0
    _stored_at: float = field(default=float("-inf"))

    def run(self) -> None:
        """Compare the table, ship its differences, and end its fill. After a retryable error the fill is unchanged."""
        with closing(open_source(self.settings)) as source, closing(open_reader(self.settings)) as reader:
            try:
                self._compare(source, reader)
            except ComparisonEnded:
                return
            except VenusError as error:
                if error.retryable:
                    raise
                logger.warning("%s is read and shipped as a whole: %s", self.table.schema.qualified_name, error)
                self.rows = 0
                self._advance(source, after="")
                return
            finally:
                close_sides()
            if self._advance(source, after="", done=True):
                name = self.table.schema.qualified_name
                logger.info("%s was compared with the full data, %s of its rows differed", name, f"{self.shipped:,}")

    def _compare(self, source: Source, reader: SourceReader) -> None:
        """Find the rows that differ from the full data, and ship them while the comparison runs."""
        options = VerifyOptions(target="the full data", leg="source")
        subject = Subject(schema=self.table.schema, digest=options.digest)
        self._store_progress(source)

        def record_progress(progress: VerifyProgress) -> None:
            self.rows = progress.rows
            self._store_progress(source)

        for _ in range(PASSES_MAX):
            with self._open_full_data(source) as snapshot:
                ends = ComparisonEnds(
                    settings=self.settings,
                    left=ComparisonSide.SOURCE,
                    right=ComparisonSide.FULL,
                    snapshot=snapshot.SerializeToString(),
                )
                result = TableComparison(
                    options,
                    ends,
                    ChosenTable(subject=subject),
                    lambda _: LocalRunner(),
                    record_progress,
                    partial(self._ship, source, reader, ends, subject),
                ).compare()
            if result.undecided:
                raise SourceError(result.undecided[0].reason)
            if not result.cut_short:
                return
        raise SourceError("too many of its rows differ from the full data")

    @contextmanager
    def _open_full_data(self, source: Source) -> Iterator[broker_pb2.Snapshot]:
        """Pin the full data once it holds everything that was captured before the request."""
        table_ids, holder = [self.table.schema.table_id], f"comparison of {self.table.schema.qualified_name}"
        while True:
            with open_snapshot(
                broker_address(self.settings), self.settings.business.name, table_ids, holder
            ) as snapshot:
                if snapshot.sequence + 1 >= self.sent_before:
                    yield snapshot
                    return
            self._pause(source)

    def _ship(
        self, source: Source, reader: SourceReader, ends: ComparisonEnds, subject: Subject, suspects: Seq[SuspectRow]
    ) -> None:
        """Write the keys of rows that differ into the log, and wait until most of each portion are captured."""
        keys = self._differing_keys(ends, subject, suspects)
        for first in range(0, len(keys), KEYS_AT_ONCE):
            portion = keys[first : first + KEYS_AT_ONCE]
            reader.touch(subject, portion)
            self.shipped += len(portion)
            while len(portion) == KEYS_AT_ONCE and self._count_waiting(reader, subject, portion) > KEYS_AT_ONCE // 2:
                self._pause(source)

    def _differing_keys(self, ends: ComparisonEnds, subject: Subject, suspects: Seq[SuspectRow]) -> list[Key]:
        """Return the keys of the suspects that are wrong or undecided, without those whose change is on its way."""
        try:
            settled = SuspectResolver(ends, subject).settle(suspects, wait_s=0)
        except OffsetTrimmed:  # all of them are shipped
            return [suspect.key for suspect in suspects]
        if any(d.kind is DifferenceKind.REPEATED for d in settled.differences.values()):
            raise SourceError("several of its rows have the same key")
        return [*dict.fromkeys([*settled.differences, *settled.undecided])]

    @staticmethod
    def _count_waiting(reader: SourceReader, subject: Subject, keys: Seq[Key]) -> int:
        """Return how many of these keys still wait in the source's log."""
        reader.begin(subject)
        waiting = len(reader.find_waiting_keys(subject, keys))
        reader.end()
        return waiting

    def _store_progress(self, source: Source) -> None:
        """Store the progress from time to time. Raises ComparisonEnded."""
        if self.is_stopping():
            raise ComparisonEnded
        if (now := self.monotonic()) >= self._stored_at + PROGRESS_S:
            self._stored_at = now
            if not self._advance(source, after=self.table.reason):
                raise ComparisonEnded

    def _advance(self, source: Source, *, after: str, done: bool = False) -> bool:
        """Store the progress in the registry; an empty `after` ends the comparison. Return False if it had ended."""
        table_id, before = self.table.schema.table_id, self.table.reason
        return source.registry.advance_comparison(table_id, before, after, self.rows, done=done)

    def _pause(self, source: Source) -> None:
        """Wait a moment, after storing the progress. Raises ComparisonEnded."""
        self._store_progress(source)
        time.sleep(LOOK_S)


def compare_fill(
    settings: Settings, table: RegisteredTable, sent_before: Sequence, is_stopping: Callable[[], bool]
) -> None:
    """Compare a table with the full data, and end its fill (see ComparedFill)."""
    ComparedFill(settings=settings, table=table, sent_before=sent_before, is_stopping=is_stopping).run()
