"""The limits of a row, independent of its database. Pure."""

from __future__ import annotations

import numpy as np

from venus.codec.packed import PackedBytes
from venus.rpc.channel import MESSAGE_BYTES_MAX

#: A message carries the whole row with its key, its position in the batch and at worst every table's description.
ROW_BYTES_MAX = MESSAGE_BYTES_MAX - (1 << 20)


def describe_size(nbytes: int) -> str:
    """Describe a row that is too large to be carried."""
    return f"{nbytes / (1 << 20):.1f} MiB, a row can have {ROW_BYTES_MAX >> 20} MiB"


def find_too_large(record_ids: PackedBytes, rows: PackedBytes) -> tuple[int, str] | None:
    """Return index and description of the first row that no message can carry; None if all can be carried."""
    if len(record_ids.data) + len(rows.data) <= ROW_BYTES_MAX:
        return None
    sizes = record_ids.sizes.astype(np.int64) + rows.sizes
    places = np.flatnonzero(sizes > ROW_BYTES_MAX)
    return (int(places[0]), describe_size(int(sizes[places[0]]))) if len(places) else None
