"""Trimming of the queue and the log in the commit thread; machine/consumers.py decides how far."""

from __future__ import annotations

import logging

from venus.broker.log.entry import EntryKind, record_entry
from venus.broker.machine import consumers, queue_index
from venus.broker.machine.business import Business
from venus.broker.machine.consumers import ConsumerState, kept_offsets
from venus.broker.machine.records import consumer_record
from venus.broker.pipeline.group import CommandGroup
from venus.broker.pipeline.shared_log import NO_BACKLOG, Backlog
from venus.broker.queue import batch_lookup
from venus.broker.store import keys
from venus.broker.store.rocks import Store

logger = logging.getLogger(__name__)

#: Limit of batches in one pass.
PASS_BATCHES_MAX = 20_000
#: Trimming in large pieces leaves fewer range tombstones; small retention settings are followed exactly.
_PIECES = 16
_PIECE_BYTES_MAX = 8 << 20


def trim(
    store: Store,
    group: CommandGroup,
    business: Business,
    pins: list[int],
    retain_bytes: int,
    backlog: Backlog = NO_BACKLOG,
) -> tuple[int, int]:
    """Remove what no consumer or broker needs; return the removed log entries as a range."""
    if not business.is_filled:
        return 0, 0
    if (mirror := business.applying.mirror) is not None and business.log.start <= mirror.end:
        return _trim_full_data(group, business, mirror.end, backlog)
    point = consumers.trim_point(business.materialised.offset, kept_offsets(business.list_consumers()), pins)
    first_needed = batch_lookup.find_batch(store, business, point)
    needed_from = first_needed.before if first_needed else business.nbytes
    target = needed_from - retain_bytes
    if target - business.nbytes_trimmed <= min(_PIECE_BYTES_MAX, retain_bytes // _PIECES):
        return 0, 0
    last = _last_removable(store, business, point, target, backlog)
    if last is None:
        return 0, 0
    start = last.next_offset
    index = min([last.index + 1, *(found.index for found in business.applying.halves[:1])])
    number, first_index = business.number, business.log.start
    group.batch.delete_range(keys.QUEUE, keys.queue_key(number, business.log_start), keys.queue_key(number, start))
    business.log.trim(group.batch, index)
    business.epochs = queue_index.trim_epochs(business.epochs, last.epoch, last.base_offset, start)
    business.log_start, business.nbytes_trimmed = start, last.after
    group.changed.add(business)
    group.log_changed.add(business)
    return first_index, index


def _trim_full_data(group: CommandGroup, business: Business, end: int, backlog: Backlog) -> tuple[int, int]:
    """Remove the entries that have become rows of a mirror's full data."""
    if backlog.must_keep(end, business.nbytes - business.nbytes_trimmed):
        return 0, 0
    first = business.log.start
    business.log.trim(group.batch, end + 1)
    group.changed.add(business)
    group.log_changed.add(business)
    return first, end + 1


def _last_removable(
    store: Store, business: Business, point: int, target: int, backlog: Backlog
) -> queue_index.QueuedBatch | None:
    last = None
    for place in batch_lookup.walk_oldest(store, business, PASS_BATCHES_MAX):
        if place.after > target or place.next_offset > point:
            break
        if backlog.must_keep(place.index, business.nbytes - place.after):
            break
        last = place
    return last


def age_consumers(group: CommandGroup, business: Business, passed_us: int, now_us: int, ttl_s: float) -> None:
    """Add to the absence of consumers, and forget those that have been away for too long."""
    with business.lock:
        known = [(name, consumer) for name, consumer in business.consumers.items() if not consumer.is_connected]
        later = [consumers.count_absence(consumer, passed_us) for _, consumer in known]
        business.consumers.update({c.group: c for c in later if not consumers.has_expired(c, ttl_s)})
        expired = [c for c in later if consumers.has_expired(c, ttl_s)]
        for consumer in expired:
            del business.consumers[consumer.group]
    for consumer in expired:
        logger.warning(
            "%s: consumer %s was away for more than %g s: nothing is kept for it any more",
            business.name,
            consumer.group,
            ttl_s,
        )
        business.add_to_counter("expired_consumers")
        forget(group, business, consumer.group, now_us)
    for (_, before), consumer in zip(known, later, strict=True):
        if not consumers.has_expired(consumer, ttl_s) and consumers.should_store_absence(before, consumer, ttl_s):
            log_consumer(group, business, consumer)


def forget(group: CommandGroup, business: Business, name: str, at_us: int) -> None:
    """Log that a consumer will not come back."""
    record = {"group": name, "forget": True}
    entry = record_entry(EntryKind.CONSUMER, epoch=business.proposed.epoch, at_us=at_us, record=record)
    group.append(business, entry, durable=False)


def log_consumer(group: CommandGroup, business: Business, consumer: ConsumerState, *, durable: bool = False) -> None:
    """Log the positions of a consumer. Losing the newest such entry only keeps more of the queue than needed."""
    entry = record_entry(
        EntryKind.CONSUMER,
        epoch=business.proposed.epoch,
        at_us=consumer.updated_at_us,
        record=consumer_record(consumer),
    )
    group.append(business, entry, durable=durable)
