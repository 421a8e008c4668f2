"""Who is attached to a business: in memory, logged by the upkeep; machine/consumers.py has the rules.

Each attachment has a token. What an older stream of a group still says, when a newer one is attached, is ignored: it
neither moves the group's positions nor ends its attachment. Transient readers have their tokens only, so two of one
name do not disturb each other, and a reader with the name of a group does not touch the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from venus.broker.machine import consumers
from venus.broker.machine.business import Business
from venus.broker.machine.consumers import Consumer
from venus.broker.pipeline import trimming
from venus.broker.pipeline.group import Group
from venus.errors import Refused, Unavailable


class Submit(Protocol):
    """Queue a command of the commit thread."""

    def __call__(self, work: Callable[[Group], None], *, business: Business) -> Future[Any]: ...


class ConsumerGroups:
    """Thread-safe; only `attach` of a new group and `forget` wait for the disk."""

    def __init__(
        self,
        *,
        submit: Submit,
        is_stored: Callable[[Business], bool],
        check_leads: Callable[[Business], None],
        changed: Callable[[Business, Consumer], None],
        clock_us: Callable[[], int],
    ) -> None:
        self._submit = submit
        self._is_stored = is_stored
        self._check_leads = check_leads
        self._changed = changed
        self._clock_us = clock_us
        self._tokens = itertools.count(1)

    def attach(self, business: Business, group: str, offset: int, *, kept: int | None, transient: bool) -> int:
        """Note that a stream of a group reads from `offset` on; return its token.

        A new group is on disk when this returns, so that its consumer may rely on what it was told after a crash.
        Raises NotLeader where another broker logs what a group says.
        """
        token = next(self._tokens)
        wanted = Consumer(
            group=group, acknowledged=offset, kept=offset, transient=transient, token=token,
            updated_at_us=self._clock_us(),
        )  # fmt: skip
        if transient:
            with business.lock:
                business.readers[token] = wanted
            return token
        with business.lock:
            self._check_leads(business)  # in the lock: who is attached by then is seen by `retire`
            known = business.consumers.get(group)
            made = consumers.attach(known, wanted, kept=kept, log_start=business.log_start)
            business.consumers[group] = made
        if self._is_stored(business) and (known is None or made.kept < known.kept):
            self._log_now(business, made, known)
        self._changed(business, made)
        return token

    def _log_now(self, business: Business, made: Consumer, known: Consumer | None) -> None:
        proposed: list[Consumer] = []

        def work(batch: Group) -> None:
            trimming.log_consumer(batch, business, made, durable=True)
            proposed.append(made)

        try:
            self._submit(work, business=business).result()
        except BaseException:
            if proposed:  # the log may have it
                self.detach(business, made.group, made.token)
            else:
                self._give_up(business, made, known)
            raise

    @staticmethod
    def _give_up(business: Business, made: Consumer, known: Consumer | None) -> None:
        """Let a group be what it was: a new one is logged when it comes again."""
        with business.lock:
            current = business.consumers.get(made.group)
            if current is None or current.token != made.token:
                return
            if known is None:
                del business.consumers[made.group]
            else:
                business.consumers[made.group] = replace(known, token=0)

    def acknowledge(self, business: Business, group: str, token: int, offset: int, kept: int | None = None) -> bool:
        """Note what is applied and what is needed; return False if another stream has taken over."""
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
        """Note that a stream has ended; a transient reader is forgotten."""
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
        """Let no stream speak for a group any more: another broker leads, and what they still say is not logged."""
        with business.lock:
            business.consumers = {group: replace(known, token=0) for group, known in business.consumers.items()}

    def kept(self, business: Business, group: str, token: int) -> int:
        """Return from which offset on the queue is kept for a stream."""
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

    def _forget(self, batch: Group, business: Business, group: str) -> None:
        """Propose it; in the commit thread, so that nothing that is logged of the group comes behind it."""
        with business.lock:
            known = business.consumers.get(group)
            if known is not None and known.connected:
                raise _connected(business, group)
            business.consumers.pop(group, None)
        trimming.forget(batch, business, group, self._clock_us())


def _check_is_gone(business: Business, group: str) -> None:
    known = business.consumers.get(group)
    if known is None:
        raise Unavailable(f"{business.name} has no consumer {group!r}", hint="`venus status` lists them")
    if known.connected:
        raise _connected(business, group)


def _connected(business: Business, group: str) -> Refused:
    return Refused(f"consumer {group} of {business.name} is connected", hint="stop its `venus sync` or its query first")
