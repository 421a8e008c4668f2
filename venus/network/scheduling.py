"""Which broker of a set gets a business (Minos 3.4.2, corrected). Pure.

The owner by rendezvous hashing, unless its load rate would be above 1.25 times the mean; then the best of it and a few
others. Reports of load are old when they are read: what was placed since is counted, at what a business costs on
average, so that not everything that comes between two reports goes to the broker that was idle at the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import xxhash

#: From here on a resource is critical, and a broker's load rate is raised (rho and gamma of the paper).
CRITICAL = 0.8
BACK_OFF = 2.0
#: The owner keeps a business while its load rate is at most so many times the mean.
ABOVE_MEAN = 1.25
#: So many others are compared when the owner has too much. Comparing all is better only where every placement is known
#: at once: otherwise schedulers that do not see each other's choices herd to the same broker.
CHOICES = 2
ALL = 1 << 30
#: A report this old says nothing: such a broker counts as one of average load.
STALE_S = 60.0
#: What a business costs where no report says so: so many of them fill a broker.
DEMAND = 1 / 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is used of each resource, over the broker's own capacity: 0 = idle, 1 = all of it."""

    memory: float = 0.0
    cpu: float = 0.0
    disk: float = 0.0
    network: float = 0.0

    @property
    def used(self) -> float:
        """All four in one number, 0 to 1, with the paper's weights."""
        m, c, d, n = (min(1.0, max(0.0, one)) for one in (self.memory, self.cpu, self.disk, self.network))
        return 0.1 * m + 0.1 * c + 0.5 * d + 0.3 * n

    @property
    def critical(self) -> tuple[str, ...]:
        """The resources at their limit: whoever has one gets nothing new, however idle the others are."""
        return tuple(name for name in ("memory", "cpu", "disk", "network") if getattr(self, name) >= CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a broker said of itself. `businesses` are those that make up its load, `at` is when it was heard first.

    A broker numbers what it says: the same number heard again is not news.
    """

    load: Load
    businesses: int
    at: float
    number: int = 0


def load_rate(used: float) -> float:
    """Return the load rate of a broker: what is used, and from the critical point on half of what is left besides."""
    used = min(1.0, max(0.0, used))
    return used + (1 - used) / BACK_OFF if used > CRITICAL else used


def by_rank(business: str, brokers: Iterable[str]) -> list[str]:
    """Return brokers in an order that is a business's own (rendezvous hashing): its owner first."""
    return sorted(brokers, key=lambda name: (xxhash.xxh3_64_intdigest(f"{business}/{name}".encode()), name))


@dataclass(slots=True)
class Scheduler:
    """Chooses brokers for businesses. Times are seconds of any clock, the same for all calls."""

    choices: int = CHOICES
    _reports: dict[str, Report] = field(default_factory=dict, init=False)
    #: What was placed at each, and when, as far as it is known here.
    _placed: dict[str, dict[str, float]] = field(default_factory=dict, init=False)
    _demand: float = field(default=DEMAND, init=False)

    def report(self, broker: str, report: Report) -> None:
        """Take what a broker says of itself; what was placed there before is in it."""
        known = self._reports.get(broker)
        if known is None or report.number != known.number:
            self._reports[broker] = report
            placed = self._placed.get(broker, {})
            self._placed[broker] = {business: at for business, at in placed.items() if at > report.at}

    def placed(self, business: str, broker: str, at: float) -> None:
        """Count a business that was placed by this scheduler, or of which it has learned; once, however often told."""
        self._placed.setdefault(broker, {}).setdefault(business, at)

    def forget(self, living: Collection[str]) -> None:
        """Forget brokers that are gone."""
        for known in (self._reports, self._placed):
            for name in known.keys() - set(living):
                del known[name]

    def choose(self, business: str, brokers: Collection[str], now: float) -> str:
        """Return the broker that gets a business; it is counted as placed there. `brokers` must not be empty."""
        chosen = self.order(business, brokers, now)[0]
        self.placed(business, chosen, now)
        return chosen

    def order(self, business: str, brokers: Collection[str], now: float) -> list[str]:
        """Return brokers, the best one for a business first; those at a limit are last. Nothing is counted.

        As long as no broker has said anything, that is the business's own order.
        """
        if not any(name in self._reports for name in brokers):
            return by_rank(business, brokers)
        rates = self.rates(brokers, now)
        critical = {name for name in brokers if (found := self._fresh(name, now)) and found.load.critical}
        ranked = by_rank(business, brokers)
        free = [name for name in ranked if name not in critical]
        if free:
            after = rates[free[0]] + self._demand
            mean = (sum(rates.values()) + self._demand) / len(rates)
            best = min(free[: 1 + self.choices], key=lambda name: rates[name]) if after > ABOVE_MEAN * mean else free[0]
            free = [best, *(name for name in free if name != best)]
        return free + sorted((name for name in ranked if name in critical), key=lambda name: rates[name])

    def rates(self, brokers: Collection[str], now: float) -> Mapping[str, float]:
        """Return each broker's load rate as it is expected now: what it said, and what was placed there since."""
        fresh = {name: found for name in brokers if (found := self._fresh(name, now)) is not None}
        usual = sum(found.load.used for found in fresh.values()) / len(fresh) if fresh else 0.0
        demand = self._demand = _demand(fresh.values())
        return {
            name: load_rate(
                (fresh[name].load.used if name in fresh else usual) + demand * len(self._placed.get(name, ()))
            )
            for name in brokers
        }

    def _fresh(self, broker: str, now: float) -> Report | None:
        found = self._reports.get(broker)
        return found if found is not None and now - found.at <= STALE_S else None


def _demand(reports: Iterable[Report]) -> float:
    """Return what a business costs on average, as far as reports say."""
    found = [one for one in reports if one.businesses > 0]
    businesses = sum(one.businesses for one in found)
    cost = sum(one.load.used for one in found) / businesses if businesses else 0.0
    return cost or DEMAND
