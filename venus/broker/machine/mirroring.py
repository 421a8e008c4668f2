"""What the entries of a mirror do to the state of a business: full data, then batches committed above. Pure."""

from __future__ import annotations

from dataclasses import replace

from venus.broker.machine import filter_wire, loss
from venus.broker.machine import home as homes
from venus.broker.machine.half import Half, State
from venus.broker.machine.home import Home
from venus.broker.machine.mirror import Mirror
from venus.codec.chunk import Chunk, Totals
from venus.wire import mirror_pb2


def begin(index: int, said: mirror_pb2.MirrorBegin) -> State:
    """Return the state at the cut; nothing of what was there before stays."""
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
    """Note how far the full data is here."""
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
    """Note that every row of the full data is in the log."""
    assert state.mirror is not None, "full data ends that has begun"
    return replace(state, mirror=replace(state.mirror, end=index, snapshot=""))


def mirrored(state: State, epoch: int, batch: Half) -> tuple[State, tuple[tuple[int, Half], ...]]:
    """Add a batch at the offsets that it has above: the next ones."""
    after = replace(
        state,
        epoch=max(state.epoch, epoch),
        last_batch=batch.batch_no,
        last_sequence=batch.last_sequence,
        next_offset=state.next_offset + batch.offsets,
    )
    return after, ((state.next_offset, batch),)


def moved(state: State, home: Home) -> State:
    """Take in which set is the home from now on.

    A mirror that becomes it may lack what the old one had: its producers are asked. An old home lets go of the part
    that it had as a mirror, if it ever was one: it must take the full data before it follows.
    """
    if home.here:
        losses = loss.promoted(state.losses, home.term, state.next_offset, state.last_batch + 1)
        return replace(state, home=home, losses=losses)
    return replace(state, home=home, mirror=state.mirror if state.is_mirror else None)
