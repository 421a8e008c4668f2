"""Where an epoch ends in a queue: from what is remembered, or from the batches themselves."""

from __future__ import annotations

from bisect import bisect_right

from venus.broker.machine.business import Business
from venus.broker.machine.epochs import EPOCHS_MAX
from venus.broker.queue import places
from venus.broker.store.rocks import Store


def end_of(store: Store, business: Business, epoch: int) -> int:
    """Return the offset where a consumer of that epoch must have stopped at the latest (KIP-320)."""
    epochs = business.epochs
    i = bisect_right(epochs, epoch, key=lambda found: found[0])
    if i == len(epochs):
        return business.visible_offset
    if i == 1 and len(epochs) >= EPOCHS_MAX:  # there may have been others in between
        return _first_above(store, business, epoch, max(business.log_start, epochs[0][1]), epochs[1][1])
    return epochs[i][1]


def _first_above(store: Store, business: Business, epoch: int, low: int, high: int) -> int:
    """Return where the first batch of a newer epoch begins, `high` if none from `low` on is: epochs never fall."""
    while low < high:
        middle = (low + high) // 2
        place = places.stored_at(store, business, middle)
        if place is not None and place.epoch > epoch:
            high = place.base_offset
        else:
            low = max(middle + 1, place.next_offset if place is not None else 0)
    return high
