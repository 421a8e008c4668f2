"""Ends of a stream's micro-batches: at the ends of increments, or of whole cuts, within limits of rows and bytes.

One reader beside the driver scans the increments ahead of the executors, which read them again; it keeps a few numbers
of each. It can restore all of its state, because Spark's checkpoint holds the only lasting state.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from venus.errors import OtherRows, ProtocolError
from venus.network.row_filters import RowsIdentity, describe_differences, find_differing
from venus.rpc import reports
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

CREDIT_BYTES = 8 << 20
#: How long to wait for increments when none seem to be available.
PAUSE_S = 0.05
#: How many increments a micro-batch has at most (still whole cuts): if few changes concern the stream, the other limits
#: have no effect.
MARKS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementMark:
    """End of an increment, with the figures of its changes that concern the stream."""

    end: int
    rows: int
    nbytes: int
    cut_end: bool
    epoch: int
    identity: RowsIdentity | None = None  # the identity of the set's rows after it; None = unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """Limit of a micro-batch; 0 means no limit."""

    rows: int = 0
    nbytes: int = 0

    def is_reached(self, rows: int, nbytes: int) -> bool:
        """Return whether this many rows and bytes fill a micro-batch, so that reading ahead can stop."""
        return bool((self.rows and rows >= self.rows) or (self.nbytes and nbytes >= self.nbytes))

    def is_exceeded(self, rows: int, nbytes: int) -> bool:
        """Return whether these are more rows or bytes than a micro-batch may have."""
        return bool((self.rows and rows > self.rows) or (self.nbytes and nbytes > self.nbytes))


def boundary(marks: deque[IncrementMark], limit: BatchLimit, *, whole_cuts: bool) -> IncrementMark | None:
    """Return the end of a micro-batch that begins before these marks: as far as `limit` allows, but at least one step.

    None if there is no step: no increment, or no whole cut yet. Has no side effects.
    """
    chosen: IncrementMark | None = None
    rows = nbytes = 0
    for mark in marks:
        rows += mark.rows
        nbytes += mark.nbytes
        if chosen is not None and limit.is_exceeded(rows, nbytes):
            break
        if mark.cut_end or not whole_cuts:
            chosen = mark
    return chosen


class BatchPlanner:
    """Planner of micro-batches that reads ahead. With a `group`, the broker keeps what Spark has not committed."""

    def __init__(self, address: str, business: str, group: str, concerns: Callable[[int], bool]) -> None:
        self._address, self._business, self._group = address, business, group
        self._concerns = concerns
        self._subscriber: Subscriber | None = None
        self._start = self._read_to = -1
        self._committed: int | None = None  # Spark requests nothing below it any more
        self._marks: deque[IncrementMark] = deque()
        self._rows = self._nbytes = self._cut_ends = 0  # totals of all marks
        self._identity: RowsIdentity | None = None  # the identity at the position `_read_to`
        #: Table versions that were described while reading, by table and version.
        self.versions: dict[tuple[int, int], bytes] = {}

    def begin(self, offset: int, epoch: int, identity: RowsIdentity | None = None) -> None:
        """Move to an offset; reopen the stream if necessary. Raises OffsetTrimmed, OffsetDiverged, OtherRows.

        `identity`: the identity of the rows read up to this offset; None if unknown.
        """
        while self._marks and self._start < offset and self._marks[0].end <= offset:
            mark = self._marks.popleft()
            self._count(mark, -1)
            self._start = mark.end
        if self._subscriber is not None and offset == self._start:
            return
        self.close()
        group = self._group or f"spark/{uuid.uuid4().hex}"
        subscriber = Subscriber(
            self._address, self._business, group, credit_bytes=CREDIT_BYTES, transient=not self._group
        )
        try:
            opened = subscriber.open(offset, epoch, kept=self._committed if self._group else None)
            self._identity = self._check_same_rows(identity, reports.rows_identity(opened))
        except BaseException:
            subscriber.close()
            raise
        self._subscriber, self._start, self._read_to = subscriber, offset, offset

    def own(self, identity: RowsIdentity | None) -> RowsIdentity | None:
        """Return the part of an identity that concerns the stream."""
        if identity is None:
            return None
        return replace(identity, tables=tuple(one for one in identity.tables if self._concerns(one.table_id)))

    def _check_same_rows(self, brought: RowsIdentity | None, here: RowsIdentity | None) -> RowsIdentity | None:
        """Return the identity of the set's rows. Raises OtherRows if it differs from the rows read so far."""
        brought, here = self.own(brought), self.own(here)
        if brought is not None and here is not None and (differ := find_differing(brought, here)):
            raise OtherRows(
                f"{self._business}: set {here.set} has other rows than those that the stream has read: "
                f"{describe_differences(differ, brought, here)}",
                hint="give that set the same predicates, or begin again with a new checkpoint",
            )
        return here

    def end_within(self, limit: BatchLimit, *, whole_cuts: bool, until: int | None = None) -> IncrementMark | None:
        """Return the end of the next micro-batch, not beyond `until`; None if there is nothing new."""
        assert self._subscriber is not None
        while not self._has_enough(limit, whole_cuts=whole_cuts) and (until is None or self._read_to < until):
            increments = self._subscriber.increments(PAUSE_S)
            for increment in increments:
                self._take(increment)
            if (
                not increments
                and self._subscriber.position <= self._read_to
                and (until is None or not self._is_behind(until))
            ):
                break
        known = deque(m for m in self._marks if until is None or m.end <= until)
        return boundary(known, limit, whole_cuts=whole_cuts)

    def _is_behind(self, until: int) -> bool:
        """Return whether increments that must exist have not arrived yet; pause briefly to avoid spinning."""
        if self._read_to < until:
            time.sleep(PAUSE_S)
        return self._read_to < until

    def _has_enough(self, limit: BatchLimit, *, whole_cuts: bool) -> bool:
        """Return whether the marks read ahead fill a micro-batch."""
        has_step = bool(self._cut_ends) if whole_cuts else bool(self._marks)
        return has_step and (limit.is_reached(self._rows, self._nbytes) or len(self._marks) >= MARKS_MAX)

    def _count(self, mark: IncrementMark, sign: int = 1) -> None:
        """Add the figures of a mark to the totals; `sign` = -1 subtracts them."""
        self._rows += sign * mark.rows
        self._nbytes += sign * mark.nbytes
        self._cut_ends += sign * mark.cut_end

    def _take(self, increment: broker_pb2.Increment) -> None:
        """Add the mark of the next increment; ignore one that was read before."""
        if increment.base_offset + increment.count <= self._read_to:
            return
        body = change_pb2.BatchBody.FromString(increment.body)
        if increment.base_offset > self._read_to:
            raise ProtocolError(f"increment {increment.base_offset} does not follow offset {self._read_to}")
        own = [t for t in body.tables if self._concerns(t.table_id)]
        for schema in body.schemas:
            if self._concerns(schema.table_id):
                self.versions[schema.table_id, schema.version] = schema.SerializeToString()
        self._read_to = increment.base_offset + increment.count
        self._identity = self.own(reports.rows_identity(increment)) or self._identity
        mark = IncrementMark(
            end=self._read_to,
            rows=sum(t.count for t in own),
            nbytes=sum(len(t.record_ids) + len(t.rows) for t in own),
            cut_end=body.cut_end,
            epoch=increment.epoch,
            identity=self._identity,
        )
        self._marks.append(mark)
        self._count(mark)

    def rows_between(self, end: int) -> int:
        """Return how many rows concern the stream between the planner's position and `end`."""
        return sum(m.rows for m in self._marks if m.end <= end)

    def acknowledge(self, offset: int) -> None:
        """Acknowledge everything below `offset`, now or when the stream is open again."""
        self._committed = max(offset, self._committed or 0)
        if self._subscriber is not None and self._group:
            self._subscriber.acknowledge(offset)

    def close(self) -> None:
        """End the stream."""
        if self._subscriber is not None:
            self._subscriber.close()
        self._subscriber = None
        self._marks.clear()
        self._rows = self._nbytes = self._cut_ends = 0
