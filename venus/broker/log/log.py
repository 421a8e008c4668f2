"""The log of one business: appended at its end, applied up to the high watermark, truncatable above it.

The positions, as in etcd's raft: `applied` <= `committed` < `end`. Entries up to `committed` are safe and never
truncated. The machine has applied those up to `applied`. Entries between `committed` and `end` are only proposed.

The layout of a store has a number, so a broker never has to guess what the bytes of another version mean. Data
directories of older layouts are rewritten in place, a bounded batch at a time.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import xxhash

from venus.broker.log.entry import EntryKind, LogEntry, decode
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.errors import Corruption, StorageError
from venus.replication.position import TermCache

logger = logging.getLogger(__name__)

#: 2: a row's value has its record_id (venus/codec/stored_rows.py). 3: log entries have a term and a seal.
FORMAT = b"3"

#: By old layout: the new layout, and the function that rewrites a store in place and returns the number of entries. An
#: interrupted step starts over.
Upgrades = Mapping[bytes, tuple[bytes, Callable[[Store], int]]]


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
        """Remove every entry from `end` on. Raises ValueError if `end` is not above the high watermark."""
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
        """Set the end of the log to that of the newest entry in the store. No write may be under way."""
        last = store.find_before(keys.RLOG, keys.log_key(self.business + 1, 0))
        if last is not None and last[0][:4] == keys.log_key(self.business, 0)[:4]:
            self.end = keys.log_index(last[0]) + 1
        self.durable_end = self.end


def check_format(store: Store, upgrades: Upgrades) -> None:
    """Mark a new store, upgrade an older one in place; raise StorageError for any other."""
    found = store.get(keys.STATE, keys.FORMAT)
    while found is not None and found in upgrades:
        following, step = upgrades[found]
        rewritten = step(store)
        logger.info("%s: layout %s became %s, %d entries", store.path, found.decode(), following.decode(), rewritten)
        _mark(store, following)
        found = following
    if found == FORMAT:
        return
    if found is not None or next(store.scan_prefix(keys.STATE, keys.CORE), None) is not None:
        raise StorageError(
            f"{store.path} has layout {(found or b'1').decode(errors='replace')}, this broker reads {FORMAT.decode()}",
            hint="run the VENUS that wrote it, or give the broker an empty data_dir. In a cluster nothing else is "
            "needed: the broker installs a copy. A single broker then needs `venus uninstall-triggers`, "
            "`venus install-triggers` and `venus migrate` for each target",
        )
    _mark(store, FORMAT)


def _mark(store: Store, layout: bytes) -> None:
    """Store the number of the store's layout durably."""
    batch = store.batch()
    batch.put(keys.STATE, keys.FORMAT, layout)
    store.write(batch, durable=True)


_LAYOUT_2 = struct.Struct(">BQqQ")
_BATCH_BYTES = 4 << 20


def seal_entries(store: Store) -> int:
    """Add a term and a seal to the log entries of layout 2; return how many were rewritten.

    The first byte of an entry shows whether an interrupted run has already rewritten it. Raises Corruption.
    """
    batch, rewritten = store.batch(), 0
    for key, value in store.scan(keys.RLOG, b"", b""):
        if value[0] > max(EntryKind):
            continue
        index = keys.log_index(key)
        batch.put(keys.RLOG, key, _entry_of_layout_2(value, index, where=str(store.path)).encode(index))
        rewritten += 1
        if batch.nbytes >= _BATCH_BYTES:
            store.write(batch, durable=False)
            batch = store.batch()
    for key, value in store.scan_prefix(keys.STATE, keys.CORE):
        batch.put(keys.STATE, key, json.dumps({"terms": [], **json.loads(value)}, separators=(",", ":")).encode())
    store.write(batch, durable=True)
    return rewritten


def _entry_of_layout_2(value: bytes, index: int, *, where: str) -> LogEntry:
    """Decode a log entry of layout 2, which has no term and no seal."""
    kind, epoch, at_us, digest = _LAYOUT_2.unpack_from(value)
    body = value[_LAYOUT_2.size :]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise Corruption(f"{where}: log entry {index} does not hash to its digest")
    return LogEntry(kind=EntryKind(kind), epoch=epoch, at_us=at_us, digest=digest, body=body)


UPGRADES: Upgrades = {b"2": (b"3", seal_entries)}
