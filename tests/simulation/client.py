"""A broker's calls to the coordinator: each lane has one call at a time, each call a time limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.coordinator import SimulatedCoordinator
from tests.simulation.loop import Loop
from tests.simulation.network import GOOD_CALLS, BadCalls, Network

TIMEOUT_S = 1.0

Work = Callable[[], Any]
#: Callback with the result, whether an answer came (False = the call may still have been executed), and its time.
Done = Callable[[Any, bool, float], None]


class Lane:
    """Sequential calls to the coordinator. A late answer is dropped, although the call has been executed."""

    def __init__(self, name: str, kind: str, loop: Loop, network: Network, coordinator: SimulatedCoordinator) -> None:
        self.name, self.kind = name, kind
        self._loop, self._network, self._coordinator = loop, network, coordinator
        self._waiting: deque[tuple[Work, Done, str]] = deque()
        self._number = 0
        self._sent_at = 0.0
        self._open = True

    def close(self) -> None:
        """Drop all later answers, because the process has ended."""
        self._open = False

    def __len__(self) -> int:
        return len(self._waiting)

    def call(self, work: Work, done: Done, kind: str = "") -> None:
        """Call `work` at the coordinator; the network may treat each kind of call differently."""
        self._waiting.append((work, done, kind or self.kind))
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        """Send the first waiting call, which may be lost."""
        self._number += 1
        self._sent_at = self._loop.now
        work, _, kind = self._waiting[0]
        bad = self._network.bad_calls.get((self.name, kind), GOOD_CALLS)
        if self._network.passes(self.name, "@") and not self._happens(bad.lost):
            self._loop.after(self._network.coordinator_delay(), self._serve, self._number, work, bad)
        self._loop.after(TIMEOUT_S, self._end, self._number, None, False)

    def _happens(self, of: float) -> bool:
        """Return True with this probability."""
        return of > 0 and self._loop.random.random() < of

    def _serve(self, number: int, work: Work, bad: BadCalls) -> None:
        """Execute a call at the coordinator, and send its answer."""
        if self._coordinator.away:
            return
        result = work()
        if self._network.passes("@", self.name) and not self._happens(bad.unheard):
            delay = self._network.coordinator_delay() + bad.late_s * self._loop.random.random()
            self._loop.after(delay, self._end, number, result, True)

    def _end(self, number: int, result: Any, answered: bool) -> None:
        """Pass the answer, or the end of the time limit, to the caller; begin the next call."""
        if number != self._number or not self._open or not self._waiting:
            return
        _, done, _ = self._waiting.popleft()
        sent_at = self._sent_at
        self._number += 1
        if self._waiting:
            self._begin()
        done(result, answered, sent_at)
