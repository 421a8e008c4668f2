"""Placement of businesses on the brokers of a set (Minos 3.4.2, corrected). Pure.

The owner by rendezvous hashing gets a business, unless its load rate would exceed 1.25 times the mean; then the best of
it and a few others. Load reports are old when they are used. So placements since then count at the average cost of a
business; otherwise every placement between two reports would go to the broker that was idle at the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import xxhash

#: Above this a resource is critical, and a broker's load rate is raised (rho and gamma of the paper).
CRITICAL = 0.8
BACK_OFF = 2.0
#: The owner keeps a business while its load rate is at most this multiple of the mean.
ABOVE_MEAN = 1.25
#: Number of others to compare when the owner is overloaded. Comparing all is better only if every placement is known at
#: once: otherwise schedulers that do not see each other's choices all pick the same broker.
CHOICES = 2
ALL = 1 << 30
#: A report this old is ignored: such a broker counts as one of average load.
STALE_S = 60.0
#: Assumed cost of a business without reports: this many of them fill a broker.
DEMAND = 1 / 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Used share of each resource of a broker: 0 = idle, 1 = all of it."""

    memory: float = 0.0
    cpu: float = 0.0
    disk: float = 0.0
    network: float = 0.0

    @property
    def used(self) -> float:
        """The weighted mean of all four, 0 to 1, with the paper's weights."""
        m, c, d, n = (min(1.0, max(0.0, one)) for one in (self.memory, self.cpu, self.disk, self.network))
        return 0.1 * m + 0.1 * c + 0.5 * d + 0.3 * n

    @property
    def critical(self) -> tuple[str, ...]:
        """The resources at their limit: a broker with one gets nothing new, however idle the others are."""
        return tuple(name for name in ("memory", "cpu", "disk", "network") if getattr(self, name) >= CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoadReport:
    """Load report of a broker. `businesses` is the number that makes up its load, `at` the time of arrival.

    A broker numbers its reports: a number received again is not a new report.
    """

    load: Load
    businesses: int
    at: float
    number: int = 0


def load_rate(used: float) -> float:
    """Return the load rate of a broker: the used share, above the critical point plus half of the rest."""
    used = min(1.0, max(0.0, used))
    return used + (1 - used) / BACK_OFF if used > CRITICAL else used


def rank_brokers(business: str, brokers: Iterable[str]) -> list[str]:
    """Return the brokers in the order of a business by rendezvous hashing: its owner first."""
    return sorted(brokers, key=lambda name: (xxhash.xxh3_64_intdigest(f"{business}/{name}".encode()), name))


@dataclass(slots=True)
class Scheduler:
    """Chooses brokers for businesses. Times are seconds of any clock, the same for all calls."""

    choices: int = CHOICES
    _reports: dict[str, BrokerLoadReport] = field(default_factory=dict, init=False)
    #: Known placements at each broker, with their times.
    _placed: dict[str, dict[str, float]] = field(default_factory=dict, init=False)
    _demand: float = field(default=DEMAND, init=False)

    def record_report(self, broker: str, report: BrokerLoadReport) -> None:
        """Record a load report; it includes earlier placements."""
        known = self._reports.get(broker)
        if known is None or report.number != known.number:
            self._reports[broker] = report
            placed = self._placed.get(broker, {})
            self._placed[broker] = {business: at for business, at in placed.items() if at > report.at}

    def record_placement(self, business: str, broker: str, at: float) -> None:
        """Count a placement of this scheduler or of another one; repeated calls count once."""
        self._placed.setdefault(broker, {}).setdefault(business, at)

    def keep_only(self, living: Collection[str]) -> None:
        """Remove brokers that are gone."""
        for known in (self._reports, self._placed):
            for name in known.keys() - set(living):
                del known[name]

    def choose(self, business: str, brokers: Collection[str], now: float) -> str:
        """Return the broker that gets a business; its placement is counted. `brokers` must not be empty."""
        chosen = self.rank(business, brokers, now)[0]
        self.record_placement(business, chosen, now)
        return chosen

    def rank(self, business: str, brokers: Collection[str], now: float) -> list[str]:
        """Return brokers, the best one for a business first; those at a limit are last. Nothing is counted.

        Without any report, this is the order of rendezvous hashing.
        """
        if not any(name in self._reports for name in brokers):
            return rank_brokers(business, brokers)
        rates = self.expected_rates(brokers, now)
        critical = {name for name in brokers if (found := self._fresh_report(name, now)) and found.load.critical}
        ranked = rank_brokers(business, brokers)
        free = [name for name in ranked if name not in critical]
        if free:
            after = rates[free[0]] + self._demand
            mean = (sum(rates.values()) + self._demand) / len(rates)
            best = min(free[: 1 + self.choices], key=lambda name: rates[name]) if after > ABOVE_MEAN * mean else free[0]
            free = [best, *(name for name in free if name != best)]
        return free + sorted((name for name in ranked if name in critical), key=lambda name: rates[name])

    def expected_rates(self, brokers: Collection[str], now: float) -> Mapping[str, float]:
        """Return each broker's expected load rate: its report, plus the placements since."""
        fresh = {name: found for name in brokers if (found := self._fresh_report(name, now)) is not None}
        usual = sum(found.load.used for found in fresh.values()) / len(fresh) if fresh else 0.0
        demand = self._demand = _average_cost(fresh.values())
        return {
            name: load_rate(
                (fresh[name].load.used if name in fresh else usual) + demand * len(self._placed.get(name, ()))
            )
            for name in brokers
        }

    def _fresh_report(self, broker: str, now: float) -> BrokerLoadReport | None:
        found = self._reports.get(broker)
        return found if found is not None and now - found.at <= STALE_S else None


def _average_cost(reports: Iterable[BrokerLoadReport]) -> float:
    """Return the average cost of a business by the reports."""
    found = [one for one in reports if one.businesses > 0]
    businesses = sum(one.businesses for one in found)
    cost = sum(one.load.used for one in found) / businesses if businesses else 0.0
    return cost or DEMAND
