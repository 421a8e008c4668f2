"""Byte strings to be put into another order: the one loop over values that the codec has, and it is Arrow's.

A batch's bytes are cut into pieces by an array of positions; any choice of pieces, in any order, is then copied end to
end by one call. Nothing is made per piece. Positions are int32 where
`position_type` allows it: half the memory to walk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]

#: Up to so many bytes, or cells, sums of a few positions fit into int32.
_SMALL = 2**27


def position_type(nbytes: int, cells: int) -> type[np.int32] | type[np.int64]:
    """Return the type for positions within so many bytes, of which so many cells are made."""
    return np.int32 if nbytes <= _SMALL and cells <= _SMALL else np.int64


class Pieces:
    """Some buffers, each cut into pieces; numbered through in the order in which they were added."""

    def __init__(self) -> None:
        self._data: list[bytes | Bytes] = []
        self._bounds: list[Ints] = []
        self._size = 0
        self._count = 0

    def add(self, data: bytes | Bytes, bounds: Ints) -> int:
        """Add a buffer; piece i is from bounds[i] to bounds[i + 1], together all of it. Returns the first's number."""
        first = self._count
        self._data.append(data)
        self._bounds.append(bounds + self._size if self._size else bounds)
        self._size += len(data)
        self._count += len(bounds) - 1
        return first

    def gatherer(self) -> Gatherer:
        """Return what copies pieces; none can be added to it."""
        if len(self._data) == 1:
            return Gatherer(self._data[0], self._bounds[0])
        bounds = np.concatenate([*(b[:-1] for b in self._bounds[:-1]), self._bounds[-1]])
        # One join, not numpy's concatenate: it takes bytes and arrays alike.
        return Gatherer(b"".join(self._data), bounds)  # type: ignore[arg-type]


def pieces_of(data: bytes | Bytes, bounds: Ints) -> pa.Array:
    """Return the pieces from bounds[i] to bounds[i + 1] as Arrow's; nothing is copied."""
    type_ = pa.binary() if bounds.dtype == np.int32 else pa.large_binary()
    return pa.Array.from_buffers(type_, len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


class Gatherer:
    """Copies chosen pieces of one buffer."""

    def __init__(self, data: bytes | Bytes, bounds: Ints) -> None:
        self._pieces = pieces_of(data, bounds)
        self._offsets = bounds.dtype

    def gather(self, choice: Ints) -> bytes:
        """Return the chosen pieces end to end."""
        return self._taken(choice).buffers()[2].to_pybytes() if choice.size else b""

    def gather_array(self, choice: Ints) -> tuple[Bytes, Ints]:
        """Return the chosen pieces end to end, as an array that may be written to, and where each begins and ends."""
        if not choice.size:
            return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
        _, bounds, data = self._taken(choice).buffers()
        return np.frombuffer(data, dtype=np.uint8), np.frombuffer(bounds, dtype=self._offsets, count=choice.size + 1)

    def _taken(self, choice: Ints) -> pa.Array:
        # The caller computes its choice from bounds of its own: Arrow need not check it again.
        return pc.take(self._pieces, pa.array(choice.reshape(-1)), boundscheck=False)
