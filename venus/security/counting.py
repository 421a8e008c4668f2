"""What was refused: calls without a role, and connections that never proved who they are."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

#: A connection that has made no call after this long is counted as refused; gRPC ends a handshake after 10 s.
SILENT_S = 15.0
#: Connections that have made a call: by then they are known. Older ones are forgotten first.
KNOWN_MAX = 4096
PENDING_MAX = 65536
#: The same refusal is written to the audit log once in this time, so that it cannot push everything else out.
REPEATED_S = 10.0


class Refusals:
    """Counters; thread-safe.

    TLS ends a connection without a valid certificate before anybody of ours sees it. What is seen is that a connection
    began; one that proved itself makes a call at once, as every client of VENUS does.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._pending: deque[float] = deque()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._calls = self._connections = 0

    def begun(self) -> None:
        """Note that a connection begins."""
        with self._lock:
            self._pending.append(self._monotonic())
            if len(self._pending) > PENDING_MAX:
                self._count_silent()
                while len(self._pending) > PENDING_MAX:
                    self._pending.popleft()
                    self._connections += 1

    def connected(self, peer: str) -> None:
        """Note that a connection makes a call."""
        with self._lock:
            if peer in self._known:
                return
            self._known[peer] = None
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            if self._pending:
                self._pending.popleft()

    def refused(self, name: str, what: str) -> bool:
        """Count a refused call; return whether it is to be written down."""
        now = self._monotonic()
        with self._lock:
            self._calls += 1
            again = now - self._told.get((name, what), float("-inf")) < REPEATED_S
            if not again:
                self._told[name, what] = now
                self._told.move_to_end((name, what))
                if len(self._told) > KNOWN_MAX:
                    self._told.popitem(last=False)
            return not again

    def counts(self) -> tuple[int, int]:
        """Return refused calls and refused connections since the start."""
        with self._lock:
            self._count_silent()
            return self._calls, self._connections

    def _count_silent(self) -> None:
        limit = self._monotonic() - SILENT_S
        while self._pending and self._pending[0] < limit:
            self._pending.popleft()
            self._connections += 1
