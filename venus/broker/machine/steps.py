"""Steps: how each kind of log entry changes the half-message state. Pure; machine.py has the table of the kinds.

An entry takes the same step twice: at the log's end, to decide what may follow (the *proposed* state), and at the high
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
    """The state before and after an entry, and the half messages that it adds, commits or removes.

    `placed` are the committed ones with their base offsets.
    """

    before: HalfState
    after: HalfState
    persisted: HalfMessage | None = None
    placed: tuple[tuple[int, HalfMessage], ...] = ()
    removed: tuple[HalfMessage, ...] = ()


def keep(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Return the state unchanged, for entries that do not concern half messages."""
    return EntryStep(before=state, after=state)


def prepare(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Add the undecided half message that the entry contains."""
    found = _half_of_entry(index, entry, content)
    return EntryStep(before=state, after=half_messages.add_half(state, found), persisted=found)


def decide(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Commit the half messages up to the entry's batch number, or roll back those from this number on."""
    record = entry.record
    batch_no = record["batch_no"]
    if record["verdict"] == Verdict.ROLLBACK:
        after, removed = half_messages.roll_back(state, batch_no)
        return EntryStep(before=state, after=after, removed=removed)
    after, placed = half_messages.commit(state, batch_no)
    return EntryStep(before=state, after=after, placed=placed)


def raise_epoch(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Set the new producer epoch, which fences every older producer."""
    record = entry.record
    return EntryStep(before=state, after=half_messages.raise_epoch(state, record["epoch"], record["producer"]))


def begin_term(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Add a loss for each unclean election in a new leader's entry: the leader may lack acknowledged entries."""
    terms, losses = entry.record.get("unclean"), state.losses
    if not terms:
        return keep(state, index, entry, content)
    for term in terms:
        losses = loss.add_election_loss(losses, term, state.next_offset, state.last_batch + 1)
    return EntryStep(before=state, after=replace(state, losses=losses))


def close_losses(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Close loss windows of promotions: a group's target was compared and repaired, or an operator gives them up."""
    record = entry.record
    if record.get("given_up"):
        losses = loss.give_up(state.losses, record["home_terms"])
    else:
        losses = loss.close_verified(state.losses, record["home_terms"], group=record["group"], groups=record["groups"])
    return EntryStep(before=state, after=replace(state, losses=losses))


def skip_loss(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Skip the lost offsets: the entry stands for all missing batches, up to the source's newest one."""
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
    """Record which set is the home of the business from now on.

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
    """Start a mirror again at the cut of its full data; nothing of the earlier state is kept."""
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
    """Advance the progress of a mirror's full data by one chunk."""
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
    """Record that the log has every row of a mirror's full data."""
    assert state.mirror is not None, "full data ends that has begun"
    return EntryStep(before=state, after=replace(state, mirror=replace(state.mirror, end=index, snapshot="")))


def add_mirrored_batch(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Add a batch from the set above; it takes the next offsets, which are the same ones as there."""
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
    """Return the half message for an entry whose body is a batch."""
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
