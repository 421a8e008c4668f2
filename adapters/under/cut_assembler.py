"""Assembly of increments into whole cuts, and of small cuts into groups; the role of each section (VENUS 3.4).

A target transaction contains one or more whole source cuts. A backlog of small cuts is applied in groups. A cut that is
larger than memory allows is streamed into one target transaction before it is complete. Increments that the broker
sends ahead of their decision are also streamed into one transaction, which the decision ends.

This module decides for all targets which role a section of an increment has. A section without changes of a table (left
out by a tier, or a heartbeat) only adds to a count of offsets. Every other section goes to the target's handler with
its role. A section whose table version differs from the target's is first announced as NEW_VERSION; after that its role
is MARKER or ROWS as usual.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from venus.codec.batch import Batch, TableChanges, decode
from venus.codec.columns import to_columns
from venus.codec.row_bytes import Layout
from venus.errors import ProtocolError
from venus.model import ChangeKind, TableSchema
from venus.network.row_filters import RowsIdentity
from venus.process import tracing
from venus.rpc import reports
from venus.wire import broker_pb2

#: How many bytes of changes go into one target transaction and wait in memory, because rows may be large. A larger cut
#: is streamed.
GROUP_BYTES_MAX = 32 << 20


class Withdrawn(Exception):
    """Increments that were sent ahead of their decision were rolled back."""


class DecisionNeeded(Exception):
    """An increment cannot be written before its decision: the cut has to be read again once it is decided."""


@dataclass(slots=True, kw_only=True)
class CutPiece:
    """One decoded increment. If it was sent ahead, its epoch and time arrive with its decision."""

    start: int
    epoch: int
    committed_at_us: int
    digest: int
    decided: bool
    batch: Batch
    #: If it stands for lost offsets: how many of them were applied before the loss.
    passed: int = 0
    #: When it arrived, for the log of cuts; 0 if that log is off.
    arrived_us: int = 0
    #: Rows identity of the broker's set after this increment; None = unchanged.
    rows: RowsIdentity | None = None
    nbytes: int = 0

    @property
    def end(self) -> int:
        """The first offset after this increment."""
        return self.start + self.batch.offsets - self.passed

    @property
    def is_harmless(self) -> bool:
        """Whether a target may write the increment before its decision: no DDL, no lock that blocks readers."""
        return not self.batch.schemas and all(s.kind is ChangeKind.CHANGES for s in self.batch.sections)

    def drop_changes(self) -> None:
        """Release the memory of changes that the target has; the decision on them may come much later."""
        self.batch = replace(self.batch, schemas=(), sections=())


@dataclass(slots=True, kw_only=True)
class DeliveredCut:
    """The increments of one source cut; complete when its last one has arrived."""

    number: int
    pieces: list[CutPiece] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    #: There are no more increments for this reader, although the last one of the cut did not arrive.
    closed: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the whole cut has arrived, decided or not."""
        return bool(self.pieces) and (self.closed or self.pieces[-1].batch.cut_end)

    @property
    def is_complete(self) -> bool:
        """Whether the whole cut has arrived and is decided."""
        return self.has_ended and (self.closed or self.pieces[-1].decided)

    @property
    def start(self) -> int:
        return self.pieces[0].start

    @property
    def end(self) -> int:
        return self.pieces[-1].end


def decode_piece(increment: broker_pb2.Increment) -> CutPiece:
    """Decode an increment that the broker sent."""
    arrived_us = tracing.step_time_us()
    batch = decode(increment.body)
    if batch.offsets != increment.count:
        raise ProtocolError(f"increment {increment.base_offset} has {batch.offsets} offsets, not {increment.count}")
    return CutPiece(
        start=increment.base_offset,
        epoch=increment.epoch,
        committed_at_us=increment.committed_at_us,
        digest=increment.digest,
        decided=increment.state == broker_pb2.COMMITTED,
        batch=batch,
        arrived_us=arrived_us,
        rows=reports.rows_identity(increment),
        nbytes=len(increment.body),
    )


