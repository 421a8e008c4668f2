"""Consumers attached to a business, and the trimming of what they have read. The rules are in machine/consumers.py.

Consumers are kept in memory; the upkeep logs the positions of groups. Each attachment of a stream has a token. Once a
newer stream of a group is attached, messages of the older one are ignored: they neither move the group's positions nor
end its attachment. Transient readers are identified only by their tokens, so two readers of the same name are
independent, and a reader with the name of a group does not affect the group.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from venus.broker.log.entry import EntryKind, record_entry
from venus.broker.machine import consumers, queue_index
from venus.broker.machine.business import Business
from venus.broker.machine.consumers import ConsumerState, kept_offsets
from venus.broker.machine.records import consumer_record
from venus.broker.pipeline.group import CommandGroup
from venus.broker.pipeline.shared_log import NO_BACKLOG, Backlog
from venus.broker.queue import reader
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import Refused, Unavailable

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
    """Trim the queue and the log entries that no consumer or broker needs; return the range of trimmed entries."""
    if not business.is_filled:
        return 0, 0
    if (mirror := business.applying.mirror) is not None and business.log.start <= mirror.end:
        return _trim_full_data(group, business, mirror.end, backlog)
    point = consumers.trim_point(business.materialised.offset, kept_offsets(business.list_consumers()), pins)
    first_needed = reader.find_batch(store, business, point)
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
    """Trim the log entries that have become rows of a mirror's full data; return their range."""
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
    """Return the last batch that can be trimmed, None if the oldest one is still needed."""
    last = None
    for place in reader.walk_oldest(store, business, PASS_BATCHES_MAX):
        if place.after > target or place.next_offset > point:
            break
        if backlog.must_keep(place.index, business.nbytes - place.after):
            break
        last = place
    return last


def age_consumers(group: CommandGroup, business: Business, passed_us: int, now_us: int, ttl_s: float) -> None:
    """Add the passed time to the absence of consumers, and forget those that were absent for too long."""
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
    """Log that a consumer group is removed."""
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


class Submit(Protocol):
    """Signature of the function that submits a command to the commit thread."""

    def __call__(self, work: Callable[[CommandGroup], None], *, business: Business) -> Future[Any]: ...


