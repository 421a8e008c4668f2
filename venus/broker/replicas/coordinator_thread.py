"""The coordinator's blocking calls, one at a time, in a thread of their own; answers go back as events."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from venus.broker.replicas.ports import Post
from venus.errors import Unavailable, VenusError
from venus.replication.coordinator import Coordinator
from venus.replication.messages import Swapped
from venus.replication.records import Leadership, LiveBroker

logger = logging.getLogger(__name__)

#: A lease is refreshed each third of it.
REFRESH_PART = 1 / 3
#: Between two looks at the coordinator, however many hints come.
READ_EVERY_S = 0.05


class Told(Protocol):
    """Who is told what the coordinator says: the host."""

    def seen(self, leaderships: tuple[Leadership, ...], brokers: tuple[LiveBroker, ...]) -> None:
        """Take up who leads and who lives."""

    def leased(self, until: float) -> None:
        """Note for how long the lease holds."""

    def swapped(self, event: Swapped) -> None:
        """Take the answer to a swap."""

    def forgotten(self, business: str, term: int) -> None:
        """Take up that a business was forgotten in a term, 0 = it was not."""


class CoordinatorThread:
    """A `Coordination`. `unreachable` says why the coordinator does not answer, empty = it does.

    `invalid` names records that cannot be used.
    """

    def __init__(self, coordinator: Coordinator, *, lease_s: float, monotonic: Callable[[], float], post: Post) -> None:
        self._coordinator = coordinator
        self._me: LiveBroker | None = None
        self._lease_s = lease_s
        self._refresh_every_s = lease_s * REFRESH_PART
        self._monotonic = monotonic
        self._post = post
        self._told: Told | None = None
        self._ready = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._wants_read = True
        self._stopping = False
        self._refreshed_at = self._read_at = float("-inf")
        self.unreachable = ""
        self.invalid: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="venus-coordinator", daemon=True)

    def start(self, told: Told, me: LiveBroker) -> None:
        """Register this broker, and begin. Raises Refused if another broker has its id."""
        self._told, self._me = told, me
        try:
            self._register()
        except Unavailable as error:
            self._failed(error)
        self._coordinator.watch(self.read_soon)
        self._thread.start()

    def stop(self, *, leave: bool = True) -> None:
        """End the thread, and the lease if `leave`."""
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
        """Return the next call: the lease first, then what was asked for, then a look at everything."""
        with self._ready:
            while True:
                now = self._monotonic()
                if self._stopping:
                    return None
                if now >= self._refreshed_at + self._refresh_every_s:
                    self._refreshed_at = now
                    self._wants_read = True  # a watch is a hint that may be missed
                    return self._refresh
                if self._calls:
                    return self._calls.popleft()
                if self._wants_read and now >= self._read_at + READ_EVERY_S:
                    self._wants_read, self._read_at = False, now
                    return self._read
                wake = self._read_at + READ_EVERY_S if self._wants_read else self._refreshed_at + self._refresh_every_s
                self._ready.wait(max(wake - now, 0.001))

    def _refresh(self) -> None:
        asked_at = self._monotonic()
        if self._coordinator.refresh():
            self._leased(asked_at)
        else:
            logger.warning("the lease at the coordinator had ended; this broker registers again")
            self._register()

    def _register(self) -> None:
        asked_at = self._monotonic()
        assert self._me is not None, "started"
        self._coordinator.register(self._me)
        self._leased(asked_at)

    def _leased(self, asked_at: float) -> None:
        if self.unreachable:
            logger.info("the coordinator answers again")
            self.unreachable = ""
        until = asked_at + self._lease_s
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

    def _failed(self, error: VenusError) -> None:
        if not self.unreachable:
            logger.warning("the coordinator: %s", error)
        self.unreachable = str(error)
