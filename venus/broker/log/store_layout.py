"""The layout of a store: a broker never guesses what the bytes of another version mean.

Data directories of older layouts are rewritten in place, a bounded batch at a time.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Mapping

import xxhash

from venus.broker.log.entry import EntryKind, LogEntry
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import Corruption, StorageError

logger = logging.getLogger(__name__)

#: 2: a row's value has its record_id (venus/codec/stored_rows.py). 3: log entries have a term and a seal.
FORMAT = b"3"

#: By old layout: the new one, and the function that rewrites a store in place and returns the number of entries. An
#: interrupted step starts over.
Upgrades = Mapping[bytes, tuple[bytes, Callable[[Store], int]]]


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
    batch = store.batch()
    batch.put(keys.STATE, keys.FORMAT, layout)
    store.write(batch, durable=True)


_LAYOUT_2 = struct.Struct(">BQqQ")
_BATCH_BYTES = 4 << 20


def seal_entries(store: Store) -> int:
    """Add a term and a seal to the log entries of layout 2; return how many were rewritten.

    The first byte shows which entries an interrupted run has rewritten already. Raises Corruption.
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
    kind, epoch, at_us, digest = _LAYOUT_2.unpack_from(value)
    body = value[_LAYOUT_2.size :]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise Corruption(f"{where}: log entry {index} does not hash to its digest")
    return LogEntry(kind=EntryKind(kind), epoch=epoch, at_us=at_us, digest=digest, body=body)


UPGRADES: Upgrades = {b"2": (b"3", seal_entries)}