class ConsumerGroups:
    """The attachments of consumers. Thread-safe; only `attach` of a new group and `forget` wait for the disk."""

    def __init__(
        self,
        *,
        submit: Submit,
        is_stored: Callable[[Business], bool],
        check_leads: Callable[[Business], None],
        changed: Callable[[Business, ConsumerState], None],
        clock_us: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic = monotonic
        self._submit = submit
        self._is_stored = is_stored
        self._check_leads = check_leads
        self._changed = changed
        self._clock_us = clock_us
        self._tokens = itertools.count(1)

    def attach(self, business: Business, group: str, offset: int, *, kept: int | None, transient: bool) -> int:
        """Attach a stream of a group that reads from `offset` on; return its token.

        A new group of a stored business is on disk when `attach` returns, so its queue is kept even after a crash.
        Raises NotLeader if another broker logs the positions of groups.
        """
        token = next(self._tokens)
        wanted = ConsumerState(
            group=group,
            acknowledged=offset,
            kept=offset,
            transient=transient,
            token=token,
            updated_at_us=self._clock_us(),
        )
        if transient:
            with business.lock:
                business.readers[token] = wanted
                self._record_return(business, group)
            return token
        with business.lock:
            self._check_leads(business)  # in the lock, so that `retire` sees every attached stream
            known = business.consumers.get(group)
            made = consumers.attach(known, wanted, kept=kept, log_start=business.log_start)
            business.consumers[group] = made
            self._record_return(business, group)
        if self._is_stored(business) and (known is None or made.kept < known.kept):
            self._log_now(business, made, known)
        self._changed(business, made)
        return token

    def _log_now(self, business: Business, made: ConsumerState, known: ConsumerState | None) -> None:
        """Log a new group durably; undo its attachment if that fails."""
        proposed: list[ConsumerState] = []

        def log_group(batch: CommandGroup) -> None:
            log_consumer(batch, business, made, durable=True)
            proposed.append(made)

        try:
            self._submit(log_group, business=business).result()
        except BaseException:
            if proposed:  # the log may have the group
                self.detach(business, made.group, made.token)
            else:
                self._undo_attachment(business, made, known)
            raise

    @staticmethod
    def _undo_attachment(business: Business, made: ConsumerState, known: ConsumerState | None) -> None:
        """Restore a group to its state before the attachment. A new group is logged when it attaches again."""
        with business.lock:
            current = business.consumers.get(made.group)
            if current is None or current.token != made.token:
                return
            if known is None:
                del business.consumers[made.group]
            else:
                business.consumers[made.group] = replace(known, token=0)

    def acknowledge(self, business: Business, group: str, token: int, offset: int, kept: int | None = None) -> bool:
        """Record the applied offset and the needed one; return False if another stream has taken over."""
        with business.lock:
            known = business.readers.get(token) or business.consumers.get(group)
            if known is None or known.token != token:
                return False
            consumer = consumers.acknowledge(
                known, applied=offset, kept=kept, end=business.visible_offset, now_us=self._clock_us()
            )
            if consumer.transient:
                business.readers[token] = consumer
                return True
            business.consumers[group] = consumer
        self._changed(business, consumer)
        return True

    def detach(self, business: Business, group: str, token: int) -> None:
        """Record that a stream has ended; forget a transient reader."""
        with business.lock:
            if business.readers.pop(token, None) is not None:
                self._record_leave(business, group)
                return
            known = business.consumers.get(group)
            if known is None or known.token != token:
                return
            self._record_leave(business, group)
            consumer = consumers.detach(known, now_us=self._clock_us())
            business.consumers[group] = consumer
        self._changed(business, consumer)

    def _record_return(self, business: Business, reader: str) -> None:
        """Record in the measured retention that a reader is connected again. Needs the lock."""
        if business.retention is not None:
            business.retention.on_return(reader, self._monotonic())

    def _record_leave(self, business: Business, reader: str) -> None:
        """Record in the measured retention that a reader has left. Needs the lock."""
        if business.retention is not None:
            business.retention.on_leave(reader, self._monotonic())

    def retire(self, business: Business) -> None:
        """Invalidate all tokens of groups: another broker leads, and positions are not logged here any more."""
        with business.lock:
            business.consumers = {group: replace(known, token=0) for group, known in business.consumers.items()}

    def kept_offset(self, business: Business, group: str, token: int) -> int:
        """Return the offset from which the queue is kept for a stream."""
        with business.lock:
            known = business.readers.get(token) or business.consumers.get(group)
        return known.kept if known is not None else business.visible_offset

    def forget(self, business: Business, group: str) -> None:
        """Remove a consumer group, so that nothing is kept for it. Raises Refused while the group is attached."""
        with business.lock:
            _check_is_gone(business, group)
        if self._is_stored(business):
            self._submit(lambda batch: self._forget(batch, business, group), business=business).result()
        else:
            with business.lock:
                business.consumers.pop(group, None)

    def _forget(self, batch: CommandGroup, business: Business, group: str) -> None:
        """Propose the removal of a group, in the commit thread, so that no position of the group is logged later."""
        with business.lock:
            known = business.consumers.get(group)
            if known is not None and known.is_connected:
                raise _connected_error(business, group)
            business.consumers.pop(group, None)
        forget(batch, business, group, self._clock_us())


def _check_is_gone(business: Business, group: str) -> None:
    """Check that a group can be removed: raise Unavailable if it is unknown, Refused while it is attached."""
    known = business.consumers.get(group)
    if known is None:
        raise Unavailable(f"{business.name} has no consumer {group!r}", hint="`venus status` lists them")
    if known.is_connected:
        raise _connected_error(business, group)


def _connected_error(business: Business, group: str) -> Refused:
    """Return the error for the removal of a group that is connected."""
    return Refused(f"consumer {group} of {business.name} is connected", hint="stop its `venus sync` or its query first")
