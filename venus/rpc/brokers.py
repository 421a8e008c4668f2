"""Which broker to ask first: the leader that was told, then the others in turn; whoever is isolated comes last.

Each broker has a circuit breaker (venus/flow/breaker.py). One failure to connect isolates it, because there are others
to ask, and so does an answer that takes too long; both for all connections of the process, at once. A leader that
another broker has named is asked all the same: for what it leads there is no choice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from venus.flow.breaker import Breaker

logger = logging.getLogger(__name__)

#: A first probe after this time, later ones at doubling intervals.
PROBE_EVERY_S = 2.0
PROBE_MAX_S = 30.0
#: How long whoever makes the probe waits for it: meanwhile he could have asked somebody else.
PROBE_TIMEOUT_S = 0.2
#: So much slower than the best of the others must an answer be: if all of them are slow, it is us.
SLOWER = 4.0


class Brokers:
    """The brokers of one cluster as this process knows them; shared by all of its connections."""

    def __init__(self, addresses: tuple[str, ...], monotonic: Callable[[], float] = time.monotonic) -> None:
        self.addresses = addresses
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._first = 0
        self._leaders: dict[str, str] = {}  # by business
        self._breakers: dict[str, Breaker] = {}
        self._latencies: dict[str, float] = {}  # of the newest answer of each

    def in_order(self, business: str, refused: str = "") -> list[str]:
        """Return every address once, the most promising one first.

        `refused` has just said that it does not lead: it comes after the isolated ones, one of which may.
        """
        with self._lock:
            leader = self._leaders.get(business)
            rest = self.addresses[self._first :] + self.addresses[: self._first]
            now = self._monotonic()
            rest = tuple(sorted(rest, key=lambda address: (address == refused, self._is_isolated(address, now))))
            return list(dict.fromkeys((leader, *rest) if leader else rest))

    def patience_s(self, address: str) -> float | None:
        """Return how long to wait for a broker that is asked as a probe; None = it is asked like any other."""
        with self._lock:
            breaker = self._breakers.get(address)
            probe = breaker is not None and breaker.probe(self._monotonic())
            return PROBE_TIMEOUT_S if probe else None

    def leads(self, business: str, address: str) -> None:
        """Note who leads a business; "" = nobody knows."""
        with self._lock:
            self._leaders.pop(business, None)
            if address:
                self._leaders[business] = address

    def answered(self, address: str, latency_s: float) -> None:
        """Note that this broker serves, and how long it took to say so."""
        with self._lock:
            others = [latency for other, latency in self._latencies.items() if other != address]
            self._latencies[address] = latency_s
            breaker = self._breaker(address)
            slow = not others or latency_s >= SLOWER * min(others)
            breaker.worked(latency_s if slow else 0.0, self._monotonic())
            reason = breaker.reason
        if reason and len(self.addresses) > 1:
            logger.warning("broker %s is left alone for a while: it %s", address, reason)

    def lost(self, address: str, reason: str = "") -> None:
        """Note that this broker does not answer: nobody asks it while there is another, whatever it leads."""
        self.passed_over(address)
        with self._lock:
            now = self._monotonic()
            known = self._is_isolated(address, now)
            wait_s = self._breaker(address).failed(now, reason)
        if len(self.addresses) > 1 and not known:  # a leader that is named is asked all the same, maybe often
            logger.warning("broker %s is left alone for %.0f s: %s", address, wait_s, reason or "it is away")

    def passed_over(self, address: str) -> None:
        """Note that this broker cannot serve: the next one is asked first."""
        with self._lock:
            self._leaders = {business: leader for business, leader in self._leaders.items() if leader != address}
            if self.addresses[self._first] == address:
                self._first = (self._first + 1) % len(self.addresses)

    def isolated(self) -> dict[str, str]:
        """Return who is isolated now, and why."""
        with self._lock:
            now = self._monotonic()
            return {address: breaker.reason for address, breaker in self._breakers.items() if breaker.is_isolated(now)}

    def _breaker(self, address: str) -> Breaker:
        found = self._breakers.get(address)
        if found is None:
            found = self._breakers[address] = Breaker(errors_max=1, wait_first_s=PROBE_EVERY_S, wait_max_s=PROBE_MAX_S)
        return found

    def _is_isolated(self, address: str, now: float) -> bool:
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.is_isolated(now)


_lock = threading.Lock()
_known: dict[str, Brokers] = {}


def known(reach: str) -> Brokers:
    """Return what this process knows of the brokers at `reach`: HOST:PORT, or several with commas between."""
    with _lock:
        if reach not in _known:
            _known[reach] = Brokers(tuple(reach.split(",")))
        return _known[reach]
