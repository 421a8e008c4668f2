"""What an entry does to the state of a business: the rules of every kind of entry. Pure.

The same step is taken twice: at the log's end, to decide what may follow (the *proposed* state), and at the high
watermark, when the machine applies the entry (the *applying* state).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from venus.broker.log.entry import Entry, EntryKind
from venus.broker.machine import filter_wire, half, loss
from venus.broker.machine import home as homes
from venus.broker.machine.envelope import Envelope
from venus.broker.machine.half import Half, State
from venus.broker.machine.home import Home
from venus.broker.machine.mirror import Mirror
from venus.codec.chunk import Chunk, Totals, decode_chunk
from venus.model import Verdict
from venus.wire import mirror_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The state after an entry, and the half messages it concerns: `placed` are (base offset, half message)."""

    before: State
    after: State
    persisted: Half | None = None
    placed: tuple[tuple[int, Half], ...] = ()
    removed: tuple[Half, ...] = ()


def step(state: State, index: int, entry: Entry, content: Envelope | None) -> Step:
    """Return the step of one entry; `content` is the envelope if the body is a batch."""
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
            after, placed = pass_over(state, _half(index, entry, content))
            return Step(before=state, after=after, placed=placed)
        case EntryKind.TERM if terms := entry.record.get("unclean"):
            return Step(before=state, after=doubt(state, terms))
        case EntryKind.CLOSED:
            return Step(before=state, after=close(state, entry.record))
        case EntryKind.CONSUMER | EntryKind.TERM:
            return Step(before=state, after=state)
        case _:
            return _mirror_step(state, index, entry, content)


def _mirror_step(state: State, index: int, entry: Entry, content: Envelope | None) -> Step:
    """Return the step of an entry that only mirrors and moved homes have."""
    match entry.kind:
        case EntryKind.MIRRORED:
            assert content is not None, "a MIRRORED has an envelope"
            after, placed = mirrored(state, entry.epoch, _half(index, entry, content))
            return Step(before=state, after=after, placed=placed)
        case EntryKind.FULL_BEGIN:
            return Step(before=state, after=begin(index, mirror_pb2.MirrorBegin.FromString(entry.body)))
        case EntryKind.FULL_END:
            return Step(before=state, after=end(state, index))
        case EntryKind.HOME:
            found = homes.decode(entry.record)
            assert found is not None, "a HOME names one"
            return Step(before=state, after=moved(state, found))
        case _:
            assert entry.kind is EntryKind.FULL_ROWS, "every kind has a step"
            return Step(before=state, after=rows(state, decode_chunk(entry.body)))


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


def doubt(state: State, terms: Iterable[int]) -> State:
    """Add a loss for each of these terms: its leader may lack what was acknowledged before."""
    losses = state.losses
    for term in terms:
        losses = loss.begun(losses, term, state.next_offset, state.last_batch + 1)
    return replace(state, losses=losses)


def close(state: State, record: Mapping[str, Any]) -> State:
    """Close windows of promotions: a group's target was compared and repaired, or an operator gives them up."""
    if record.get("given_up"):
        return replace(state, losses=loss.given_up(state.losses, record["home_terms"]))
    after = loss.closed(state.losses, record["home_terms"], group=record["group"], groups=record["groups"])
    return replace(state, losses=after)


def pass_over(state: State, missing: Half) -> tuple[State, tuple[tuple[int, Half], ...]]:
    """Continue after the loss: `missing` is the source's newest batch, with the offsets of all missing ones."""
    assert not state.halves, "what is undecided is decided before"
    end_offset = state.next_offset + missing.lost
    losses = loss.measured(
        state.losses,
        first_offset=state.next_offset,
        end_offset=end_offset,
        first_batch=state.last_batch + 1,
        last_batch=missing.batch_no,
        rows=missing.first_sequence - 1 - state.last_sequence if missing.lost else 0,
    )
    if not missing.lost:
        return replace(state, losses=losses), ()
    after = replace(
        state,
        last_batch=missing.batch_no,
        last_sequence=missing.last_sequence,
        next_offset=end_offset,
        losses=losses,
    )
    return after, ((state.next_offset, missing),)


def begin(index: int, said: mirror_pb2.MirrorBegin) -> State:
    """Return the state at the cut; it keeps nothing of the state before."""
    mirror = Mirror(
        set=said.set, network=said.network, only=tuple(said.only), begin=index, offset=said.offset,
        sequence=said.sequence, rows=said.rows, reason=said.reason, snapshot=said.snapshot_id,
        where=filter_wire.from_wire(said.where),
        above=filter_wire.levels_from_wire(said.levels) if said.HasField("levels") else None,
    )  # fmt: skip
    return State(
        epoch=said.epoch, last_batch=said.last_batch, last_sequence=said.sequence, next_offset=said.offset,
        mirror=mirror, home=homes.heard(said.home),
    )  # fmt: skip


def rows(state: State, chunk: Chunk) -> State:
    """Advance the position of the full data by a chunk."""
    mirror = state.mirror
    assert mirror is not None, "rows come of full data that has begun"
    so_far = Totals(mirror.split_rows, mirror.split_digest)
    so_far.add(chunk.rows)
    after = replace(mirror, chunks=mirror.chunks + 1, rows_done=mirror.rows_done + len(chunk.rows))
    if chunk.end:
        after = replace(after, split=mirror.split + 1, after="", split_rows=0, split_digest=0)
    else:
        last = chunk.last.hex() or mirror.after
        after = replace(after, after=last, split_rows=so_far.rows, split_digest=so_far.digest)
    return replace(state, mirror=after)


def end(state: State, index: int) -> State:
    """Record that every row of the full data is in the log."""
    assert state.mirror is not None, "full data ends that has begun"
    return replace(state, mirror=replace(state.mirror, end=index, snapshot=""))


def mirrored(state: State, epoch: int, batch: Half) -> tuple[State, tuple[tuple[int, Half], ...]]:
    """Add a batch at its offsets at the set above, which are the next ones."""
    after = replace(
        state,
        epoch=max(state.epoch, epoch),
        last_batch=batch.batch_no,
        last_sequence=batch.last_sequence,
        next_offset=state.next_offset + batch.offsets,
    )
    return after, ((state.next_offset, batch),)


def moved(state: State, home: Home) -> State:
    """Set the home from now on.

    A mirror that becomes the home may lack what the old one had, so its producers are asked. An old home drops what it
    had as a mirror, if it was one: it must load the full data before it follows.
    """
    if home.here:
        losses = loss.promoted(state.losses, home.term, state.next_offset, state.last_batch + 1)
        return replace(state, home=home, losses=losses)
    return replace(state, home=home, mirror=state.mirror if state.is_mirror else None)
