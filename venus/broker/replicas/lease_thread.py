"""The lease of this broker at the coordinator, refreshed in a thread that does nothing else.

Whatever else is busy or waits for the coordinator (the event loop, a swap that nobody answers, a long read), the lease
goes on: it ends only with the process, or when the coordinator cannot be reached.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from venus.errors import Refused, Unavailable, VenusError
from venus.replication.coordinator import Coordinator
from venus.replication.messages import NO_LEASE
from venus.replication.records import LiveBroker

logger = logging.getLogger(__name__)

#: A lease is refreshed each third of it.
REFRESH_PART = 1 / 3
#: After an error.
PAUSE_S = 0.2
#: A broker that comes back with an empty disk finds the lease of the one that it was; etcd ends leases a little late.
LEASES_WAITED = 2


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
