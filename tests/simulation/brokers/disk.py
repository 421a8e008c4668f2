"""A broker's disk, with the interface that the judge and the faults use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.brokers.memory_store import MemoryDisk
from venus.broker.store import keys

if TYPE_CHECKING:
    from tests.simulation.brokers.host import BrokerHost

BUSINESS = "shop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """Bounds of a log; only the length of `applied` has a meaning."""

    number: int
    start: int = 1
    end: int = 1
    applied: range = range(0)


class BrokerDisk:
    """The disk of a broker; `host` is the process that uses it, if one runs."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.memory = MemoryDisk()
        self.lag_s = 0.0
        self.host: BrokerHost | None = None

    @property
    def content(self) -> LogBounds:
        """Return the bounds of the log, as the process knows them or as they are on the disk."""
        business = self.host.business if self.host is not None else None
        if business is not None:
            log = business.log
            return LogBounds(number=business.number, start=log.start, end=log.end, applied=range(log.applied))
        return self._read_log()

    def _read_log(self) -> LogBounds:
        """Read the bounds of the log from the disk."""
        state, rlog = self.memory.families[keys.STATE], self.memory.families[keys.RLOG]
        for key in state.between(keys.CORE, keys.after_prefix(keys.CORE)):
            record = json.loads(state.values[key])
            if record["name"] == BUSINESS:
                number = int.from_bytes(key[len(keys.CORE) :], "big")
                entries = rlog.between(keys.log_key(number, 0), keys.log_key(number + 1, 0))
                end = keys.log_index(entries[-1]) + 1 if entries else record["applied"] + 1
                return LogBounds(
                    number=number, start=record["log_start_index"], end=end, applied=range(record["applied"])
                )
        return LogBounds(number=0)

    def entry(self, index: int) -> bytes | None:
        """Return a stored log entry."""
        return self.memory.families[keys.RLOG].values.get(keys.log_key(self.content.number, index))

    def has(self, index: int, entry: bytes) -> bool:
        """Return whether an entry would survive a power loss; the broker finds a flipped bit before it uses it."""
        business = self.host.business if self.host is not None else None
        if business is not None and index >= business.log.durable_end:
            return False
        content = self.content
        return index < content.start <= content.end or self.entry(index) in (entry, self.memory.flipped or entry)

    def crash(self) -> None:
        """End the process, not the machine."""
        self.host = None

    def lose_power(self, random: Random) -> str:
        """Drop all or some of the writes that were not synced."""
        self.host = None
        return self.memory.lose_power(random)
