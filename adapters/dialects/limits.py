"""What bounds a row whatever database it comes from. Pure."""

from __future__ import annotations

import numpy as np

from venus.codec.packed import Packed
from venus.rpc.channel import MESSAGE_BYTES_MAX

#: A row travels in one message, with its key, its place in the batch and at worst every table's description.
ROW_BYTES_MAX = MESSAGE_BYTES_MAX - (1 << 20)


def too_large(nbytes: int) -> str:
    """Say that a row cannot travel."""
    return f"{nbytes / (1 << 20):.1f} MiB, a row can have {ROW_BYTES_MAX >> 20} MiB"


def oversized(record_ids: Packed, rows: Packed) -> tuple[int, str] | None:
    """Return the place of the first row that no message can carry, and what to say of it; None if all can travel."""
    if len(record_ids.data) + len(rows.data) <= ROW_BYTES_MAX:
        return None
    sizes = record_ids.sizes.astype(np.int64) + rows.sizes
    places = np.flatnonzero(sizes > ROW_BYTES_MAX)
    return (int(places[0]), too_large(int(sizes[places[0]]))) if len(places) else None
