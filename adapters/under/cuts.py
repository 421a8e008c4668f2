"""Puts delivered increments together into whole cuts, and small cuts into groups (VENUS 3.4).

A target transaction is one or more whole source cuts. When there is a backlog, small cuts are applied together; a cut
that is larger than memory allows is handed on before it is complete, and is streamed into one target transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from venus.codec.batch import Batch, decode
from venus.errors import ProtocolError
from venus.wire import broker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One increment, decoded."""

    start: int
    epoch: int
    committed_at_us: int
    batch: Batch

    @property
    def end(self) -> int:
        """The offset behind its last change; an increment without changes takes one offset."""
        return self.start + max(self.batch.count, 1)


@dataclass(slots=True, kw_only=True)
class Cut:
    """The increments of one source cut; complete when its last one is there."""

    number: int
    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    #: Known to have no more increments for this reader, although its last one was not seen.
    closed: bool = False

    @property
    def complete(self) -> bool:
        return bool(self.pieces) and (self.closed or self.pieces[-1].batch.cut_end)

    @property
    def start(self) -> int:
        return self.pieces[0].start

    @property
    def end(self) -> int:
        return self.pieces[-1].end


def piece_of(increment: broker_pb2.Increment) -> Piece:
    """Decode an increment."""
    batch = decode(increment.body)
    if max(batch.count, 1) != increment.count:
        raise ProtocolError(f"increment {increment.base_offset} has {batch.count} changes, not {increment.count}")
    return Piece(
        start=increment.base_offset,
        epoch=increment.epoch,
        committed_at_us=increment.committed_at_us,
        batch=batch,
    )


class Assembler:
    """Takes increments in offset order and gives out whole cuts. `offset` = the first one not applied yet.

    Increments below `offset` were applied before (a replay) and are dropped; one that straddles it cannot have been
    applied as a whole, and a gap cannot be mended here: both are the broker's error.
    """

    def __init__(self, offset: int, *, dense: bool = True) -> None:
        self._next = offset
        self._dense = dense
        self._cuts: deque[Cut] = deque()
        #: Increments that were there twice.
        self.replayed = 0

    def add(self, piece: Piece) -> None:
        """Take the next increment."""
        if piece.end <= self._next and piece.start < self._next:
            self.replayed += 1
            return
        if piece.start < self._next or (self._dense and piece.start > self._next):
            raise ProtocolError(f"increment {piece.start}..{piece.end} does not follow offset {self._next}")
        self._next = piece.end
        last = self._cuts[-1] if self._cuts else None
        if last is None or last.complete or last.number != piece.batch.cut:
            if last is not None and not last.complete:
                if self._dense:
                    raise ProtocolError(f"cut {last.number} has no end before offset {piece.start}")
                last.closed = True
            last = Cut(number=piece.batch.cut)
            self._cuts.append(last)
        last.pieces.append(piece)
        last.rows += piece.batch.count

    @property
    def rows(self) -> int:
        """How many changes wait here."""
        return sum(cut.rows for cut in self._cuts)

    @property
    def open_rows(self) -> int:
        """How many changes the cut has that is not complete yet."""
        return self._cuts[-1].rows if self._cuts and not self._cuts[-1].complete else 0

    @property
    def has_complete(self) -> bool:
        return bool(self._cuts) and self._cuts[0].complete

    def close_below(self, offset: int) -> None:
        """Take the last cut for complete if it lies below `offset`: no more of it is for this reader."""
        if self._cuts and self._cuts[-1].end <= offset:
            self._cuts[-1].closed = True

    def group(self, rows_max: int, *, end_max: int | None = None) -> list[Cut]:
        """Take complete cuts, at least one if there is one, together no more than `rows_max`; none beyond `end_max`."""
        taken: list[Cut] = []
        rows = 0
        while self.has_complete and (not taken or rows + self._cuts[0].rows <= rows_max):
            if end_max is not None and self._cuts[0].end > end_max:
                break
            cut = self._cuts.popleft()
            taken.append(cut)
            rows += cut.rows
        return taken

    def open_pieces(self) -> list[Piece]:
        """Take what there is of the first cut, complete or not; the rest follows by further calls."""
        if not self._cuts:
            return []
        cut = self._cuts[0]
        pieces, cut.pieces, cut.rows = cut.pieces, [], 0
        if pieces and pieces[-1].batch.cut_end:
            self._cuts.popleft()
        return pieces


def pieces_of(cuts: Sequence[Cut]) -> list[Piece]:
    """Return the increments of several cuts in order."""
    return [piece for cut in cuts for piece in cut.pieces]
