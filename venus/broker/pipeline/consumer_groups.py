"""Consumers attached to a business: kept in memory, logged by the upkeep. The rules are in machine/consumers.py.

Each attachment has a token. Once a newer stream of a group is attached, messages of the older one are ignored: they
neither move the group's positions nor end its attachment. Transient readers are known by their tokens only. So two
readers of the same name are independent, and a reader with the name of a group does not affect the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from venus.broker.machine import consumers
from venus.broker.machine.business import Business
from venus.broker.machine.consumers import ConsumerState
from venus.broker.pipeline import trimming
from venus.broker.pipeline.group import CommandGroup
from venus.errors import Refused, Unavailable


class Submit(Protocol):
    """The function that queues a command of the commit thread."""

    def __call__(self, work: Callable[[CommandGroup], None], *, business: Business) -> Future[Any]: ...


class ConsumerGroups:
    """The attachments. Thread-safe; only `attach` of a new group and `forget` wait for the disk."""

    def __init__(
        self,
        *,
        submit: Submit,
        is_stored: Callable[[Business], bool],
        check_leads: Callable[[Business], None],
        changed: Callable[[Business, ConsumerState], None],
        clock_us: Callable[[], int],
    ) -> None:
        self._submit = submit
        self._is_stored = is_stored
        self._check_leads = check_leads
        self._changed = changed
        self._clock_us = clock_us
        self._tokens = itertools.count(1)

    def attach(self, business: Business, group: str, offset: int, *, kept: int | None, transient: bool) -> int:
        """Attach a stream of a group that reads from `offset` on; return its token.

        A new group is on disk when this returns, so the queue is kept for it after a crash too. Raises NotLeader where
        another broker logs the positions of groups.
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
            return token
        with business.lock:
            self._check_leads(business)  # in the lock, so that `retire` sees every attached stream
            known = business.consumers.get(group)
            made = consumers.attach(known, wanted, kept=kept, log_start=business.log_start)
            business.consumers[group] = made
        if self._is_stored(business) and (known is None or made.kept < known.kept):
            self._log_now(business, made, known)
        self._changed(business, made)
        return token

    def _log_now(self, business: Business, made: ConsumerState, known: ConsumerState | None) -> None:
        proposed: list[ConsumerState] = []

        def work(batch: CommandGroup) -> None:
            trimming.log_consumer(batch, business, made, durable=True)
            proposed.append(made)

        try:
            self._submit(work, business=business).result()
        except BaseException:
            if proposed:  # the log may have the group
                self.detach(business, made.group, made.token)
            else:
                self._give_up(business, made, known)
            raise

    @staticmethod
    def _give_up(business: Business, made: ConsumerState, known: ConsumerState | None) -> None:
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
                return
            known = business.consumers.get(group)
            if known is None or known.token != token:
                return
            consumer = consumers.detach(known, now_us=self._clock_us())
            business.consumers[group] = consumer
        self._changed(business, consumer)

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
        """Stop keeping increments for a group that will not come back. Raises Refused while it is attached."""
        with business.lock:
            _check_is_gone(business, group)
        if self._is_stored(business):
            self._submit(lambda batch: self._forget(batch, business, group), business=business).result()
        else:
            with business.lock:
                business.consumers.pop(group, None)

    def _forget(self, batch: CommandGroup, business: Business, group: str) -> None:
        """Propose the removal. In the commit thread no position of the group can be logged behind it."""
        with business.lock:
            known = business.consumers.get(group)
            if known is not None and known.is_connected:
                raise _connected_error(business, group)
            business.consumers.pop(group, None)
        trimming.forget(batch, business, group, self._clock_us())


def _check_is_gone(business: Business, group: str) -> None:
    known = business.consumers.get(group)
    if known is None:
        raise Unavailable(f"{business.name} has no consumer {group!r}", hint="`venus status` lists them")
    if known.is_connected:
        raise _connected_error(business, group)


def _connected_error(business: Business, group: str) -> Refused:
    return Refused(f"consumer {group} of {business.name} is connected", hint="stop its `venus sync` or its query first")
