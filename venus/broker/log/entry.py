"""The entries of the replicated log: the only thing on disk that is not derived from something else.

Everything that changes a business is an entry, appended and applied in one write batch: half messages arrive as
PREPARE, are decided by DECIDE; EPOCH fences older producers; CONSUMER tells how far a group has come. What replays
them in order ends where the broker stands.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import xxhash

from venus.errors import Corruption

_HEADER = struct.Struct(">BQqQ")


class EntryKind(IntEnum):
    """What an entry says."""

    PREPARE = 1
    DECIDE = 2
    EPOCH = 3
    CONSUMER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry; `body` is the producer's BatchBody for PREPARE, JSON for the others."""

    kind: EntryKind
    epoch: int
    at_us: int
    digest: int
    body: bytes

    def encode(self) -> bytes:
        """Return what is stored."""
        return _HEADER.pack(self.kind, self.epoch, self.at_us, self.digest) + self.body

    @property
    def record(self) -> dict[str, Any]:
        """The content of an entry that is not a PREPARE."""
        found: dict[str, Any] = json.loads(self.body)
        return found


def note(kind: EntryKind, *, epoch: int, at_us: int, record: dict[str, Any]) -> Entry:
    """Make an entry of a small record."""
    body = json.dumps(record, separators=(",", ":")).encode()
    return Entry(kind=kind, epoch=epoch, at_us=at_us, digest=xxhash.xxh3_64_intdigest(body), body=body)


def decode(value: bytes, *, where: str) -> Entry:
    """Read a stored entry. Raises Corruption if the body does not hash to its digest."""
    kind, epoch, at_us, digest = _HEADER.unpack_from(value)
    body = value[_HEADER.size :]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise Corruption(f"{where}: a log entry does not hash to its digest")
    return Entry(kind=EntryKind(kind), epoch=epoch, at_us=at_us, digest=digest, body=body)


def body_of(value: bytes) -> bytes:
    """Return the body of a stored entry, unchecked: its reader checks the digest that travels with it."""
    return value[_HEADER.size :]
