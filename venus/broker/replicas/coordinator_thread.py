"""The coordinator's blocking calls, one at a time, in a thread of their own; answers go back as events.

The lease has another thread (lease_thread.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from venus.broker.replicas.ports import Post
from venus.errors import Fenced, Refused, Unavailable, VenusError
from venus.replication.coordinator import Coordinator
from venus.replication.messages import NO_LEASE, Swapped
from venus.replication.records import Leadership, LiveBroker

logger = logging.getLogger(__name__)

#: A lease is refreshed each third of it.
REFRESH_PART = 1 / 3
#: After an error.
PAUSE_S = 0.2
#: A broker that comes back with an empty disk finds the lease of the one that it was; etcd ends leases a little late.
LEASES_WAITED = 2
#: Between two looks at the coordinator, however many hints come.
READ_EVERY_S = 0.05


class LeaseThread:
    """`leased` is told until when the lease holds, `failed` why it could not be renewed; from this thread.

    That a lease has ended is told too, and that it is another one than before: a machine that slept, or a virtual one
    that was paused, need not see it by its clock.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        lease_s: float,
        monotonic: Callable[[], float],
        leased: Callable[[float], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._coordinator = coordinator
        self._lease_s, self._monotonic = lease_s, monotonic
        self._leased, self._failed = leased, failed
        self._ready = threading.Condition()
        self._me: LiveBroker | None = None
        self._said: LiveBroker | None = None
        self._stopping = False
        self._lease = 0  # which one was told last
        self._thread = threading.Thread(target=self._run, name="venus-lease", daemon=True)

    def start(self, me: LiveBroker) -> None:
        """Register, and begin. Raises Refused if another broker has this one's id, and goes on living."""
        self._me = me
        end = self._monotonic() + LEASES_WAITED * self._lease_s
        while not self._is_registered(end):
            time.sleep(PAUSE_S)
        self._thread.start()

    def _is_registered(self, end: float) -> bool:
        """Register if possible; False = another broker has the id, and may be gone: its lease ends then."""
        try:
            self._register()
        except Unavailable as error:
            self._failed(error)
        except Refused as error:
            if self._monotonic() >= end:
                raise
            logger.info("%s; if it is gone, its lease ends soon", error)
            return False
        return True

    def say(self, me: LiveBroker) -> None:
        """Say something else of this broker soon."""
        with self._ready:
            self._me = me
            self._ready.notify()

    def stop(self) -> None:
        """End the thread; the lease goes on for its time."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = self._lease_s * REFRESH_PART
        while self._paused(pause_s):
            pause_s = self._lease_s * REFRESH_PART
            try:
                self._renew()
            except VenusError as error:
                self._failed(error)
                pause_s = PAUSE_S
            except Exception as error:
                logger.exception("the lease at the coordinator cannot be renewed")
                self._failed(error)

    def _paused(self, seconds: float) -> bool:
        """Wait until the lease is to be refreshed, or something else is to be said; False = the end."""
        end = self._monotonic() + seconds
        with self._ready:
            while not self._stopping and self._said in (None, self._me) and (left := end - self._monotonic()) > 0:
                self._ready.wait(left)
            return not self._stopping

    def _renew(self) -> None:
        asked_at = self._monotonic()
        if self._me == self._said:
            if self._coordinator.refresh():
                self._holds(asked_at)
                return
            self._leased(NO_LEASE)
            logger.warning("the lease at the coordinator had ended; this broker registers again")
        self._register()

    def _register(self) -> None:
        me = self._me
        assert me is not None, "started"
        self._said = None
        asked_at = self._monotonic()
        self._coordinator.register(me)
        if self._coordinator.refresh():  # what was registered under an older lease lives as long as that one
            self._holds(asked_at)
        self._said = me

    def _holds(self, asked_at: float) -> None:
        if self._lease != self._coordinator.lease:
            self._lease = self._coordinator.lease
            self._leased(NO_LEASE)  # before this one: others may have begun to elect a leader
        self._leased(asked_at + self._lease_s)


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
