"""Byte strings that each begin with a head of the same size, taken apart for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from venus.codec.packed import Packed
from venus.codec.pieces import Bytes, Gatherer


def take_apart(items: Sequence[bytes], head_bytes: int) -> tuple[Bytes, Packed]:
    """Return the heads, n x head_bytes, and what is behind them. No item may be shorter than its head."""
    count = len(items)
    array = pa.array(items, type=pa.large_binary())
    _, offsets, data = array.buffers()
    bounds = np.empty(2 * count + 1, dtype=np.int64)
    bounds[::2] = np.frombuffer(offsets, dtype=np.int64)[: count + 1]
    bounds[1::2] = bounds[:-1:2] + head_bytes
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    heads = content[bounds[:-1:2, np.newaxis] + np.arange(head_bytes)]
    rest = Gatherer(content, bounds).gather(np.arange(1, 2 * count, 2))
    return heads, Packed(rest, (bounds[2::2] - bounds[1::2]).astype(np.uint32))
