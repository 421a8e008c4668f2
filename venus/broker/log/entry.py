"""The entries of the replicated log: the only data on disk that is not derived from other data.

Every change of a business is an entry. Half messages arrive as PREPARE and are decided by DECIDE. EPOCH fences older
producers, CONSUMER records the position of a group, TERM begins a leadership, and LOST skips the offsets that an
unclean election has lost. In place of half messages, the log of a mirror has the full data (FULL_BEGIN, FULL_ROWS and
FULL_END), then the MIRRORED batches that the upstream set has committed. HOME names the set that becomes the home.
CLOSED closes the loss window of a promotion. Replaying the entries in order restores the state of the broker.

An entry is sealed. The seal covers the header, the index and the digest of the body, so a flipped epoch or an entry at
the wrong index is detected. Brokers send entries to each other in their stored form.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import xxhash

from venus.errors import Corruption

_FIELDS = struct.Struct(">BQQqQ")
_INDEX = struct.Struct(">Q")
_SEAL = struct.Struct(">Q")
_HEADER_BYTES = _FIELDS.size + _SEAL.size
#: Layout 2 stored the bare kind, 1 to 4, without term and seal (log/log.py rewrites such entries).
_KIND_BASE = 0x10


class EntryKind(IntEnum):
    """The kinds of entries."""

    PREPARE = 1
    DECIDE = 2
    EPOCH = 3
    CONSUMER = 4
    TERM = 5
    LOST = 6
    FULL_BEGIN = 7
    FULL_ROWS = 8
    FULL_END = 9
    MIRRORED = 10
    HOME = 11
    CLOSED = 12


#: Kinds whose body is a BatchBody.
WITH_ENVELOPE = frozenset({EntryKind.PREPARE, EntryKind.LOST, EntryKind.MIRRORED})


_KINDS = frozenset(EntryKind)
#: `json.dumps` would create an encoder for each record.
_compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One entry of the log.

    `body` is the producer's BatchBody for PREPARE and MIRRORED, the broker's for LOST, a MirrorBegin for FULL_BEGIN, a
    ChunkBody for FULL_ROWS, JSON for the others. `term` is the term of the leader that appended the entry, `epoch` the
    epoch of the producer, `digest` the xxh3_64 of the body. For MIRRORED, `at_us` is when the home committed the
    batch.
    """

    kind: EntryKind
    epoch: int
    at_us: int
    digest: int
    body: bytes
    term: int = 0

    def encode(self, index: int) -> bytes:
        """Return the bytes to store at `index`."""
        fields = _FIELDS.pack(_KIND_BASE + self.kind, self.term, self.epoch, self.at_us, self.digest)
        return fields + _seal(fields, index) + self.body

    @property
    def record(self) -> dict[str, Any]:
        """The content of an entry whose body is JSON."""
        found: dict[str, Any] = json.loads(self.body)
        return found


def record_entry(kind: EntryKind, *, epoch: int, at_us: int, record: dict[str, Any]) -> LogEntry:
    """Build an entry from a small record."""
    body = _compact(record).encode()
    return LogEntry(kind=kind, epoch=epoch, at_us=at_us, digest=xxhash.xxh3_64_intdigest(body), body=body)


def decode(value: bytes, index: int, *, where: str) -> LogEntry:
    """Decode the entry at `index`. Raises Corruption if the seal or the digest of the body does not match."""
    fields, seal = value[: _FIELDS.size], value[_FIELDS.size : _HEADER_BYTES]
    if len(value) < _HEADER_BYTES or seal != _seal(fields, index):
        raise Corruption(f"{where}: the seal of log entry {index} is broken")
    kind, term, epoch, at_us, digest = _FIELDS.unpack(fields)
    body = value[_HEADER_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise Corruption(f"{where}: log entry {index} does not hash to its digest")
    if kind - _KIND_BASE not in _KINDS:
        raise Corruption(f"{where}: log entry {index} is of kind {kind}, which this version does not know")
    return LogEntry(kind=EntryKind(kind - _KIND_BASE), term=term, epoch=epoch, at_us=at_us, digest=digest, body=body)


def body_of(value: bytes) -> bytes:
    """Return the body of a stored entry, unchecked: its reader checks the digest that is sent with it."""
    return value[_HEADER_BYTES:]


def _seal(fields: bytes, index: int) -> bytes:
    """Return the seal of an entry: a hash of its fields and its index."""
    return _SEAL.pack(xxhash.xxh3_64_intdigest(fields + _INDEX.pack(index)))
