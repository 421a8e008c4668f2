"""Trimming the queue and the log: retention.py decides how far, this removes it, in the storage thread."""

from __future__ import annotations

from venus.broker.log.entry import EntryKind, note
from venus.broker.machine import queue_index, retention
from venus.broker.machine.state import Business
from venus.broker.pipeline.group import Group
from venus.broker.queue import places
from venus.broker.store import keys
from venus.broker.store.rocks import Store

#: At most so many batches are looked at in one pass.
PASS_BATCHES_MAX = 20_000
#: Trimming in larger pieces leaves fewer range tombstones; small settings are obeyed exactly.
_PIECES = 16
_PIECE_BYTES_MAX = 8 << 20


def trim(store: Store, group: Group, business: Business, pins: list[int], retain_bytes: int) -> tuple[int, int]:
    """Remove what nobody needs; return the log entries removed, as a range."""
    with business.lock:
        consumers = list(business.consumers.values())
    point = retention.trim_point(business.materialised.offset, consumers, pins)
    first_needed = places.at(store, business, point)
    needed_from = first_needed.before if first_needed else business.nbytes
    target = needed_from - retain_bytes
    if target - business.nbytes_trimmed <= min(_PIECE_BYTES_MAX, retain_bytes // _PIECES):
        return 0, 0
    last = _last_removable(store, business, point, target)
    if last is None:
        return 0, 0
    start = last.next_offset
    index = min([last.index + 1, *(found.index for found in business.applying.halves[:1])])
    number, first_index = business.number, business.log.start
    group.batch.delete_range(keys.QUEUE, keys.queue_key(number, business.log_start), keys.queue_key(number, start))
    business.log.trim(group.batch, index)
    business.log_start, business.nbytes_trimmed = start, last.after
    group.changed.add(business)
    return first_index, index


def _last_removable(store: Store, business: Business, point: int, target: int) -> queue_index.Placed | None:
    last = None
    for place in places.oldest(store, business, PASS_BATCHES_MAX):
        if place.after > target or place.next_offset > point:
            break
        last = place
    return last


def expire(group: Group, business: Business, now_us: int, ttl_s: float) -> None:
    """Forget consumers that have been away for too long."""
    with business.lock:
        groups = retention.expired(business.consumers.values(), now_us, ttl_s)
        for name in groups:
            del business.consumers[name]
    for name in groups:
        business.count("expired_consumers")
        forget(group, business, name, now_us)


def forget(group: Group, business: Business, name: str, at_us: int) -> None:
    """Log that a consumer will not come back."""
    record = {"group": name, "forget": True}
    entry = note(EntryKind.CONSUMER, epoch=business.proposed.epoch, at_us=at_us, record=record)
    group.append(business, entry, durable=False)


def acknowledged(group: Group, business: Business, name: str, offset: int, at_us: int) -> None:
    """Log how far a consumer has come; losing the newest of these only keeps more than is needed."""
    record = {"group": name, "acknowledged": offset}
    entry = note(EntryKind.CONSUMER, epoch=business.proposed.epoch, at_us=at_us, record=record)
    group.append(business, entry, durable=False)
