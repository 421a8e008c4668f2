"""Commands of replication in the commit thread: entries of a leader, the begin and the end of a leadership."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from venus.broker.log.entry import EntryKind, decode, record_entry
from venus.broker.machine import records
from venus.broker.machine.business import Business
from venus.broker.pipeline.group import CommandGroup, halt
from venus.broker.store.rocks import Store
from venus.errors import Corruption, StorageError

logger = logging.getLogger(__name__)


def append_stored(group: CommandGroup, business: Business, first: int, values: Sequence[bytes], sender: str) -> None:
    """Append entries of a leader in their stored form. All of them are checked before any is appended.

    If the log ends elsewhere or an entry is damaged, only the log's position is reported again. An entry that cannot
    be applied here halts the business.
    """
    group.log_changed.add(business)
    if first != business.log.end or business.halted:
        return
    try:
        entries = [decode(value, first + i, where=f"what {sender} sent") for i, value in enumerate(values)]
    except Corruption as error:
        business.add_to_counter("damaged_entries")
        logger.warning("%s: %s; it is fetched again", business.name, error)
        return
    mark = group.savepoint()
    try:
        for entry, value in zip(entries, values, strict=True):
            group.follow(business, entry, value)
    except StorageError:
        raise
    except Exception as error:
        index = business.log.end
        group.take_back(mark)
        halt(business, index, error)


def begin_term(
    group: CommandGroup, business: Business, term: int, leader: str, at_us: int, *, doubted: Sequence[int] = ()
) -> None:
    """Append the entry that begins a leadership. Committing it commits everything before it.

    `doubted` are terms of unclean elections with unknown losses. The entry records those that the log does not have,
    so that the producer is asked.
    """
    group.log_changed.add(business)
    if business.log.terms.newest >= term:
        return
    group.allow(business, term)
    known = {loss.term for loss in business.proposed.losses}
    unclean = [doubt for doubt in doubted if doubt not in known]
    record = {"term": term, "leader": leader, **({"unclean": unclean} if unclean else {})}
    group.append(business, record_entry(EntryKind.TERM, epoch=business.proposed.epoch, at_us=at_us, record=record))


def end_term(store: Store, business: Business) -> None:
    """Reset the consumer groups to their logged state. Consumers repeat newer positions to the next leader.

    Otherwise a group that the next leader forgets would stay here and reappear when this broker leads again. An
    attached group came later, in a newer term of this broker, so it stays.
    """
    business.pending = deque(replace(pending, is_new=False) for pending in business.pending)
    logged = records.load_consumers(store, business.number)
    with business.lock:
        attached = {group: found for group, found in business.consumers.items() if found.is_connected}
        business.consumers = logged | attached
