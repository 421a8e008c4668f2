"""Separate byte strings and packed ones, for a whole batch at once: what a key-value store takes and gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from venus.codec.packed import Packed
from venus.codec.pieces import Bytes, Pieces


def pack(items: Sequence[bytes]) -> Packed:
    """Pack separate byte strings; Arrow does it in one pass, joining and measuring."""
    _, offsets, data = pa.array(items, type=pa.large_binary()).buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[: len(items) + 1]
    return Packed(data.to_pybytes() if data is not None else b"", np.diff(bounds).astype(np.uint32))


def put_together(heads: Bytes, *parts: Packed) -> list[bytes]:
    """Return separate byte strings: item i is line i of `heads`, n x bytes, and item i of each part.

    Equal sizes, the usual case for keys, are laid side by side by numpy alone.
    """
    count = len(heads)
    if not count:
        return []
    if heads.shape[1] and all(bool((p.sizes == p.sizes[0]).all()) for p in parts):
        equal = [np.frombuffer(p.data, dtype=np.uint8).reshape(count, -1) for p in parts if p.data]
        whole = np.concatenate([heads, *equal], axis=1)
        found: list[bytes] = whole.view(f"V{whole.shape[1]}").ravel().tolist()
        return found
    pieces = Pieces()
    pieces.add(np.ascontiguousarray(heads).reshape(-1), np.arange(count + 1, dtype=np.int32) * heads.shape[1])
    for part in parts:
        pieces.add(part.data, part.bounds)
    choice = np.arange((len(parts) + 1) * count, dtype=np.int32).reshape(-1, count).T
    data, bounds = pieces.gatherer().gather_array(choice)
    return Packed(data.tobytes(), np.diff(bounds[:: len(parts) + 1]).astype(np.uint32)).split()
