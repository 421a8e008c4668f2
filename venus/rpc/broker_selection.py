"""Order in which brokers are tried: the known leader first, then the others in turn, isolated ones last.

Brokers may form several sets, the nearest first. When no broker of the set in use answers, the next set is used. A
thread probes the nearer sets meanwhile, and one is used again after a minute of health (venus/network/directory.py).

Each broker has a circuit breaker (venus/flow/breaker.py). One failure to connect or one slow answer isolates it, for
all connections of the process. A leader that another broker has named is asked even so: there is no alternative for
what it leads. An answer that says why the broker cannot serve isolates no broker.

Nor does time in which this process itself did not run: a `Stopwatch` measures the latency of a peer without it. A
thread beats while a stopwatch is in use, and a moment longer, because most callers measure repeatedly. Continuous
measurements use slow beats, because each beat wakes an idle process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Self

from venus.flow.breaker import Breaker, Stalls
from venus.network.directory import BACK_AFTER_S, LOOK_EVERY_S, Preference

BEAT_S = 0.05
#: The thread ends this long after the last stopwatch started; connecting takes less (channel.CONNECT_TIMEOUT_S).
LINGER_S = 10.0
#: For measurements in whole seconds: a result may be too long by up to one beat.
COARSE_BEAT_S = 1.0
COARSE_LINGER_S = 60.0


class Pacemaker:
    """Thread that beats; it starts at the first use, and again in a forked process."""

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
        """Start or prolong the beats."""
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


logger = logging.getLogger(__name__)

#: A first probe after this time, later ones at doubling intervals.
PROBE_EVERY_S = 2.0
PROBE_MAX_S = 30.0
#: Timeout of a probe: meanwhile the caller could have asked another broker.
PROBE_TIMEOUT_S = 0.2
#: An answer is slow if it took this many times the best of the others: if all are slow, this process is the cause.
SLOWER = 4.0
#: A set is lost when all of its brokers were lost within this time; one that was lost earlier is asked once more.
AWAY_S = 10.0


class BrokerSelector:
    """State of the brokers of one cluster or several sets; shared by all connections of the process."""

    def __init__(
        self,
        *sets: tuple[str, ...],
        monotonic: Callable[[], float] = time.monotonic,
        back_after_s: float = BACK_AFTER_S,
    ) -> None:
        self.addresses = tuple(address for one in sets for address in one)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sets = Preference(sets, back_after_s=back_after_s)
        self._firsts = dict.fromkeys(sets, 0)
        self._away: dict[str, float] = {}  # when each broker was lost that has not answered since
        self._leaders: dict[str, str] = {}  # by business
        self._breakers: dict[str, Breaker] = {}
        self._latencies: dict[str, float] = {}  # of the newest answer of each
        self._looking = False

    def in_order(self, business: str, refused: str = "") -> list[str]:
        """Return every address once, the most promising first.

        `refused` has just answered that it does not lead, so it comes last: an isolated broker may lead.
        """
        with self._lock:
            leader = self._leaders.get(business)
            now = self._monotonic()
            rest: list[str] = []
            for one in self._sets.in_order():
                turned = one[self._firsts[one] :] + one[: self._firsts[one]]
                rest += sorted(turned, key=lambda address: (address == refused, self._is_isolated(address, now)))
            return list(dict.fromkeys([leader, *rest] if leader else rest))

    def patience_s(self, address: str) -> float | None:
        """Return the timeout of a probe, or None if the broker is used normally."""
        with self._lock:
            breaker = self._breakers.get(address)
            probe = breaker is not None and breaker.start_probe(self._monotonic())
            return PROBE_TIMEOUT_S if probe else None

    def record_leader(self, business: str, address: str) -> None:
        """Record the leader of a business; "" means not known."""
        with self._lock:
            self._leaders.pop(business, None)
            if address:
                self._leaders[business] = address

    def record_success(self, address: str, latency_s: float) -> None:
        """Record that a broker serves, and its latency while this process ran."""
        with self._lock:
            others = [latency for other, latency in self._latencies.items() if other != address]
            self._latencies[address] = latency_s
            self._away.pop(address, None)
            breaker = self._breaker(address)
            slow = not others or latency_s >= SLOWER * min(others)
            breaker.record_success(latency_s if slow else 0.0, self._monotonic())
            reason = breaker.reason
        if reason and len(self.addresses) > 1:
            logger.warning("broker %s is isolated for a while: it %s", address, reason)

    def record_lost(self, address: str, reason: str = "") -> None:
        """Record that a broker does not answer: isolate it, even if it is the known leader."""
        self.try_last(address)
        with self._lock:
            now = self._monotonic()
            known = self._is_isolated(address, now)
            wait_s = self._breaker(address).record_failure(now, reason)
            whole = self._is_whole_set_away(address, now)
        if len(self.addresses) > 1 and not known:  # a leader that is named is asked all the same, maybe often
            logger.warning("broker %s is isolated for %.0f s: %s", address, wait_s, reason or "it is away")
        if whole:
            self.record_lost_set(address)

    def record_refusal(self, address: str) -> None:
        """Record that a broker answered that it cannot serve now: try the next one first, without isolating it.

        A set whose brokers were all lost or refused is no longer used.
        """
        self.try_last(address)
        with self._lock:
            whole = self._is_whole_set_away(address, self._monotonic())
        if whole:
            self.record_lost_set(address)

    def record_unknown(self, address: str) -> None:
        """Record an unknown outcome: this process did not run while it waited for the answer."""
        self.try_last(address)
        with self._lock:
            if (breaker := self._breakers.get(address)) is not None:
                breaker.record_unknown(self._monotonic())

    def try_last(self, address: str) -> None:
        """Try the broker after this one first, and forget what this one leads."""
        with self._lock:
            self._leaders = {business: leader for business, leader in self._leaders.items() if leader != address}
            one = self._set_of(address)
            if one and one[self._firsts[one]] == address:
                self._firsts[one] = (self._firsts[one] + 1) % len(one)

    # -- several sets ----------------------------------------------------------------------------------------------

    @property
    def place(self) -> int:
        """How many sets are nearer than the one in use."""
        with self._lock:
            return len(self._sets.nearer())

    def record_lost_set(self, address: str) -> None:
        """Record that no broker of the set of `address` serves: use the next set."""
        with self._lock:
            one, before = self._set_of(address), self._sets.in_use
            if one:
                self._sets.record_failure(one)
            self._log_set_change(before)

    def has_other_set(self, addresses: Collection[str]) -> bool:
        """Return whether there is a set without any of these brokers."""
        return any(not set(one) & set(addresses) for one in self._sets.choices)

    def probe_nearer(self, probe: Callable[[str], bool]) -> None:
        """Probe the nearer sets that are due, and return to one that has been healthy for long enough.

        `probe` returns whether a broker serves.
        """
        with self._lock:
            due = self._sets.take_due(self._monotonic())
        for one in due:
            healthy = any(probe(address) for address in one)
            with self._lock:
                self._sets.record_check(one, self._monotonic(), healthy=healthy)
        with self._lock:
            before = self._sets.in_use
            self._sets.move_back(self._monotonic())
            self._log_set_change(before)

    def start_probing(self, probe: Callable[[str], bool]) -> None:
        """Probe in a thread of its own until the nearest set is in use."""
        with self._lock:
            if self._looking or not self._sets.nearer():
                return
            self._looking = True
        threading.Thread(target=self._probe_until_back, args=(probe,), name="venus-look", daemon=True).start()

    def _probe_until_back(self, probe: Callable[[str], bool]) -> None:
        while True:
            self.probe_nearer(probe)
            with self._lock:
                if not self._sets.nearer():
                    self._looking = False
                    return
            time.sleep(LOOK_EVERY_S)

    def _log_set_change(self, before: tuple[str, ...]) -> None:
        """Forget the leaders when another set has come into use."""
        now = self._sets.in_use
        if now == before:
            return
        self._leaders.clear()
        logger.warning("the brokers %s are asked from now on, no longer %s", ", ".join(now), ", ".join(before))

    def _is_whole_set_away(self, address: str, now: float) -> bool:
        """Record that a broker is away; return whether its whole set is."""
        self._away[address] = now
        return all(now - self._away.get(other, -AWAY_S) < AWAY_S for other in self._set_of(address))

    def _set_of(self, address: str) -> tuple[str, ...]:
        return next((one for one in self._sets.choices if address in one), ())

    # -- one broker ------------------------------------------------------------------------------------------------

    def isolated_brokers(self) -> dict[str, str]:
        """Return the isolated brokers, each with the reason."""
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
_known: dict[str, BrokerSelector] = {}


def shared_selector(reach: str) -> BrokerSelector:
    """Return the shared state of the brokers at `reach`.

    That is HOST:PORT, or several with commas between, or several sets of these with semicolons, the nearest first.
    """
    with _lock:
        if reach not in _known:
            _known[reach] = BrokerSelector(*(tuple(one.split(",")) for one in reach.split(";")))
        return _known[reach]
