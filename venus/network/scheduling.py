"""Load of brokers, and what it means for placing businesses (Minos 3.4.2, corrected). Pure.

The paper compares load rates alone. They are old when they are used, so every placement between two reports would go
to the broker that was idle at the last one. Here the number of businesses decides, which all brokers read in the same
records. A load far above the others' takes precedence over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import xxhash

#: Above this a resource is critical, and a broker's load rate is raised (rho and gamma of the paper).
CRITICAL = 0.8
BACK_OFF = 2.0
#: A resource counts as critical only if another broker uses this much less of it.
ROOM = 0.1
#: A broker with a load rate above this multiple of the mean gets nothing new ...
ABOVE_MEAN = 1.25
#: ... unless its load rate is below this: then load is no reason to prefer one broker.
BUSY = 0.5
#: Resources that a broker must not run out of; a lack of CPU only slows it down.
LIMITED = ("memory", "disk", "network")


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


def load_rate(used: float) -> float:
    """Return the load rate of a broker: the used share. Above CRITICAL, half of the unused share is added."""
    used = min(1.0, max(0.0, used))
    return used + (1 - used) / BACK_OFF if used > CRITICAL else used


def rank_brokers(business: str, brokers: Iterable[str]) -> list[str]:
    """Return the brokers in the order of a business by rendezvous hashing: its owner first."""
    return sorted(brokers, key=lambda name: (xxhash.xxh3_64_intdigest(f"{business}/{name}".encode()), name))


def grade_loads(loads: Mapping[str, Load | None]) -> dict[str, int]:
    """Return for each broker 0 = it has room, 1 = it is far above the mean, 2 = a resource is at its limit.

    A broker without a report counts as one of average load.
    """
    known = {name: load for name, load in loads.items() if load is not None}
    rates = {name: load_rate(load.used) for name, load in known.items()}
    limit = max(BUSY, ABOVE_MEAN * sum(rates.values()) / len(rates)) if rates else 1.0
    least = {part: min(getattr(load, part) for load in known.values()) for part in LIMITED} if known else {}
    grades = dict.fromkeys(loads, 0)
    for name, load in known.items():
        at_limit = any(max(CRITICAL, least[part] + ROOM) <= getattr(load, part) for part in LIMITED)
        grades[name] = 2 if at_limit else int(rates[name] > limit)
    return grades
