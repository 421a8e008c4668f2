"""What an entry does to the state of a business: the rules of every kind of entry. Pure.

The same step is taken twice: at the log's end, to decide what may follow (the *proposed* state), and at the high
watermark, when the machine applies the entry (the *applying* state).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from venus.broker.log.entry import EntryKind, LogEntry
from venus.broker.machine import filter_wire, half_messages, loss
from venus.broker.machine import home as homes
from venus.broker.machine.envelope import Envelope
from venus.broker.machine.half_messages import HalfMessage, HalfState
from venus.broker.machine.home import Home
from venus.broker.machine.mirror import Mirror
from venus.codec.chunk import Chunk, RowTotals, decode_chunk
from venus.model import Verdict
from venus.wire import mirror_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryStep:
    """The state after an entry, and the half messages it concerns: `placed` are (base offset, half message)."""

    before: HalfState
    after: HalfState
    persisted: HalfMessage | None = None
    placed: tuple[tuple[int, HalfMessage], ...] = ()
    removed: tuple[HalfMessage, ...] = ()


def take_step(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Return the step of one entry; `content` is the envelope if the body is a batch."""
    match entry.kind:
        case EntryKind.PREPARE:
            assert content is not None, "a PREPARE has an envelope"
            found = _half_of_entry(index, entry, content)
            return EntryStep(before=state, after=half_messages.add_half(state, found), persisted=found)
        case EntryKind.DECIDE:
            record = entry.record
            batch_no = record["batch_no"]
            if record["verdict"] == Verdict.ROLLBACK:
                after, removed = half_messages.roll_back(state, batch_no)
                return EntryStep(before=state, after=after, removed=removed)
            after, placed = half_messages.commit(state, batch_no)
            return EntryStep(before=state, after=after, placed=placed)
        case EntryKind.EPOCH:
            record = entry.record
            return EntryStep(before=state, after=half_messages.raise_epoch(state, record["epoch"], record["producer"]))
        case EntryKind.LOST:
            assert content is not None, "a LOST has an envelope"
            after, placed = pass_over(state, _half_of_entry(index, entry, content))
            return EntryStep(before=state, after=after, placed=placed)
        case EntryKind.TERM if terms := entry.record.get("unclean"):
            return EntryStep(before=state, after=add_losses(state, terms))
        case EntryKind.CLOSED:
            return EntryStep(before=state, after=close_losses(state, entry.record))
        case EntryKind.CONSUMER | EntryKind.TERM:
            return EntryStep(before=state, after=state)
        case _:
            return _take_mirror_step(state, index, entry, content)


