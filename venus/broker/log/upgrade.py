"""Data directories of older layouts are rewritten in place, a bounded batch at a time."""

from __future__ import annotations

import json
import struct

import xxhash

from venus.broker.log.entry import Entry, EntryKind
from venus.broker.store import keys
from venus.broker.store.format import Upgrades
from venus.broker.store.rocks import Store
from venus.errors import Corruption

_LAYOUT_2 = struct.Struct(">BQqQ")
_BATCH_BYTES = 4 << 20


def seal_entries(store: Store) -> int:
    """Give the log entries of layout 2 a term and a seal; return how many were rewritten.

    Entries that have them already, from a run that was interrupted, are known by their first byte. Raises Corruption.
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


def _entry_of_layout_2(value: bytes, index: int, *, where: str) -> Entry:
    kind, epoch, at_us, digest = _LAYOUT_2.unpack_from(value)
    body = value[_LAYOUT_2.size :]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise Corruption(f"{where}: log entry {index} does not hash to its digest")
    return Entry(kind=EntryKind(kind), epoch=epoch, at_us=at_us, digest=digest, body=body)


UPGRADES: Upgrades = {b"2": (b"3", seal_entries)}
