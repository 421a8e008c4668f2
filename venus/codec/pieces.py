"""Byte strings to be put into another order: the one loop over values that the codec has, and it is Arrow's.

A batch's bytes are cut into pieces by an array of positions; any choice of pieces, in any order, is then copied end to
end by one call. Nothing is made per piece.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
        self._bounds.append(bounds[:-1] + self._size if self._size else bounds[:-1])
        self._size += len(data)
        self._count += len(bounds) - 1
        return first

    def gatherer(self) -> Gatherer:
        """Return what copies pieces; none can be added to it."""
        bounds = np.concatenate([*self._bounds, np.array([self._size])])
        # One join, not numpy's concatenate: it takes bytes and arrays alike.
        return Gatherer(b"".join(self._data), bounds)  # type: ignore[arg-type]


class Gatherer:
    """Copies chosen pieces of one buffer."""

    def __init__(self, data: bytes | Bytes, bounds: Ints) -> None:
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        self._pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)

    def gather(self, choice: Ints) -> bytes:
        """Return the chosen pieces end to end."""
        return self._taken(choice).to_pybytes() if choice.size else b""

    def gather_array(self, choice: Ints) -> Bytes:
        """Return the chosen pieces end to end, as an array that may be written to."""
        if not choice.size:
            return np.zeros(0, dtype=np.uint8)
        return np.frombuffer(self._taken(choice), dtype=np.uint8)

    def _taken(self, choice: Ints) -> pa.Buffer:
        # The caller computes its choice from bounds of its own: Arrow need not check it again.
        return pc.take(self._pieces, pa.array(choice.reshape(-1)), boundscheck=False).buffers()[2]
