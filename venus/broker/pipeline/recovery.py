"""Recovery of the store before a broker serves: the log is replayed, and all other state follows from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from venus.broker.log.store_layout import UPGRADES, check_format
from venus.broker.machine import machine, queue_index, records
from venus.broker.machine.business import Business
from venus.broker.pipeline.forgetting import put_removal, put_state_removal
from venus.broker.pipeline.halting import halt
from venus.broker.queue import batch_lookup as queue
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import StorageError

logger = logging.getLogger(__name__)

#: First area of a copy (venus/broker/replicas/copies.py) with state; log, queue and rows come before it.
FIRST_STATE_AREA = 3


def recover(
    store: Store, *, watermark: Callable[[Business], int], review_after_s: float, now: float, shared: bool = False
) -> list[Business]:
    """Return every business, with its log applied up to the high watermark. Raises Corruption, StorageError.

    With a `shared` log, a business with an entry that cannot be applied is halted; the others continue.
    """
    check_format(store, UPGRADES)
    remove_unfinished(store)
    found = list(records.load_all(store, review_after_s))
    places = min(queue_index.TAIL_PLACES, queue_index.TAILS_PLACES // max(1, len(found)))
    for business in found:
        replay_business(store, business, watermark=watermark, now=now, shared=shared, places=places)
    return found


def replay_business(
    store: Store, business: Business, *, watermark: Callable[[Business], int], now: float, shared: bool = False,
    places: int = queue_index.TAIL_PLACES,
) -> None:  # fmt: skip
    """Bring a business from its record to the end of its log, with the newest `places` of its queue in memory."""
    business.log.find_end(store)
    business.log.committed = watermark(business)
    entries = 0
    try:
        entries = machine.replay(store, business)
        machine.propose_rest(store, business)
    except StorageError:
        raise
    except Exception as error:
        if not shared:
            raise
        halt(business, (business.pending[-1].index if business.pending else business.log.applied) + 1, error)
        machine.stop_applying(store, business)
    business.described_from = min(business.described_from, business.proposed.end_sequence)
    if entries:
        logger.info("%s: replayed %d log entries", business.name, entries)
    queue.load_tail(store, business, places)
    for undecided in business.committed.halves:
        business.reviews.expect(undecided.batch_no, now)


def remove_unfinished(store: Store) -> None:
    """Remove the state of unfinished copies, because it would make them look like businesses.

    Their other data stays, and their marks say that the state must come again. A copy whose mark does not say how far
    it came is removed as a whole.
    """
    batch = store.batch()
    for key, value in store.scan_prefix(keys.STATE, keys.INSTALLING):
        mark = json.loads(value)
        if not mark.get("copy"):
            put_removal(batch, int(mark["number"]))
            continue
        put_state_removal(batch, int(mark["number"]))
        if mark["area"] >= FIRST_STATE_AREA:
            batch.put(keys.STATE, key, json.dumps(mark | {"area": FIRST_STATE_AREA, "after": None}).encode())
    if len(batch):
        store.write(batch, durable=True)
