"""Threads that call the coordinator: one for blocking calls, whose answers return as events, and one for the lease.

The lease thread only refreshes the lease, so that no slow call delays a refresh.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from venus.broker.replicas.effects import Post
from venus.errors import Fenced, Refused, Unavailable, VenusError
from venus.replication.messages import NO_LEASE, SwapResult
from venus.replication.records import Coordinator, Leadership, LiveBroker

logger = logging.getLogger(__name__)

#: A lease is refreshed after this part of its duration.
REFRESH_PART = 1 / 3
#: Delay before a retry after an error.
PAUSE_S = 0.2
#: A broker that restarts with an empty disk waits until its own old lease has ended. It waits for this many lease
#: times, because etcd ends a lease late.
LEASES_WAITED = 2
#: Minimum interval between two reads of the coordinator, however many hints arrive.
READ_EVERY_S = 0.05


class LeaseThread:
    """Thread that refreshes the lease. In this thread, `on_lease` gets the deadline and `on_failure` the errors.

    `on_lease` is also called when a lease ends or a new one replaces it: after a suspend, the clock of a machine need
    not show that the lease has ended.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        lease_s: float,
        monotonic: Callable[[], float],
        on_lease: Callable[[float], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._coordinator = coordinator
        self._lease_s, self._monotonic = lease_s, monotonic
        self._on_lease, self._on_failure = on_lease, on_failure
        self._ready = threading.Condition()
        self._me: LiveBroker | None = None
        self._said: LiveBroker | None = None
        self._stopping = False
        self._lease = 0  # the newest one that was reported
        self._thread = threading.Thread(target=self._run, name="venus-lease", daemon=True)

    def start(self, me: LiveBroker) -> None:
        """Register the broker and start the thread. Raises Refused if another living broker keeps this id."""
        self._me = me
        end = self._monotonic() + LEASES_WAITED * self._lease_s
        while not self._try_register(end):
            time.sleep(PAUSE_S)
        self._thread.start()

    def _try_register(self, end: float) -> bool:
        """Try to register this broker; False = another broker still has its id."""
        try:
            self._register()
        except Unavailable as error:
            self._on_failure(error)
        except Refused as error:
            if self._monotonic() >= end:
                raise
            logger.info("%s; if it is gone, its lease ends soon", error)
            return False
        return True

    def publish(self, me: LiveBroker) -> None:
        """Publish a changed description of this broker soon."""
        with self._ready:
            self._me = me
            self._ready.notify()

    def stop(self) -> None:
        """End the thread. The lease expires by itself."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Refresh the lease at intervals, or after a failure soon, until stopped."""
        pause_s = self._lease_s * REFRESH_PART
        while self._wait_for_refresh(pause_s):
            pause_s = self._lease_s * REFRESH_PART
            try:
                self._renew()
            except VenusError as error:
                self._on_failure(error)
                pause_s = PAUSE_S
            except Exception as error:
                logger.exception("the lease at the coordinator cannot be renewed")
                self._on_failure(error)

    def _wait_for_refresh(self, seconds: float) -> bool:
        """Wait until the next refresh, or until the description changes; False = stop."""
        end = self._monotonic() + seconds
        with self._ready:
            while not self._stopping and self._said in (None, self._me) and (left := end - self._monotonic()) > 0:
                self._ready.wait(left)
            return not self._stopping

    def _renew(self) -> None:
        """Refresh the lease; register again if the lease has ended or the description has changed."""
        asked_at = self._monotonic()
        if self._me == self._said:
            if self._coordinator.refresh():
                self._report_deadline(asked_at)
                return
            self._on_lease(NO_LEASE)
            logger.warning("the lease at the coordinator had ended; this broker registers again")
        self._register()

    def _register(self) -> None:
        """Register this broker's description under a fresh lease, and report the deadline."""
        me = self._me
        assert me is not None, "started"
        self._said = None
        asked_at = self._monotonic()
        self._coordinator.register(me)
        if self._coordinator.refresh():  # a key under an older lease ends with that lease
            self._report_deadline(asked_at)
        self._said = me

    def _report_deadline(self, asked_at: float) -> None:
        """Report the deadline of a refreshed lease, and the end of the old one if it was replaced."""
        if self._lease != self._coordinator.lease:
            self._lease = self._coordinator.lease
            self._on_lease(NO_LEASE)  # the old lease ended first: others may have started an election
        self._on_lease(asked_at + self._lease_s)


class CoordinatorListener(Protocol):
    """Receiver of the coordinator's answers: the host."""

    def on_topology(self, leaderships: tuple[Leadership, ...], brokers: tuple[LiveBroker, ...]) -> None:
        """Handle the newest leaderships and living brokers."""

    def on_lease(self, until: float) -> None:
        """Set the deadline of the lease; NO_LEASE = it has ended."""

    def on_swap_result(self, event: SwapResult) -> None:
        """Handle the result of a swap."""

    def on_forgotten_term(self, business: str, term: int) -> None:
        """Handle the term in which a business was forgotten; 0 = it was not forgotten."""


class CoordinatorThread:
    """Thread that calls the coordinator (a `Coordination`). `unreachable`: why calls fail; empty = they succeed.

    `invalid` names unusable records. `on_fatal` ends a process that another process has replaced.
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
        self._host: CoordinatorListener | None = None
        self._ready = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._wants_read = True
        self._stopping = False
        self._read_at = float("-inf")
        self.unreachable = ""
        self.invalid: tuple[str, ...] = ()
        self._lease = LeaseThread(
            coordinator, lease_s=lease_s, monotonic=monotonic, on_lease=self._on_lease, on_failure=self._on_failure
        )
        self._thread = threading.Thread(target=self._run, name="venus-coordinator", daemon=True)

    def start(self, host: CoordinatorListener, me: LiveBroker) -> None:
        """Register this broker and start the threads. Raises Refused if another broker has its id."""
        self._host = host
        self._lease.start(me)
        self._coordinator.watch(self.read_soon)
        self._thread.start()

    def stop(self, *, leave: bool = True) -> None:
        """End the threads; revoke the lease if `leave`."""
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
                logger.info("the lease expires by itself: %s", error)
        self._coordinator.close()

    def publish(self, me: LiveBroker) -> None:
        """Publish a changed description of this broker."""
        self._lease.publish(me)

    # -- calls of the host -----------------------------------------------------------------------------------------

    def read_soon(self) -> None:
        """Read leaderships and living brokers soon."""
        with self._ready:
            self._wants_read = True
            self._ready.notify()

    def swap(self, before: Leadership, after: Leadership) -> None:
        """Replace a record."""

        def swap_record() -> None:
            stored: Leadership | None = None
            certain = True
            try:
                stored = self._coordinator.swap(before, after)
            except VenusError as error:
                certain = False
                self._on_failure(error)
            event = SwapResult(before=before, after=after, stored=stored, certain=certain)
            self._notify(lambda host: host.on_swap_result(event))

        self._enqueue(swap_record)

    def save_newest_write(self, store: str, sequence: int) -> None:
        """Store the newest write of a store. A failure is harmless: the next call stores a newer one."""
        self._enqueue(lambda: self._coordinator.save_newest_write(store, sequence))

    def create(self, leadership: Leadership) -> None:
        """Store a new business, then read the records, whichever broker created it."""

        def create_record() -> None:
            try:
                self._coordinator.create(leadership)
            except VenusError as error:
                self._on_failure(error)
            self.read_soon()

        self._enqueue(create_record)

    def ask_forgotten(self, business: str) -> None:
        """Ask whether a business without a record was forgotten."""

        def read_forgotten_term() -> None:
            term = self._coordinator.last_forgotten_term(business)
            self._notify(lambda host: host.on_forgotten_term(business, term))

        self._enqueue(read_forgotten_term)

    # -- the thread --------------------------------------------------------------------------------------------

    def _enqueue(self, call: Callable[[], None]) -> None:
        """Queue a call for the thread."""
        with self._ready:
            self._calls.append(call)
            self._ready.notify()

    def _run(self) -> None:
        """Carry out one call of the coordinator after the other, until stopped."""
        while (call := self._next_call()) is not None:
            try:
                call()
            except VenusError as error:
                self._on_failure(error)
            except Exception as error:
                logger.exception("a call of the coordinator failed")
                self.unreachable = repr(error)

    def _next_call(self) -> Callable[[], None] | None:
        """Wait for the next call: queued ones first, else a read of all records when due. None = the thread ends."""
        with self._ready:
            while True:
                now = self._monotonic()
                if self._stopping:
                    return None
                if self._calls:
                    return self._calls.popleft()
                # without a hint as well: a watch may miss changes
                wake = self._read_at + (READ_EVERY_S if self._wants_read else self._read_at_least_s)
                if now >= wake:
                    self._wants_read, self._read_at = False, now
                    return self._read_records
                self._ready.wait(max(wake - now, 0.001))

    def _on_lease(self, until: float) -> None:
        """Pass the deadline of the lease to the host."""
        if self.unreachable and until != NO_LEASE:
            logger.info("the coordinator answers again")
            self.unreachable = ""
        self._notify(lambda host: host.on_lease(until))

    def _read_records(self) -> None:
        """Read leaderships and living brokers, and pass them to the host."""
        leaderships, brokers = self._coordinator.leaderships(), self._coordinator.brokers()
        self._record_invalid(self._coordinator.invalid)
        self._notify(lambda host: host.on_topology(leaderships, brokers))

    def _record_invalid(self, invalid: tuple[str, ...]) -> None:
        """Keep the problems of unusable records, and log new ones."""
        for line in set(invalid) - set(self.invalid):
            logger.error("the coordinator: %s", line)
        self.invalid = invalid

    def _notify(self, say: Callable[[CoordinatorListener], None]) -> None:
        """Run a call on the host, in the host's thread."""
        host = self._host
        if host is not None:
            self._post(lambda: say(host))

    def _on_failure(self, error: Exception) -> None:
        """Record why the coordinator does not answer; end the process if another one has replaced it."""
        if isinstance(error, Fenced):
            self._on_fatal(error)
        if not self.unreachable:
            logger.warning("the coordinator: %s", error)
        self.unreachable = str(error) or repr(error)
