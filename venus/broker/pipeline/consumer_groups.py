"""Who is attached to a business: in memory, logged by the upkeep; machine/consumers.py has the rules.

Each attachment has a token. What an older stream of a group still says, when a newer one is attached, is ignored: it
neither moves the group's positions nor ends its attachment. Transient readers have their tokens only, so two of one
name do not disturb each other, and a reader with the name of a group does not touch the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
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
        changed: Callable[[Business, Consumer], None],
        clock_us: Callable[[], int],
    ) -> None:
        self._submit = submit
        self._is_stored = is_stored
        self._changed = changed
        self._clock_us = clock_us
        self._tokens = itertools.count(1)

    def attach(self, business: Business, group: str, offset: int, *, kept: int | None, transient: bool) -> int:
        """Note that a stream of a group reads from `offset` on; return its token.

        A new group is on disk when this returns, so that its consumer may rely on what it was told after a crash.
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
            known = business.consumers.get(group)
            made = consumers.attach(known, wanted, kept=kept, log_start=business.log_start)
            business.consumers[group] = made
        if self._is_stored(business) and (known is None or made.kept < known.kept):
            self._log_now(business, made)
        self._changed(business, made)
        return token

    def _log_now(self, business: Business, consumer: Consumer) -> None:
        try:
            self._submit(
                lambda batch: trimming.log_consumer(batch, business, consumer, durable=True), business=business
            ).result()
        except BaseException:
            self.detach(business, consumer.group, consumer.token)
            raise

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

    def kept(self, business: Business, group: str, token: int) -> int:
        """Return from which offset on the queue is kept for a stream."""
        with business.lock:
            known = business.readers.get(token) or business.consumers.get(group)
        return known.kept if known is not None else business.visible_offset

    def forget(self, business: Business, group: str) -> None:
        """Stop keeping increments for a group that will not come back. Raises Refused while it is attached."""
        with business.lock:
            known = business.consumers.get(group)
        if known is None:
            raise Unavailable(f"{business.name} has no consumer {group!r}", hint="`venus status` lists them")
        if known.connected:
            raise Refused(
                f"consumer {group} of {business.name} is connected", hint="stop its `venus sync` or its query first"
            )
        if self._is_stored(business):
            self._submit(
                lambda batch: trimming.forget(batch, business, group, self._clock_us()), business=business
            ).result()
        with business.lock:
            now = business.consumers.get(group)
            if now is not None and not now.connected:
                del business.consumers[group]
                return
        if now is not None:  # it has come back meanwhile: its record is to be there again
            self._changed(business, now)
