"""The log of one business: appended at its end, applied up to the high watermark, truncatable above it.

The positions, as in etcd's raft: `applied` <= `committed` < `end`. Entries up to `committed` are safe and never taken
back. The machine has applied those up to `applied`. Entries between `committed` and `end` are only proposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from venus.broker.log.entry import LogEntry, decode
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.replication.terms import TermCache


@dataclass(slots=True, eq=False)
class BusinessLog:
    """The positions of the log of a business. Only the commit thread changes them."""

    business: int
    start: int = 1  # the first entry that is kept
    end: int = 1  # the index that the next entry gets
    committed: int = 0  # the high watermark
    applied: int = 0
    durable_end: int = 1  # entries below are on disk; unused with one replica
    terms: TermCache = field(default_factory=TermCache)

    def append(self, batch: StoreBatch, index: int, entry: LogEntry, stored: bytes | None = None) -> bytes:
        """Append an entry at `index`; return its stored bytes."""
        value = entry.encode(index) if stored is None else stored
        batch.put(keys.RLOG, keys.log_key(self.business, index), value)
        self.terms = self.terms.append(entry.term, index)
        return value

    def truncate(self, batch: StoreBatch, end: int) -> None:
        """Remove every entry from `end` on. Raises ValueError below the high watermark."""
        if end <= self.committed:
            raise ValueError(f"entry {end} is committed (high watermark {self.committed})")
        batch.delete_range(keys.RLOG, keys.log_key(self.business, end), keys.log_key(self.business, self.end))
        self.end = end
        self.durable_end = min(self.durable_end, end)
        self.terms = self.terms.truncate(end)

    def trim(self, batch: StoreBatch, start: int) -> None:
        """Delete the entries below `start`; they are applied and no longer read."""
        batch.delete_range(keys.RLOG, keys.log_key(self.business, self.start), keys.log_key(self.business, start))
        self.start = start
        self.terms = self.terms.trim(start)

    def read_entries(self, store: Store, first: int, stop: int) -> Iterator[tuple[int, LogEntry]]:
        """Read entries from `first` up to but not including `stop`. Raises Corruption."""
        for key, value in store.scan(keys.RLOG, keys.log_key(self.business, first), keys.log_key(self.business, stop)):
            index = keys.log_index(key)
            yield index, decode(value, index, where=str(store.path))

    def find_end(self, store: Store) -> None:
        """Set the end from the store. No write may be under way."""
        last = store.find_before(keys.RLOG, keys.log_key(self.business + 1, 0))
        if last is not None and last[0][:4] == keys.log_key(self.business, 0)[:4]:
            self.end = keys.log_index(last[0]) + 1
        self.durable_end = self.end
