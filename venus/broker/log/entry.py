"""The entries of the replicated log: the only thing on disk that is not derived from something else.

Everything that changes a business is an entry: half messages arrive as PREPARE, are decided by DECIDE; EPOCH fences
older producers; CONSUMER says how far a group has come; TERM begins a leadership; LOST passes over what an unclean
election has lost. A mirror has MIRRORED batches instead, committed above, behind full data that FULL_BEGIN,
FULL_ROWS and FULL_END brought. HOME says which set is the home from now on, CLOSED that a window of loss of a
promotion is closed. Replaying them in order ends where the broker stands.

An entry is sealed: the seal covers the header, the index and the digest of the body, so neither a flipped epoch nor
an entry in the wrong place passes. Entries are shipped between brokers as the bytes that are stored.
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
#: Layout 2 stored the bare kind, 1 to 4, without term and seal (log/upgrade.py rewrites such entries).
_KIND_BASE = 0x10


class EntryKind(IntEnum):
    """What an entry says."""

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


#: Their bodies are a BatchBody.
WITH_ENVELOPE = frozenset({EntryKind.PREPARE, EntryKind.LOST, EntryKind.MIRRORED})


_KINDS = frozenset(EntryKind)
#: `json.dumps` would make an encoder for each record.
_compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry.

    `body` is the producer's BatchBody for PREPARE and MIRRORED, the broker's for LOST, a MirrorBegin for FULL_BEGIN, a
    ChunkBody for FULL_ROWS, JSON for the others.
    `term` is the leadership in which it was appended, `epoch` the producer's, `digest` xxh3_64 of the body. `at_us` of
    MIRRORED is when the home committed it.
    """

    kind: EntryKind
    epoch: int
    at_us: int
    digest: int
    body: bytes
    term: int = 0

    def encode(self, index: int) -> bytes:
        """Return what is stored at `index`."""
        fields = _FIELDS.pack(_KIND_BASE + self.kind, self.term, self.epoch, self.at_us, self.digest)
        return fields + _seal(fields, index) + self.body

    @property
    def record(self) -> dict[str, Any]:
        """The content of an entry whose body is JSON."""
        found: dict[str, Any] = json.loads(self.body)
        return found


def note(kind: EntryKind, *, epoch: int, at_us: int, record: dict[str, Any]) -> Entry:
    """Make an entry of a small record."""
    body = _compact(record).encode()
    return Entry(kind=kind, epoch=epoch, at_us=at_us, digest=xxhash.xxh3_64_intdigest(body), body=body)


def decode(value: bytes, index: int, *, where: str) -> Entry:
    """Read what is stored at `index`. Raises Corruption if the seal or the body's digest does not fit."""
    fields, seal = value[: _FIELDS.size], value[_FIELDS.size : _HEADER_BYTES]
    if len(value) < _HEADER_BYTES or seal != _seal(fields, index):
        raise Corruption(f"{where}: the seal of log entry {index} is broken")
    kind, term, epoch, at_us, digest = _FIELDS.unpack(fields)
    body = value[_HEADER_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise Corruption(f"{where}: log entry {index} does not hash to its digest")
    if kind - _KIND_BASE not in _KINDS:
        raise Corruption(f"{where}: log entry {index} is of kind {kind}, which this version does not know")
    return Entry(kind=EntryKind(kind - _KIND_BASE), term=term, epoch=epoch, at_us=at_us, digest=digest, body=body)


def body_of(value: bytes) -> bytes:
    """Return the body of a stored entry, unchecked: its reader checks the digest that travels with it."""
    return value[_HEADER_BYTES:]


def _seal(fields: bytes, index: int) -> bytes:
    return _SEAL.pack(xxhash.xxh3_64_intdigest(fields + _INDEX.pack(index)))
