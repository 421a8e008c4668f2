"""Where committed batches lie, and where an epoch ends.

The only reader of the column family `queue`, for consumers, full data and retention.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from venus.broker.machine import queue_index
from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import EPOCHS_MAX, QueuedBatch
from venus.broker.store import keys
from venus.broker.store.rocks import Store


def find_batch(store: Store, business: Business, offset: int) -> QueuedBatch | None:
    """Find the batch that holds an offset, in the tail or in the store; None = at or beyond the end."""
    if offset >= business.visible_offset:
        return None
    nearby = business.tail.walk(offset)
    return next(
        nearby if nearby is not None else _read_stored_batches(store, business, _find_start(store, business, offset)),
        None,
    )


def find_stored_batch(store: Store, business: Business, offset: int) -> QueuedBatch | None:
    """Find the batch that holds an offset in the store; None = it is trimmed, or not written yet."""
    place = next(_read_stored_batches(store, business, _find_start(store, business, offset), limit=1), None)
    return place if place is not None and place.base_offset <= offset < place.next_offset else None


def walk_batches(store: Store, business: Business, offset: int, limit: int = 512) -> Iterator[QueuedBatch]:
    """Walk committed batches from the one that holds `offset` on, in memory, or at most `limit` in the store."""
    nearby = business.tail.walk(offset)
    if nearby is not None:
        yield from nearby
    else:
        yield from _read_stored_batches(store, business, _find_start(store, business, offset), limit)


def walk_oldest(store: Store, business: Business, limit: int) -> Iterator[QueuedBatch]:
    """Walk the oldest batches of the queue, at most `limit`."""
    return _read_stored_batches(store, business, keys.queue_key(business.number, business.log_start), limit)


def find_newest(store: Store, business: Business) -> QueuedBatch | None:
    """Return the last batch of the queue, None if it is empty."""
    held = store.find_before(keys.QUEUE, keys.queue_key(business.number + 1, 0))
    if held is None or held[0][:4] != keys.queue_key(business.number, 0)[:4]:
        return None
    return queue_index.decode(keys.queue_offset(held[0]), held[1])


def load_tail(store: Store, business: Business, places: int = queue_index.TAIL_PLACES) -> None:
    """Publish the committed state, and read at most `places` of the newest batches into memory."""
    business.committed = business.applying
    business.visible_offset = business.committed.next_offset
    business.visible_through = business.log.applied
    business.filled_to = business.log.applied
    first = max(business.log_start, business.visible_offset - max(places, 1))
    business.tail.extend(_read_stored_batches(store, business, _find_start(store, business, first)))


def _find_start(store: Store, business: Business, offset: int) -> bytes:
    """Return the key of the batch that holds an offset."""
    wanted = keys.queue_key(business.number, offset)
    found = store.find_at_or_before(keys.QUEUE, wanted)
    return found[0] if found is not None and found[0][:4] == wanted[:4] else wanted


def _read_stored_batches(
    store: Store, business: Business, first: bytes, limit: int | None = None
) -> Iterator[QueuedBatch]:
    for key, value in store.scan(keys.QUEUE, first, keys.queue_key(business.number + 1, 0), limit=limit):
        yield queue_index.decode(keys.queue_offset(key), value)


def find_epoch_end(store: Store, business: Business, epoch: int) -> int:
    """Return the offset where a consumer of that epoch must have stopped at the latest (KIP-320)."""
    epochs = business.epochs
    i = bisect_right(epochs, epoch, key=lambda found: found[0])
    if i == len(epochs):
        return business.visible_offset
    if i == 1 and len(epochs) >= EPOCHS_MAX:  # there may have been other epochs between these
        return _find_first_above(store, business, epoch, max(business.log_start, epochs[0][1]), epochs[1][1])
    return epochs[i][1]


def _find_first_above(store: Store, business: Business, epoch: int, low: int, high: int) -> int:
    """Return where the first batch of a newer epoch from `low` on begins, else `high`: epochs never fall."""
    while low < high:
        middle = (low + high) // 2
        place = find_stored_batch(store, business, middle)
        if place is not None and place.epoch > epoch:
            high = place.base_offset
        else:
            low = max(middle + 1, place.next_offset if place is not None else 0)
    return high