def _take_mirror_step(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Return the step of an entry that only mirrors and moved homes have."""
    match entry.kind:
        case EntryKind.MIRRORED:
            assert content is not None, "a MIRRORED has an envelope"
            after, placed = add_mirrored_batch(state, entry.epoch, _half_of_entry(index, entry, content))
            return EntryStep(before=state, after=after, placed=placed)
        case EntryKind.FULL_BEGIN:
            return EntryStep(before=state, after=begin_full_data(index, mirror_pb2.MirrorBegin.FromString(entry.body)))
        case EntryKind.FULL_END:
            return EntryStep(before=state, after=end_full_data(state, index))
        case EntryKind.HOME:
            found = homes.decode(entry.record)
            assert found is not None, "a HOME names one"
            return EntryStep(before=state, after=set_home(state, found))
        case _:
            assert entry.kind is EntryKind.FULL_ROWS, "every kind has a step"
            return EntryStep(before=state, after=add_full_rows(state, decode_chunk(entry.body)))


def _half_of_entry(index: int, entry: LogEntry, content: Envelope) -> HalfMessage:
    return HalfMessage(
        batch_no=content.batch_no,
        digest=entry.digest,
        first_sequence=content.first_sequence,
        count=content.count,
        nbytes=len(entry.body),
        received_at_us=entry.at_us,
        index=index,
        lost=content.lost or content.left_out,
    )


def add_losses(state: HalfState, terms: Iterable[int]) -> HalfState:
    """Add a loss for each of these terms: its leader may lack what was acknowledged before."""
    losses = state.losses
    for term in terms:
        losses = loss.add_election_loss(losses, term, state.next_offset, state.last_batch + 1)
    return replace(state, losses=losses)


def close_losses(state: HalfState, record: Mapping[str, Any]) -> HalfState:
    """Close windows of promotions: a group's target was compared and repaired, or an operator gives them up."""
    if record.get("given_up"):
        return replace(state, losses=loss.give_up(state.losses, record["home_terms"]))
    after = loss.close_verified(state.losses, record["home_terms"], group=record["group"], groups=record["groups"])
    return replace(state, losses=after)


def pass_over(state: HalfState, missing: HalfMessage) -> tuple[HalfState, tuple[tuple[int, HalfMessage], ...]]:
    """Continue after the loss: `missing` is the source's newest batch, with the offsets of all missing ones."""
    assert not state.halves, "what is undecided is decided before"
    end_offset = state.next_offset + missing.lost
    losses = loss.measure(
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


def begin_full_data(index: int, said: mirror_pb2.MirrorBegin) -> HalfState:
    """Return the state at the cut; it keeps nothing of the state before."""
    mirror = Mirror(
        set=said.set, network=said.network, only=tuple(said.only), begin=index, offset=said.offset,
        sequence=said.sequence, rows=said.rows, reason=said.reason, snapshot=said.snapshot_id,
        where=filter_wire.from_wire(said.where),
        above=filter_wire.levels_from_wire(said.levels) if said.HasField("levels") else None,
    )  # fmt: skip
    return HalfState(
        epoch=said.epoch, last_batch=said.last_batch, last_sequence=said.sequence, next_offset=said.offset,
        mirror=mirror, home=homes.from_wire(said.home),
    )  # fmt: skip


def add_full_rows(state: HalfState, chunk: Chunk) -> HalfState:
    """Advance the position of the full data by a chunk."""
    mirror = state.mirror
    assert mirror is not None, "rows come of full data that has begun"
    so_far = RowTotals(mirror.split_rows, mirror.split_digest)
    so_far.add(chunk.rows)
    after = replace(mirror, chunks=mirror.chunks + 1, rows_done=mirror.rows_done + len(chunk.rows))
    if chunk.end:
        after = replace(after, split=mirror.split + 1, after="", split_rows=0, split_digest=0)
    else:
        last = chunk.last.hex() or mirror.after
        after = replace(after, after=last, split_rows=so_far.rows, split_digest=so_far.digest)
    return replace(state, mirror=after)


def end_full_data(state: HalfState, index: int) -> HalfState:
    """Record that every row of the full data is in the log."""
    assert state.mirror is not None, "full data ends that has begun"
    return replace(state, mirror=replace(state.mirror, end=index, snapshot=""))


def add_mirrored_batch(
    state: HalfState, epoch: int, batch: HalfMessage
) -> tuple[HalfState, tuple[tuple[int, HalfMessage], ...]]:
    """Add a batch at its offsets at the set above, which are the next ones."""
    after = replace(
        state,
        epoch=max(state.epoch, epoch),
        last_batch=batch.batch_no,
        last_sequence=batch.last_sequence,
        next_offset=state.next_offset + batch.offsets,
    )
    return after, ((state.next_offset, batch),)


def set_home(state: HalfState, home: Home) -> HalfState:
    """Set the home from now on.

    A mirror that becomes the home may lack what the old one had, so its producers are asked. An old home drops what it
    had as a mirror, if it was one: it must load the full data before it follows.
    """
    if home.here:
        losses = loss.add_promotion_loss(state.losses, home.term, state.next_offset, state.last_batch + 1)
        return replace(state, home=home, losses=losses)
    return replace(state, home=home, mirror=state.mirror if state.is_mirror else None)
