"""The coordinator's blocking calls, one at a time, in a thread of their own; answers go back as events.

The lease has another thread (lease_thread.py).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from venus.broker.replicas.lease_thread import REFRESH_PART, LeaseThread
from venus.broker.replicas.ports import Post
from venus.errors import Fenced, VenusError
from venus.replication.coordinator import Coordinator
from venus.replication.messages import NO_LEASE, Swapped
from venus.replication.records import Leadership, LiveBroker

logger = logging.getLogger(__name__)

#: Between two looks at the coordinator, however many hints come.
READ_EVERY_S = 0.05


class Told(Protocol):
    """Who is told what the coordinator says: the host."""

    def seen(self, leaderships: tuple[Leadership, ...], brokers: tuple[LiveBroker, ...]) -> None:
        """Take up who leads and who lives."""

    def leased(self, until: float) -> None:
        """Note until when the lease holds, NO_LEASE = it has ended."""

    def swapped(self, event: Swapped) -> None:
        """Take the answer to a swap."""

    def forgotten(self, business: str, term: int) -> None:
        """Take up that a business was forgotten in a term, 0 = it was not."""


class CoordinatorThread:
    """A `Coordination`. `unreachable` says why the coordinator does not answer, empty = it does.

    `invalid` names records that cannot be used. `on_fatal` ends a process whose place another one has taken.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        lease_s: float,
        monotonic: Callable[[], float],
        post: Post,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._coordinator = coordinator
        self._read_at_least_s = lease_s * REFRESH_PART
        self._monotonic = monotonic
        self._post, self._on_fatal = post, on_fatal
        self._told: Told | None = None
        self._ready = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._wants_read = True
        self._stopping = False
        self._read_at = float("-inf")
        self.unreachable = ""
        self.invalid: tuple[str, ...] = ()
        self._lease = LeaseThread(
            coordinator, lease_s=lease_s, monotonic=monotonic, leased=self._leased, failed=self._failed
        )
        self._thread = threading.Thread(target=self._run, name="venus-coordinator", daemon=True)

    def start(self, told: Told, me: LiveBroker) -> None:
        """Register this broker, and begin. Raises Refused if another broker has its id."""
        self._told = told
        self._lease.start(me)
        self._coordinator.watch(self.read_soon)
        self._thread.start()

    def stop(self, *, leave: bool = True) -> None:
        """End the threads, and the lease if `leave`."""
        self._lease.stop()
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive():
            self._thread.join()
        if leave:
            try:
                self._coordinator.leave()
            except VenusError as error:
                logger.info("the lease ends by itself: %s", error)
        self._coordinator.close()

    def say(self, me: LiveBroker) -> None:
        """Say something else of this broker."""
        self._lease.say(me)

    # -- calls of the host -----------------------------------------------------------------------------------------

    def read_soon(self) -> None:
        """Read who lives and who leads."""
        with self._ready:
            self._wants_read = True
            self._ready.notify()

    def swap(self, before: Leadership, after: Leadership) -> None:
        """Replace a record."""

        def call() -> None:
            stored: Leadership | None = None
            certain = True
            try:
                stored = self._coordinator.swap(before, after)
            except VenusError as error:
                certain = False
                self._failed(error)
            event = Swapped(before=before, after=after, stored=stored, certain=certain)
            self._tell(lambda told: told.swapped(event))

        self._queue(call)

    def note(self, store: str, sequence: int) -> None:
        """Remember how new a store is; if that fails, the next time will do."""
        self._queue(lambda: self._coordinator.note(store, sequence))

    def create(self, leadership: Leadership) -> None:
        """Store a new business; whoever made it, it is read afterwards."""

        def call() -> None:
            try:
                self._coordinator.create(leadership)
            except VenusError as error:
                self._failed(error)
            self.read_soon()

        self._queue(call)

    def ask_forgotten(self, business: str) -> None:
        """Ask whether a business that has no record any more was forgotten."""

        def call() -> None:
            term = self._coordinator.forgotten(business)
            self._tell(lambda told: told.forgotten(business, term))

        self._queue(call)

    # -- the thread --------------------------------------------------------------------------------------------

    def _queue(self, call: Callable[[], None]) -> None:
        with self._ready:
            self._calls.append(call)
            self._ready.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except VenusError as error:
                self._failed(error)
            except Exception as error:
                logger.exception("a call of the coordinator failed")
                self.unreachable = repr(error)

    def _next(self) -> Callable[[], None] | None:
        """Return the next call: what was asked for, then a look at everything, now and then without a hint."""
        with self._ready:
            while True:
                now = self._monotonic()
                if self._stopping:
                    return None
                if self._calls:
                    return self._calls.popleft()
                # without a hint as well: a watch may miss something
                wake = self._read_at + (READ_EVERY_S if self._wants_read else self._read_at_least_s)
                if now >= wake:
                    self._wants_read, self._read_at = False, now
                    return self._read
                self._ready.wait(max(wake - now, 0.001))

    def _leased(self, until: float) -> None:
        if self.unreachable and until != NO_LEASE:
            logger.info("the coordinator answers again")
            self.unreachable = ""
        self._tell(lambda told: told.leased(until))

    def _read(self) -> None:
        leaderships, brokers = self._coordinator.leaderships(), self._coordinator.brokers()
        self._note_invalid(self._coordinator.invalid)
        self._tell(lambda told: told.seen(leaderships, brokers))

    def _note_invalid(self, invalid: tuple[str, ...]) -> None:
        for line in set(invalid) - set(self.invalid):
            logger.error("the coordinator: %s", line)
        self.invalid = invalid

    def _tell(self, say: Callable[[Told], None]) -> None:
        told = self._told
        if told is not None:
            self._post(lambda: say(told))

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Fenced):
            self._on_fatal(error)
        if not self.unreachable:
            logger.warning("the coordinator: %s", error)
        self.unreachable = str(error) or repr(error)
