"""What a producer says of the source after an unclean election, as a command of the commit thread (VENUS 3.1).

The broker that was chosen may lack batches which the source has committed and whose log rows are gone there. They
cannot be sent again. The producer says where the source stands; the queue passes over the offsets between,
and goes on.
"""

from __future__ import annotations

from venus.broker.log.entry import Entry, EntryKind, note
from venus.broker.machine import half, loss
from venus.broker.machine.business import Business
from venus.broker.machine.envelope import envelope
from venus.broker.machine.reach import check_reach
from venus.broker.pipeline.group import Group
from venus.codec.batch import digest
from venus.errors import ProtocolError
from venus.model import Verdict
from venus.rpc.limits import UINT32_MAX
from venus.wire import broker_pb2, change_pb2


def roll_back_incomplete(group: Group, business: Business, epoch: int, at_us: int) -> None:
    """Roll back the half messages at the end that are not a whole cut: the rest of it is missing.

    The source has committed them, so they are among what is missing then.
    """
    state = business.proposed
    contents = {
        **business.envelopes,
        **{p.content.batch_no: p.content for p in business.pending if p.content is not None},
    }
    first = None
    for found in reversed(state.halves):
        if contents[found.batch_no].cut_end:
            break
        first = found
    if first is not None:
        record = {"verdict": int(Verdict.ROLLBACK), "batch_no": first.batch_no, "digest": first.digest}
        group.append(business, note(EntryKind.DECIDE, epoch=epoch, at_us=at_us, record=record))


def pass_over(group: Group, business: Business, said: broker_pb2.Committed, at_us: int) -> broker_pb2.Decided:
    """Go on behind what the source has committed. Raises Fenced; ProtocolError for what cannot be."""
    state = business.proposed
    half.fence(state, said.epoch)
    if loss.in_doubt(state.losses):
        message = _body(business, state, said, at_us)
        body = message.SerializeToString()
        group.append(
            business,
            Entry(kind=EntryKind.LOST, epoch=said.epoch, at_us=at_us, digest=digest(body), body=body),
            envelope(message),
        )
    after = business.proposed
    return broker_pb2.Decided(verdict=broker_pb2.COMMIT, batch_no=after.last_batch, next_offset=after.next_offset)


def _body(business: Business, state: half.State, said: broker_pb2.Committed, at_us: int) -> change_pb2.BatchBody:
    """Return the batch that stands for what is missing; it has no changes.

    A mirror may have become the home in the middle of a cut: the rest of it is missing, and this ends it.
    """
    name = business.name
    if state.halves:
        raise ProtocolError(f"{name}: half message {state.halves[0].batch_no} is to be decided first")
    batches = max(said.last_batch - state.last_batch, 0)
    rows = said.next_sequence - 1 - state.last_sequence if batches else 0
    # each change took an offset, and so did each empty batch: nobody knows any more how many of those there were
    lost = rows + batches
    if rows < 0 or lost > UINT32_MAX:
        raise ProtocolError(
            f"{name}: the source says that it has committed batch {said.last_batch} up to Sequence "
            f"{said.next_sequence - 1}, this broker has batch {state.last_batch} up to Sequence "
            f"{state.last_sequence}: that does not fit together",
            hint=half.RESYNC_HINT,
        )
    check_reach(f"{name}: what the source has committed", "Sequence", said.next_sequence, state.last_sequence)
    newest = max(said.last_batch, state.last_batch)
    return change_pb2.BatchBody(
        batch_no=newest,
        first_sequence=max(said.next_sequence, state.last_sequence + 1),
        cut=business.open_cut or newest,
        cut_end=True,
        captured_at_us=at_us,
        lost=lost,
    )