class CutAssembler:
    """Assembler of increments in offset order into whole cuts. `offset`: the first offset not applied yet.

    Increments below `offset` were applied before (a replay) and are dropped. An increment that straddles `offset`, or
    leaves a gap, is an error of the broker. `bytes_max` limits a transaction; None means GROUP_BYTES_MAX.
    """

    def __init__(self, offset: int, *, dense: bool = True, bytes_max: int | None = None) -> None:
        self._next = offset
        self._dense = dense
        self._bytes_max = bytes_max or GROUP_BYTES_MAX
        self._cuts: deque[DeliveredCut] = deque()
        #: Pieces that were sent ahead and are not decided, in order, whether taken or not.
        self._ahead: deque[CutPiece] = deque()
        #: How many increments arrived twice.
        self.replayed = 0
        #: Number and bytes of the waiting changes.
        self.rows = self.nbytes = 0

    def on_increment(self, increment: broker_pb2.Increment) -> None:
        """Handle the next message of the broker. Raises Withdrawn, after which the stream has to be opened again."""
        match increment.state:
            case broker_pb2.DECIDED:
                self._on_decision(increment)
            case broker_pb2.WITHDRAWN:
                raise Withdrawn
            case _:
                piece = decode_piece(increment)
                self.add(piece)
                if not piece.decided:
                    self._ahead.append(piece)

    def _on_decision(self, increment: broker_pb2.Increment) -> None:
        """Store the decision in the increment that was sent ahead of it."""
        piece = self._ahead.popleft() if self._ahead else None
        if piece is None or (piece.start, piece.digest) != (increment.base_offset, increment.digest):
            raise ProtocolError(f"increment {increment.base_offset} was not sent ahead as it is decided now")
        piece.epoch, piece.committed_at_us, piece.decided = increment.epoch, increment.committed_at_us, True

    @property
    def is_ahead(self) -> bool:
        """Whether any increment was sent ahead of its decision and is still undecided."""
        return bool(self._ahead)

    def add(self, piece: CutPiece) -> None:
        """Add the next increment to its cut; drop an increment that was applied before."""
        if piece.end <= self._next and piece.start < self._next:
            self.replayed += 1
            return
        if piece.batch.lost and piece.start < self._next:
            piece.passed, piece.start = self._next - piece.start, self._next
        if piece.start < self._next or (self._dense and piece.start > self._next):
            raise ProtocolError(f"increment {piece.start}..{piece.end} does not follow offset {self._next}")
        self._next = piece.end
        last = self._cuts[-1] if self._cuts else None
        if last is None or last.has_ended or last.number != piece.batch.cut:
            if last is not None and not last.has_ended:
                if self._dense:
                    raise ProtocolError(f"cut {last.number} has no end before offset {piece.start}")
                last.closed = True
            last = DeliveredCut(number=piece.batch.cut)
            self._cuts.append(last)
        last.pieces.append(piece)
        self._add_size(last, piece.batch.count, piece.nbytes)

    def _add_size(self, cut: DeliveredCut, rows: int, nbytes: int) -> None:
        """Add to the size of a cut, and to that of all waiting changes."""
        cut.rows, cut.nbytes = cut.rows + rows, cut.nbytes + nbytes
        self.rows, self.nbytes = self.rows + rows, self.nbytes + nbytes

    def is_full(self, rows_max: int) -> bool:
        """Return whether the waiting changes fill one target transaction."""
        return self.rows >= rows_max or self.nbytes >= self._bytes_max

    def is_open_full(self, rows_max: int) -> bool:
        """Return whether the first cut fills a transaction before it is complete, so that it has to be streamed."""
        if not self._cuts or self._cuts[0].is_complete:
            return False
        return self._cuts[0].rows >= rows_max or self._cuts[0].nbytes >= self._bytes_max

    @property
    def start(self) -> int:
        """The offset at which the first waiting cut begins."""
        return self._cuts[0].start if self._cuts else self._next

    @property
    def has_complete(self) -> bool:
        """Whether the first waiting cut has arrived completely and is decided."""
        return bool(self._cuts) and self._cuts[0].is_complete

    def close_below(self, offset: int) -> None:
        """Treat the last cut as complete if it ends at or below `offset`: this reader gets no more of it."""
        if self._cuts and self._cuts[-1].end <= offset:
            self._cuts[-1].closed = True

    def take_group(self, rows_max: int, *, end_max: int | None = None) -> list[DeliveredCut]:
        """Take complete cuts up to `rows_max` rows and the limit of bytes, but at least one if any is complete.

        No cut that is taken ends beyond `end_max`.
        """
        taken: list[DeliveredCut] = []
        rows = nbytes = 0
        while self.has_complete:
            cut = self._cuts[0]
            rows, nbytes = rows + cut.rows, nbytes + cut.nbytes
            if (taken and (rows > rows_max or nbytes > self._bytes_max)) or (end_max is not None and cut.end > end_max):
                break
            taken.append(self._cuts.popleft())
            self.rows, self.nbytes = self.rows - cut.rows, self.nbytes - cut.nbytes
        return taken

    def put_back(self, cuts: Sequence[DeliveredCut]) -> None:
        """Put cuts that were taken but not applied back in front of the waiting ones."""
        self._cuts.extendleft(reversed(cuts))
        self.rows, self.nbytes = self.rows + sum(c.rows for c in cuts), self.nbytes + sum(c.nbytes for c in cuts)

    def take_open_pieces(self) -> list[CutPiece]:
        """Take the arrived pieces of the first cut, complete or not; further calls return the rest.

        Raises DecisionNeeded if a piece has to wait for its decision. The caller drops the changes of a piece after
        using them, because the assembler keeps undecided pieces until their decision.
        """
        if not self._cuts:
            return []
        cut = self._cuts[0]
        if not all(piece.decided or piece.is_harmless for piece in cut.pieces):
            raise DecisionNeeded("it alters or empties a table")
        pieces, cut.pieces = cut.pieces, []
        self._add_size(cut, -cut.rows, -cut.nbytes)
        if pieces and pieces[-1].batch.cut_end:
            self._cuts.popleft()
        return pieces


