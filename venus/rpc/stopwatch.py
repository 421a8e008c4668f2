"""Stopwatch for the latency of a peer, without the time in which this process did not run (venus/flow/breaker.py).

A thread beats while a stopwatch is in use, and a moment longer, because most callers measure repeatedly. Continuous
measurements use slow beats, because each beat wakes an idle process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from venus.flow.breaker import Stalls

BEAT_S = 0.05
#: The thread ends this long after the last stopwatch started; connecting takes less (channel.CONNECT_TIMEOUT_S).
LINGER_S = 10.0
#: For measurements in whole seconds: a result may be too long by up to one beat.
COARSE_BEAT_S = 1.0
COARSE_LINGER_S = 60.0


class Pacemaker:
    """Thread whose beats record that this process runs. Starts at the first use, and again in a forked process."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        every_s: float = BEAT_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self.monotonic = monotonic
        self._stalls = Stalls(every_s)
        self._every_s = every_s
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._wanted_at = 0.0
        self._thread: threading.Thread | None = None

    def keep_beating(self) -> None:
        """Start the thread, or let it beat longer."""
        with self._lock:
            self._wanted_at = self.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._stalls.pause()
                self._stalls.record_beat(self._wanted_at)
                self._thread = threading.Thread(target=self._run, name="venus-beat", daemon=True)
                self._thread.start()

    def missing_s(self, since: float, now: float) -> float:
        """Return how long this process did not run between two times."""
        with self._lock:
            return self._stalls.missing_s(since, now)

    def _run(self) -> None:
        """Beat until no stopwatch has asked for it for a while."""
        while True:
            time.sleep(self._every_s)
            with self._lock:
                now = self.monotonic()
                self._stalls.record_beat(now)
                if now - self._wanted_at > self._linger_s:
                    self._stalls.pause()
                    self._thread = None
                    return


_pacemaker = Pacemaker()
_coarse_pacemaker = Pacemaker(every_s=COARSE_BEAT_S, linger_s=COARSE_LINGER_S)


class Stopwatch:
    """Stopwatch that starts when it is created."""

    def __init__(self, pacemaker: Pacemaker | None = None) -> None:
        self._pacemaker = pacemaker or _pacemaker
        self._pacemaker.keep_beating()
        self._began = self._pacemaker.monotonic()

    @classmethod
    def coarse(cls) -> Self:
        """Start a stopwatch for times of several seconds; stalls shorter than COARSE_BEAT_S may go unnoticed."""
        return cls(_coarse_pacemaker)

    def awake_s(self) -> float:
        """Return the seconds since the start in which this process ran: the latency of a peer."""
        now = self._pacemaker.monotonic()
        return max(0.0, now - self._began - self._pacemaker.missing_s(self._began, now))

    def missed_s(self) -> float:
        """Return the seconds since the start in which this process did not run."""
        return self._pacemaker.missing_s(self._began, self._pacemaker.monotonic())
