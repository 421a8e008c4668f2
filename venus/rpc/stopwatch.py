"""How long a peer took, without the time in which this process itself stood still (venus/flow/breaker.py).

A thread beats while somebody measures, and a moment longer, because most of those who measure do so all the time. What
is measured all day beats slowly: each beat wakes an idle process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from venus.flow.breaker import Stalls

BEAT_S = 0.05
#: The thread ends when nobody has begun to measure for so long; no connecting takes longer (channel.CONNECT_TIMEOUT_S).
LINGER_S = 10.0
#: For what is judged by whole seconds: a time may count as much longer than it was as a beat is apart.
COARSE_BEAT_S = 1.0
COARSE_LINGER_S = 60.0


class Pacemaker:
    """The thread; it is started at the first use, and once more in a process that was forked."""

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

    def want(self) -> None:
        """Beat from now on."""
        with self._lock:
            self._wanted_at = self.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._stalls.rest()
                self._stalls.beat(self._wanted_at)
                self._thread = threading.Thread(target=self._run, name="venus-beat", daemon=True)
                self._thread.start()

    def missing_s(self, since: float, now: float) -> float:
        """Return how much of a time this process did not run."""
        with self._lock:
            return self._stalls.missing_s(since, now)

    def _run(self) -> None:
        while True:
            time.sleep(self._every_s)
            with self._lock:
                now = self.monotonic()
                self._stalls.beat(now)
                if now - self._wanted_at > self._linger_s:
                    self._stalls.rest()
                    self._thread = None
                    return


_pacemaker = Pacemaker()
_coarse_pacemaker = Pacemaker(every_s=COARSE_BEAT_S, linger_s=COARSE_LINGER_S)


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self, pacemaker: Pacemaker | None = None) -> None:
        self._pacemaker = pacemaker or _pacemaker
        self._pacemaker.want()
        self._began = self._pacemaker.monotonic()

    @classmethod
    def coarse(cls) -> Self:
        """Begin to measure what matters from a few seconds on; of a stall up to COARSE_BEAT_S is not seen."""
        return cls(_coarse_pacemaker)

    def awake_s(self) -> float:
        """Return the seconds since then in which this process ran: what a peer can be blamed for."""
        now = self._pacemaker.monotonic()
        return max(0.0, now - self._began - self._pacemaker.missing_s(self._began, now))

    def missed_s(self) -> float:
        """Return the seconds since then in which it did not."""
        return self._pacemaker.missing_s(self._began, self._pacemaker.monotonic())
