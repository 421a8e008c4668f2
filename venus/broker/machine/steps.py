"""Steps of entries: what each kind does to the state of a business. Pure; machine.py has the table of the kinds.

The same step is taken twice: at the log's end, to decide what may follow (the *proposed* state), and at the high
watermark, when the machine applies the entry (the *applying* state).

`content` is the envelope of an entry whose body is a batch; other entries have none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from venus.broker.log.entry import LogEntry
from venus.broker.machine import half_messages, loss
from venus.broker.machine.envelope import Envelope
from venus.broker.machine.half_messages import HalfMessage, HalfState
from venus.broker.machine.mirror import Mirror, decode_home, filters_from_wire, home_from_wire, levels_from_wire
from venus.codec.stored_rows import RowTotals, decode_chunk
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


def keep(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Leave the state as it is."""
    return EntryStep(before=state, after=state)


def prepare(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Add an undecided half message."""
    found = _half_of_entry(index, entry, content)
    return EntryStep(before=state, after=half_messages.add_half(state, found), persisted=found)


def decide(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Commit every half message up to a number, or roll back every one from it on."""
    record = entry.record
    batch_no = record["batch_no"]
    if record["verdict"] == Verdict.ROLLBACK:
        after, removed = half_messages.roll_back(state, batch_no)
        return EntryStep(before=state, after=after, removed=removed)
    after, placed = half_messages.commit(state, batch_no)
    return EntryStep(before=state, after=after, placed=placed)


def raise_epoch(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Fence every older producer."""
    record = entry.record
    return EntryStep(before=state, after=half_messages.raise_epoch(state, record["epoch"], record["producer"]))


def begin_term(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Add a loss for each unclean election: its leader may lack what was acknowledged before."""
    terms, losses = entry.record.get("unclean"), state.losses
    if not terms:
        return keep(state, index, entry, content)
    for term in terms:
        losses = loss.add_election_loss(losses, term, state.next_offset, state.last_batch + 1)
    return EntryStep(before=state, after=replace(state, losses=losses))


def close_losses(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Close windows of promotions: a group's target was compared and repaired, or an operator gives them up."""
    record = entry.record
    if record.get("given_up"):
        losses = loss.give_up(state.losses, record["home_terms"])
    else:
        losses = loss.close_verified(state.losses, record["home_terms"], group=record["group"], groups=record["groups"])
    return EntryStep(before=state, after=replace(state, losses=losses))


def skip_loss(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Continue after the loss: the entry stands for the source's newest batch, and takes all missing offsets."""
    assert not state.halves, "half messages are decided first"
    missing = _half_of_entry(index, entry, content)
    window = loss.Loss(
        term=0,
        first_offset=state.next_offset,
        end_offset=state.next_offset + missing.lost,
        first_batch=state.last_batch + 1,
        last_batch=missing.batch_no,
        rows=missing.first_sequence - 1 - state.last_sequence if missing.lost else 0,
    )
    losses = loss.measure(state.losses, window)
    if not missing.lost:
        return EntryStep(before=state, after=replace(state, losses=losses))
    after = replace(
        state,
        last_batch=missing.batch_no,
        last_sequence=missing.last_sequence,
        next_offset=state.next_offset + missing.lost,
        losses=losses,
    )
    return EntryStep(before=state, after=after, placed=((state.next_offset, missing),))


def set_home(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Record which set is the home from now on.

    A mirror that becomes the home may lack what the old home had, so its producers are asked what is missing. A
    replaced home that was a mirror before drops its record as a mirror: it must load the full data before it follows.
    """
    home = decode_home(entry.record)
    assert home is not None, "a HOME names one"
    if home.here:
        losses = loss.add_promotion_loss(state.losses, home.term, state.next_offset, state.last_batch + 1)
        return EntryStep(before=state, after=replace(state, home=home, losses=losses))
    mirror = state.mirror if state.is_mirror else None
    return EntryStep(before=state, after=replace(state, home=home, mirror=mirror))


def begin_full_data(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Begin at the cut; nothing of the state before is kept."""
    said = mirror_pb2.MirrorBegin.FromString(entry.body)
    mirror = Mirror(
        set=said.set,
        network=said.network,
        only=tuple(said.only),
        begin=index,
        offset=said.offset,
        sequence=said.sequence,
        rows=said.rows,
        reason=said.reason,
        snapshot=said.snapshot_id,
        where=filters_from_wire(said.where),
        above=levels_from_wire(said.levels) if said.HasField("levels") else None,
    )
    after = HalfState(
        epoch=said.epoch,
        last_batch=said.last_batch,
        last_sequence=said.sequence,
        next_offset=said.offset,
        mirror=mirror,
        home=home_from_wire(said.home),
    )
    return EntryStep(before=state, after=after)


def add_full_rows(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Advance the position of the full data by a chunk."""
    mirror, chunk = state.mirror, decode_chunk(entry.body)
    assert mirror is not None, "rows come of full data that has begun"
    so_far = RowTotals(mirror.split_rows, mirror.split_digest)
    so_far.add(chunk.rows)
    after = replace(mirror, chunks=mirror.chunks + 1, rows_done=mirror.rows_done + len(chunk.rows))
    if chunk.end:
        after = replace(after, split=mirror.split + 1, after="", split_rows=0, split_digest=0)
    else:
        last = chunk.last.hex() or mirror.after
        after = replace(after, after=last, split_rows=so_far.rows, split_digest=so_far.digest)
    return EntryStep(before=state, after=replace(state, mirror=after))


def end_full_data(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Record that every row of the full data is in the log."""
    assert state.mirror is not None, "full data ends that has begun"
    return EntryStep(before=state, after=replace(state, mirror=replace(state.mirror, end=index, snapshot="")))


def add_mirrored_batch(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Add a batch at its offsets at the set above, which are the next ones."""
    batch = _half_of_entry(index, entry, content)
    after = replace(
        state,
        epoch=max(state.epoch, entry.epoch),
        last_batch=batch.batch_no,
        last_sequence=batch.last_sequence,
        next_offset=state.next_offset + batch.offsets,
    )
    return EntryStep(before=state, after=after, placed=((state.next_offset, batch),))


def _half_of_entry(index: int, entry: LogEntry, content: Envelope | None) -> HalfMessage:
    assert content is not None, f"a {entry.kind.name} has an envelope"
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
