"""The keys of the four column families: big-endian, so their order is the order of the numbers.

Every key of a business starts with its u32 number, in `state` after the prefix, so a business never reads a key of
another one.

- rlog: business, index -> a header (kind, term, epoch, time, digest of the body), a seal over both, the body.
- queue: business, base offset -> log index of the PREPARE, count, sequences, time of the commit. The payload stays in
  rlog.
- row: business, table, record id -> a head (Sequence, schema version, flags, size of the record id), the record id, the
  row. A tombstone has no row.
- state: a prefix (`core/`, `half/`, `table/`, `schema/`, `consumer/`, `pin/`, ...) and numbers.

`queue` and a business's part of `state` are functions of the log up to the high watermark, written in one batch with
the `applied` index; `row` follows in batches of its own, together with `materialised/`.
"""

from __future__ import annotations

import struct

RLOG = "rlog"
QUEUE = "queue"
ROW = "row"
STATE = "state"
FAMILIES = (RLOG, QUEUE, ROW, STATE)

_LOG = struct.Struct(">IQ")
_TABLE = struct.Struct(">II")
_SCHEMA = struct.Struct(">III")
_NUMBER = struct.Struct(">I")

#: Prefixes within the column family `state`.
CORE = b"core/"
HALF = b"half/"
TABLE = b"table/"
SCHEMA = b"schema/"
CONSUMER = b"consumer/"
PIN = b"pin/"
MATERIALISED = b"materialised/"
FORMAT = b"format"
SCAVENGED = b"scavenged/"
SUM = b"sum/"
SCRUBBED = b"scrubbed/"
UNDESCRIBED = b"undescribed/"
#: Damage found by the scrub; a store that has this key is not served.
FINDING = b"finding"
#: The cluster and the member to which the store belongs.
MEMBER = b"member"
#: The filters that a set above reported since the full data was loaded (venus/broker/mirrors).
LEVELS = b"levels/"
#: Businesses for which a copy from the leader is being installed.
INSTALLING = b"installing/"
#: The ids of the network that the store belongs to (venus/broker/mirrors).
NETWORK = b"network"
#: The id of the broker set, if it mirrors and is no cluster (venus/broker/mirrors).
SET = b"set"
#: The highest number that a business ever had.
NUMBER = b"number"


def log_key(business: int, index: int) -> bytes:
    """Return the key of a log entry."""
    return _LOG.pack(business, index)


def log_index(key: bytes) -> int:
    """Return the index in the key of a log entry."""
    return int(_LOG.unpack(key)[1])


def queue_key(business: int, base_offset: int) -> bytes:
    """Return the key of a committed batch."""
    return _LOG.pack(business, base_offset)


def queue_offset(key: bytes) -> int:
    """Return the base offset in the key of a committed batch."""
    return int(_LOG.unpack(key)[1])


def row_prefix(business: int, table_id: int) -> bytes:
    """Return the part of a row's key before the record_id."""
    return _TABLE.pack(business, table_id)


def core_key(business: int) -> bytes:
    """Return the key of the main record of a business."""
    return CORE + _NUMBER.pack(business)


def half_prefix(business: int) -> bytes:
    """Return the prefix of a business's undecided half messages."""
    return HALF + _NUMBER.pack(business)


def half_key(business: int, batch_no: int) -> bytes:
    """Return the key of an undecided half message."""
    return HALF + _LOG.pack(business, batch_no)


def table_prefix(business: int) -> bytes:
    """Return the prefix of the statistics of a business's tables."""
    return TABLE + _NUMBER.pack(business)


def table_key(business: int, table_id: int) -> bytes:
    """Return the key of a table's statistics."""
    return TABLE + _TABLE.pack(business, table_id)


def schema_prefix(business: int) -> bytes:
    """Return the prefix of a business's schema versions."""
    return SCHEMA + _NUMBER.pack(business)


def schema_key(business: int, table_id: int, version: int) -> bytes:
    """Return the key of one schema version."""
    return SCHEMA + _SCHEMA.pack(business, table_id, version)


def consumer_prefix(business: int) -> bytes:
    """Return the prefix of a business's consumers."""
    return CONSUMER + _NUMBER.pack(business)


def consumer_key(business: int, group: str) -> bytes:
    """Return the key of a consumer group."""
    return CONSUMER + _NUMBER.pack(business) + group.encode()


def number_prefix(business: int) -> bytes:
    """Return the prefix of every key of a business in the families of its log, queue and rows."""
    return _NUMBER.pack(business)


def state_prefixes(business: int) -> list[bytes]:
    """Return the prefixes of all keys of a business in the column family `state`."""
    kinds = (CORE, HALF, TABLE, SCHEMA, CONSUMER, MATERIALISED, SCAVENGED, SUM, SCRUBBED, UNDESCRIBED, LEVELS)
    return [kind + _NUMBER.pack(business) for kind in kinds]


def installing_key(business: str) -> bytes:
    """Return the key of the marker that a copy of a business is being installed."""
    return INSTALLING + business.encode()


def pin_key(snapshot_id: str) -> bytes:
    """Return the key of a snapshot's lease."""
    return PIN + snapshot_id.encode()


def materialised_key(business: int) -> bytes:
    """Return the key of the position of the full data."""
    return MATERIALISED + _NUMBER.pack(business)


def scavenged_prefix(business: int) -> bytes:
    """Return the prefix of the scavenger's records of a business's tables."""
    return SCAVENGED + _NUMBER.pack(business)


def scavenged_key(business: int, table_id: int) -> bytes:
    """Return the key of the scavenger's record of a table."""
    return SCAVENGED + _TABLE.pack(business, table_id)


def sum_prefix(business: int, table_id: int) -> bytes:
    """Return the prefix of the checksums of a table's segments."""
    return SUM + _TABLE.pack(business, table_id)


def scrubbed_key(business: int) -> bytes:
    """Return the key of the time when the last pass of the scrub ended."""
    return SCRUBBED + _NUMBER.pack(business)


def undescribed_key(business: int) -> bytes:
    """Return the key of the table versions without a schema that the scrub found in rows."""
    return UNDESCRIBED + _NUMBER.pack(business)


def levels_key(business: int) -> bytes:
    """Return the key of the row filters reported by a set above."""
    return LEVELS + _NUMBER.pack(business)


def after_prefix(prefix: bytes) -> bytes:
    """Return the smallest key that is greater than every key with this prefix; empty = there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""
