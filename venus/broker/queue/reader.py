"""Reads the queue (offset >= 0): committed batches from an offset on, from memory or from the log.

This module finds where batches lie and where an epoch ends. A mirror serves no reader while its full data is
incomplete.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from venus.broker.machine import loss, queue_index
from venus.broker.machine.business import Business
from venus.broker.machine.mirror import home_to_wire
from venus.broker.machine.queue_index import EPOCHS_MAX, QueuedBatch
from venus.broker.machine.records import read_body
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.queue.early_delivery import EarlyBatches
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import Corruption, OffsetDiverged, OffsetTrimmed, Unavailable
from venus.wire import broker_pb2


def find_batch(store: Store, business: Business, offset: int) -> QueuedBatch | None:
    """Find the batch that contains an offset, in memory or in the store; None = at or beyond the visible end."""
    if offset >= business.visible_offset:
        return None
    nearby = business.tail.walk(offset)
    return next(
        nearby if nearby is not None else _read_stored_batches(store, business, _find_start(store, business, offset)),
        None,
    )


def find_stored_batch(store: Store, business: Business, offset: int) -> QueuedBatch | None:
    """Find the batch that contains an offset in the store; None = it is trimmed, or not written yet."""
    place = next(_read_stored_batches(store, business, _find_start(store, business, offset), limit=1), None)
    return place if place is not None and place.base_offset <= offset < place.next_offset else None


def walk_batches(store: Store, business: Business, offset: int, limit: int = 512) -> Iterator[QueuedBatch]:
    """Yield committed batches from the one that contains `offset` on: from memory, or up to `limit` from the store."""
    nearby = business.tail.walk(offset)
    if nearby is not None:
        yield from nearby
    else:
        yield from _read_stored_batches(store, business, _find_start(store, business, offset), limit)


def walk_oldest(store: Store, business: Business, limit: int) -> Iterator[QueuedBatch]:
    """Yield the oldest batches of the queue, at most `limit`."""
    return _read_stored_batches(store, business, keys.queue_key(business.number, business.log_start), limit)


def find_newest(store: Store, business: Business) -> QueuedBatch | None:
    """Return the last batch of the queue, None if it is empty."""
    held = store.find_before(keys.QUEUE, keys.queue_key(business.number + 1, 0))
    if held is None or held[0][:4] != keys.queue_key(business.number, 0)[:4]:
        return None
    return queue_index.decode(keys.queue_offset(held[0]), held[1])


def load_tail(store: Store, business: Business, places: int = queue_index.TAIL_PLACES) -> None:
    """Make the applied state visible to readers, and load at most `places` of the newest batches into memory."""
    business.committed = business.applying
    business.visible_offset = business.committed.next_offset
    business.visible_through = business.log.applied
    business.filled_to = business.log.applied
    first = max(business.log_start, business.visible_offset - max(places, 1))
    business.tail.extend(_read_stored_batches(store, business, _find_start(store, business, first)))


def _find_start(store: Store, business: Business, offset: int) -> bytes:
    """Return the key of the stored batch that contains an offset."""
    wanted = keys.queue_key(business.number, offset)
    found = store.find_at_or_before(keys.QUEUE, wanted)
    return found[0] if found is not None and found[0][:4] == wanted[:4] else wanted


def _read_stored_batches(
    store: Store, business: Business, first: bytes, limit: int | None = None
) -> Iterator[QueuedBatch]:
    for key, value in store.scan(keys.QUEUE, first, keys.queue_key(business.number + 1, 0), limit=limit):
        yield queue_index.decode(keys.queue_offset(key), value)


def find_epoch_end(store: Store, business: Business, epoch: int) -> int:
    """Return the offset at which a producer epoch ended; a consumer of this epoch beyond it has diverged (KIP-320)."""
    epochs = business.epochs
    i = bisect_right(epochs, epoch, key=lambda found: found[0])
    if i == len(epochs):
        return business.visible_offset
    if i == 1 and len(epochs) >= EPOCHS_MAX:  # epochs between these two may not be in memory
        return _find_first_above(store, business, epoch, max(business.log_start, epochs[0][1]), epochs[1][1])
    return epochs[i][1]


def _find_first_above(store: Store, business: Business, epoch: int, low: int, high: int) -> int:
    """Return where the first batch of a newer epoch from `low` on begins, else `high`. Epochs never fall."""
    while low < high:
        middle = (low + high) // 2
        place = find_stored_batch(store, business, middle)
        if place is not None and place.epoch > epoch:
            high = place.base_offset
        else:
            low = max(middle + 1, place.next_offset if place is not None else 0)
    return high


def incomplete_error(business: Business) -> Unavailable:
    """Return the error for readers of a mirror whose full data is incomplete."""
    mirror = business.committed.mirror
    rows = business.counters["filled_rows"]
    of = f" of about {mirror.rows}" if mirror is not None and mirror.rows else ""
    source = f" from set {mirror.set}" if mirror is not None else ""
    return Unavailable(
        f"{business.name}: this mirror is loading the full data{source}, {rows} rows{of} so far",
        hint="it can be read once the load is complete; `venus status` shows the progress",
    )


def check_full_data(business: Business) -> None:
    """Raise Unavailable while the full data of a mirror is incomplete."""
    if not business.is_filled:
        raise incomplete_error(business)


#: Limit of the batches that one call skips because they do not concern the reader.
PASSED_MAX = 4096

_FULL_HINT = "start again from the full data: `venus resync --all --target NAME`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """Increments (messages with one batch each), and the offset to read from next, also if there are none."""

    increments: list[broker_pb2.Increment]
    next_offset: int


def check_position(
    store: Store, business: Business, offset: int, epoch: int, *, knows_end: bool = True
) -> broker_pb2.Opened:
    """Check that a consumer whose newest batch is of `epoch` may read from `offset`; return the answer to it.

    Raises Unavailable at a replica that lags behind the consumer and does not know where the queue ends.
    """
    check_full_data(business)
    if business.committed.is_mirror:  # even a mirror that lags may know that the consumer has diverged
        _check_epoch(store, business, offset, epoch)
        _check_newer(business, offset, epoch)
    elif offset > business.visible_offset and not knows_end:
        raise Unavailable(
            f"{business.name}: offset {offset} is not here yet, {business.visible_offset} is the next one",
            hint="this replica follows, or begins to lead; try again in a moment",
        )
    check_range(business, offset)
    _check_epoch(store, business, offset, epoch)
    return broker_pb2.Opened(
        next_offset=business.visible_offset,
        log_start=business.log_start,
        epoch=business.epoch_at_end,
        home=home_to_wire(business.committed.home),
    )


def _check_epoch(store: Store, business: Business, offset: int, epoch: int) -> None:
    """Raise OffsetDiverged if a consumer's epoch ended in this queue before the consumer's offset."""
    end = find_epoch_end(store, business, epoch) if epoch else offset
    ended = end < business.visible_offset or not business.committed.is_mirror
    if offset > end and ended:
        raise OffsetDiverged(
            f"{business.name}: the consumer is at offset {offset} in epoch {epoch}, which ended at {end} here",
            hint=_FULL_HINT,
        )


def _check_newer(business: Business, offset: int, epoch: int) -> None:
    """Raise Unavailable if a consumer reached its offset in a newer epoch than this mirror did.

    Epochs never decrease along the queue, so the mirror then has a history that the home has left; its replicator will
    detect this. A set that mirrors only a part of the business skips the check, and so does a set with losses, because
    batches of an epoch may be missing there.
    """
    state = business.committed
    part = state.mirror is not None and state.mirror.only
    if not part and not state.losses and epoch > business.epoch_at_end and offset < business.visible_offset:
        raise Unavailable(
            f"{business.name}: the consumer is at offset {offset} in epoch {epoch}, and this mirror passed it in "
            f"epoch {business.epoch_at_end}: it has a history that the home has left",
            hint="another set may have the home's; this one loads the full data again once the set above refuses it",
        )


def check_range(business: Business, offset: int) -> None:
    """Raise OffsetTrimmed or OffsetDiverged if the queue lacks the offset, Unavailable while this is not certain."""
    check_full_data(business)
    if offset < business.log_start:
        raise OffsetTrimmed(
            f"{business.name}: offset {offset} is gone, the queue starts at {business.log_start}", hint=_FULL_HINT
        )
    if offset > business.visible_offset and loss.has_unmeasured(business.committed.losses):
        raise Unavailable(
            f"{business.name}: offset {offset} may be lost, {business.visible_offset} is the next one here: after an "
            "unclean election or a promotion the producer has not reported yet what the source has",
            hint="`venus sync` reports it; then reading continues by itself",
        )
    if offset > business.visible_offset and business.committed.is_mirror:
        raise Unavailable(
            f"{business.name}: offset {offset} has not reached this mirror yet, it has those below "
            f"{business.visible_offset}",
            hint="reading continues by itself when the mirror has caught up with the set above",
        )
    if offset > business.visible_offset:
        raise OffsetDiverged(
            f"{business.name}: offset {offset} is beyond the queue's end {business.visible_offset}: "
            "the consumer has applied changes that this broker never had",
            hint=_FULL_HINT,
        )


def read_increments(
    store: Store,
    buffer: BodyBuffer,
    business: Business,
    offset: int,
    max_bytes: int,
    table_ids: frozenset[int],
    cut: Callable[[QueuedBatch, bytes], tuple[int, bytes]] | None = None,
    there: Sequence[tuple[int, int]] = (),
) -> ReadResult:
    """Return messages with the batches from `offset` on: one, and further ones up to `max_bytes`.

    `cut` returns digest and body of the part of each batch that the reader wants. `there` are base offsets and digests
    of the batches sent early: while they match the queue, these batches are sent without their bodies.
    """
    check_range(business, offset)
    visible = business.visible_offset
    increments: list[broker_pb2.Increment] = []
    nbytes = passed = 0
    reached = offset
    ahead = EarlyBatches(there)
    if offset < visible:
        for place in walk_batches(store, business, offset):
            if place.base_offset >= visible or passed >= PASSED_MAX:
                break
            if not place.concerns(table_ids):
                passed += 1
            elif ahead.has_next(place.base_offset, place.digest):
                increments.append(_increment(place, place.digest, b""))
            elif increments and nbytes + place.nbytes > max_bytes:
                break
            else:
                digest, body = place.digest, _read_body(store, buffer, business, place)
                if cut is not None:
                    digest, body = cut(place, body)
                increments.append(_increment(place, digest, body))
                nbytes += len(body)
            reached = place.next_offset
            if nbytes >= max_bytes:
                break
    return ReadResult(increments=increments, next_offset=reached)


def _read_body(store: Store, buffer: BodyBuffer, business: Business, place: QueuedBatch) -> bytes:
    """Return the body of a queued batch, from the buffer or from the log."""
    body = buffer.get((business.number, place.index))
    if body is not None:
        return body
    try:
        return read_body(store, business, place.index)
    except Corruption:
        check_range(business, place.base_offset)  # it may have been trimmed meanwhile
        raise


def _increment(place: QueuedBatch, digest: int, body: bytes) -> broker_pb2.Increment:
    """Build the message that delivers a batch to a consumer."""
    return broker_pb2.Increment(
        base_offset=place.base_offset,
        count=place.count,
        epoch=place.epoch,
        committed_at_us=place.committed_at_us,
        digest=digest,
        body=body,
    )