def list_pieces(cuts: Sequence[DeliveredCut]) -> list[CutPiece]:
    """Return the increments of several cuts in order."""
    return [piece for cut in cuts for piece in cut.pieces]


def log_applied(business: str, target: str, cuts: Iterable[DeliveredCut], begun_us: int = 0) -> None:
    """Log that a target's transaction with these cuts, begun at `begun_us`, is durable (venus/process/tracing.py)."""
    if not tracing.has_listener():
        return
    now_us = time.time_ns() // 1000
    for cut in cuts:
        last = cut.pieces[-1]
        tracing.report_stage(
            tracing.CutStage(
                name="applied",
                business=business,
                cut=cut.number,
                captured_at_us=last.batch.captured_at_us,
                began_us=last.committed_at_us,
                ended_us=now_us,
                facts={"target": target, "rows": cut.rows, "next_offset": cut.end},
                steps={"arrived": last.arrived_us, "begun": begun_us},
            )
        )


class SectionRole(Enum):
    """Role of a section: how a target handles it."""

    HELD = auto()  # the table does not follow, or is unknown
    NEW_VERSION = auto()
    MARKER = auto()  # the section concerns the whole table
    ROWS = auto()


HELD, NEW_VERSION, MARKER, ROWS = SectionRole


class SectionWalk:
    """Walk over the sections of increments in offset order, for one target.

    `find_schema` returns a table version; it must know every version of a heartbeat table. `find_version` returns the
    version that a table has if the table follows the stream. `only` limits the walk to one table; `start` and `end`
    limit it to a range of offsets.
    """

    #: How many of the offsets belong to no table.
    other = 0
    #: The last heartbeat, Unix microseconds.
    heartbeat_us: int | None = None

    def __init__(
        self,
        find_schema: Callable[[int, int], TableSchema | None],
        find_version: Callable[[int], int | None],
        only: int | None = None,
        start: int = 0,
        end: int = 1 << 63,
    ) -> None:
        self._find_schema, self._find_version = find_schema, find_version
        self._only, self._start, self._end = only, start, end

    def walk(self, piece: CutPiece) -> Iterator[tuple[SectionRole, TableChanges, int]]:
        """Yield the role of each section, the section, and its first offset."""
        offset, only, start, end = piece.start, self._only, self._start, self._end
        for section in piece.batch.sections:
            at, offset = offset, offset + section.count
            table_id = section.table_id
            if (only is not None and table_id != only) or at >= end or offset <= start:
                continue
            if section.left_out:
                self._count_other(at, offset)
                continue
            schema = self._find_schema(table_id, section.schema_version)
            if schema is not None and schema.is_heartbeat:
                self._count_other(at, offset)
                self.heartbeat_us = read_heartbeat(section, schema) or self.heartbeat_us
                continue
            version = self._find_version(table_id)
            if version is None:
                yield HELD, section, at
                continue
            if version != section.schema_version:
                yield NEW_VERSION, section, at
            yield ROWS if section.kind is ChangeKind.CHANGES else MARKER, section, at
        if offset != piece.end:  # an increment without changes takes offsets as well
            self._count_other(offset, piece.end)

    def _count_other(self, start: int, end: int) -> None:
        """Count the offsets of this range that belong to no table."""
        self.other += max(min(end, self._end) - max(start, self._start), 0)


def read_heartbeat(section: TableChanges, schema: TableSchema) -> int | None:
    """Return the last heartbeat of a section, the source's clock in Unix microseconds; None if it has none.

    The age of a heartbeat on arrival is the end-to-end lag.
    """
    if section.kind is not ChangeKind.CHANGES or section.is_deleted.all():
        return None
    layout = Layout.of(schema)
    names = [c.name.lower() for c in layout.columns]
    value = to_columns(section.record_ids, section.rows, layout)[names.index("beat_at")][-1]
    return int(value) if isinstance(value, str) and value.isdecimal() else None
