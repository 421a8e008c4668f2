"""Order in which brokers are tried: the known leader first, then the others in turn, isolated ones last.

Brokers may form several sets, the nearest first. When no broker of the set in use answers, the next set is used. A
thread then probes the nearer sets, and returns to one after a minute of health (venus/network/directory.py).

Each broker has a circuit breaker (venus/flow/breaker.py). One failure to connect or one slow answer isolates it, for
all connections of the process. A leader that another broker has named is still asked: no other broker can serve the
businesses that it leads. A pause of this process itself isolates no broker (stopwatch.py), and neither does an answer
that says why the broker cannot serve.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from venus.flow.breaker import Breaker
from venus.network.directory import BACK_AFTER_S, LOOK_EVERY_S, Preference
from venus.rpc.address import ClientCredentials, DirectoryLookup, lookup_of, proof_of
from venus.rpc.directory import DirectoryFollower

logger = logging.getLogger(__name__)

#: Time until the first probe; the intervals of later probes double.
PROBE_EVERY_S = 2.0
PROBE_MAX_S = 30.0
#: Timeout of a probe, short because the caller could ask another broker instead.
PROBE_TIMEOUT_S = 0.2
#: An answer is slow if it took this many times the best of the others: if all are slow, this process is the cause.
SLOWER = 4.0
#: A set is lost when all of its brokers were lost within this time; a broker that was lost earlier is asked once more.
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
        #: Called after a broker was lost.
        self.on_loss: Callable[[], None] = lambda: None
        self._probe: Callable[[str], bool] | None = None
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sets = Preference(sets, back_after_s=back_after_s)
        self._firsts = dict.fromkeys(sets, 0)
        self._away: dict[str, float] = {}  # when each broker was lost, if it has not answered since
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
        """Begin a probe of an isolated broker if it is due, and return its timeout; None = connect normally."""
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
            whole = self._record_away(address, now)
        if len(self.addresses) > 1 and not known:  # a leader that is named is still asked, maybe often
            logger.warning("broker %s is isolated for %.0f s: %s", address, wait_s, reason or "it is away")
        if whole:
            self.record_lost_set(address)
        self.on_loss()

    def record_refusal(self, address: str) -> None:
        """Record that a broker answered that it cannot serve now: try the next one first, without isolating it.

        A set whose brokers were all lost or refused is no longer used.
        """
        self.try_last(address)
        with self._lock:
            whole = self._record_away(address, self._monotonic())
        if whole:
            self.record_lost_set(address)

    def record_unknown(self, address: str) -> None:
        """Record an unknown outcome: this process did not run while it waited for the answer."""
        self.try_last(address)
        with self._lock:
            if (breaker := self._breakers.get(address)) is not None:
                breaker.record_unknown(self._monotonic())

    def try_last(self, address: str) -> None:
        """Let another broker of the set be tried before this one, and forget which businesses this one leads."""
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

    @property
    def set_in_use(self) -> tuple[str, ...]:
        """The brokers of the set in use."""
        with self._lock:
            return self._sets.in_use

    def is_nearer_in_use(self, than: tuple[str, ...]) -> bool:
        """Return whether the set in use is nearer than `than`."""
        with self._lock:
            return any(set(one) & set(than) for one in self._sets.choices[len(self._sets.nearer()) + 1 :])

    def replace_sets(self, sets: Sequence[tuple[str, ...]]) -> None:
        """Replace the sets. The set in use stays in use if a new set has one of its brokers."""
        with self._lock:
            before = self._sets.in_use
            kept = next((one for one in sets if set(one) & set(before)), sets[0])
            if tuple(sets) != self._sets.choices:
                self.addresses = tuple(address for one in sets for address in one)
                self._firsts = {one: self._firsts.get(one, 0) for one in sets}
                self._sets.replace(sets, kept)
                if not set(kept) & set(before):
                    self._on_set_change(before)
            probe = self._probe
        if probe is not None:
            self.start_probing(probe)

    def record_lost_set(self, address: str) -> None:
        """Record that no broker of the set of `address` serves: use the next set."""
        with self._lock:
            one, before = self._set_of(address), self._sets.in_use
            if one:
                self._sets.record_failure(one)
            self._on_set_change(before)

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
            self._on_set_change(before)

    def start_probing(self, probe: Callable[[str], bool]) -> None:
        """Probe in a thread of its own until the nearest set is in use."""
        with self._lock:
            self._probe = probe
            if self._looking or not self._sets.nearer():
                return
            self._looking = True
        threading.Thread(target=self._probe_until_back, args=(probe,), name="venus-look", daemon=True).start()

    def _probe_until_back(self, probe: Callable[[str], bool]) -> None:
        """Probe the nearer sets until the nearest one is in use."""
        while True:
            self.probe_nearer(probe)
            with self._lock:
                if not self._sets.nearer():
                    self._looking = False
                    return
            time.sleep(LOOK_EVERY_S)

    def _on_set_change(self, before: tuple[str, ...]) -> None:
        """Forget the known leaders, and log the change, if the set in use is no longer `before`."""
        now = self._sets.in_use
        if now == before:
            return
        self._leaders.clear()
        logger.warning("the brokers %s are asked from now on, no longer %s", ", ".join(now), ", ".join(before))

    def _record_away(self, address: str, now: float) -> bool:
        """Record that a broker is away; return whether every broker of its set is."""
        self._away[address] = now
        return all(now - self._away.get(other, -AWAY_S) < AWAY_S for other in self._set_of(address))

    def _set_of(self, address: str) -> tuple[str, ...]:
        """Return the set of a broker, () if it is in none."""
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
        """Return whether a broker is isolated now."""
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.is_isolated(now)


_lock = threading.Lock()
_known: dict[str, BrokerSelector] = {}
_followed: dict[tuple[DirectoryLookup, ClientCredentials], DirectoryFollower[BrokerSelector]] = {}


def shared_selector(reach: str) -> BrokerSelector:
    """Return the shared state of the brokers at `reach`.

    `reach` is HOST:PORT, several of them separated by commas, or several such sets separated by semicolons, the nearest
    first. For an address with a lookup, the directory names them. Raises Unavailable if it has never answered.
    """
    if (lookup := lookup_of(reach)) is not None:
        with _lock:
            key = lookup, proof_of(reach)
            if key not in _followed:
                _followed[key] = DirectoryFollower(lookup, proof_of(reach), BrokerSelector)
        return _followed[key].selector()
    with _lock:
        if reach not in _known:
            _known[reach] = BrokerSelector(*(tuple(one.split(",")) for one in reach.split(";")))
        return _known[reach]
