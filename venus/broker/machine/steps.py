"""What an entry does to the half messages, without any I/O.

The same step is taken twice: at the log's end, to decide what may follow (the *proposed* state), and at the high
watermark, when the machine applies the entry (the *applying* state).
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.broker.log.entry import Entry, EntryKind
from venus.broker.machine import half, home, mirroring, passing_over
from venus.broker.machine.envelope import Envelope
from venus.broker.machine.half import Half, State
from venus.codec.chunk import decode_chunk
from venus.model import Verdict
from venus.wire import mirror_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The state after an entry, and what became of half messages: `placed` are (base offset, half)."""

    before: State
    after: State
    persisted: Half | None = None
    placed: tuple[tuple[int, Half], ...] = ()
    removed: tuple[Half, ...] = ()


def step(state: State, index: int, entry: Entry, content: Envelope | None) -> Step:
    """Take the step of one entry; `content` is the envelope of a body that is a batch."""
    match entry.kind:
        case EntryKind.PREPARE:
            assert content is not None, "a PREPARE has an envelope"
            found = _half(index, entry, content)
            return Step(before=state, after=half.persist(state, found), persisted=found)
        case EntryKind.DECIDE:
            record = entry.record
            batch_no = record["batch_no"]
            if record["verdict"] == Verdict.ROLLBACK:
                after, removed = half.roll_back(state, batch_no)
                return Step(before=state, after=after, removed=removed)
            after, placed = half.commit(state, batch_no)
            return Step(before=state, after=after, placed=placed)
        case EntryKind.EPOCH:
            record = entry.record
            return Step(before=state, after=half.raise_epoch(state, record["epoch"], record["producer"]))
        case EntryKind.LOST:
            assert content is not None, "a LOST has an envelope"
            after, placed = passing_over.pass_over(state, _half(index, entry, content))
            return Step(before=state, after=after, placed=placed)
        case EntryKind.TERM if terms := entry.record.get("unclean"):
            return Step(before=state, after=passing_over.doubt(state, terms))
        case EntryKind.CLOSED:
            return Step(before=state, after=passing_over.close(state, entry.record))
        case EntryKind.CONSUMER | EntryKind.TERM:
            return Step(before=state, after=state)
        case _:
            return _mirror_step(state, index, entry, content)


def _mirror_step(state: State, index: int, entry: Entry, content: Envelope | None) -> Step:
    """Take the step of an entry that only mirrors and homes that moved have."""
    match entry.kind:
        case EntryKind.MIRRORED:
            assert content is not None, "a MIRRORED has an envelope"
            after, placed = mirroring.mirrored(state, entry.epoch, _half(index, entry, content))
            return Step(before=state, after=after, placed=placed)
        case EntryKind.FULL_BEGIN:
            return Step(before=state, after=mirroring.begin(index, mirror_pb2.MirrorBegin.FromString(entry.body)))
        case EntryKind.FULL_END:
            return Step(before=state, after=mirroring.end(state, index))
        case EntryKind.HOME:
            found = home.decode(entry.record)
            assert found is not None, "a HOME names one"
            return Step(before=state, after=mirroring.moved(state, found))
        case _:
            assert entry.kind is EntryKind.FULL_ROWS, "every kind has a step"
            return Step(before=state, after=mirroring.rows(state, decode_chunk(entry.body)))


def _half(index: int, entry: Entry, content: Envelope) -> Half:
    return Half(
        batch_no=content.batch_no,
        digest=entry.digest,
        first_sequence=content.first_sequence,
        count=content.count,
        nbytes=len(entry.body),
        received_at_us=entry.at_us,
        index=index,
        lost=content.lost or content.left_out,
    )
