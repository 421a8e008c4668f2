"""Many byte strings laid end to end: how rows and record ids live in memory, on the wire and on disk.

The hot path makes no object per row: numpy views the sizes as an array over the bytes of the wire. To reorder values,
an array of positions cuts the bytes of a batch into pieces. One call of Arrow then copies any choice of pieces, in any
order, end to end. Positions are int32 where `position_type` allows it, which halves the memory to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]

#: Up to this many bytes, or cells, sums of a few positions fit into int32.
_SMALL = 2**27
#: Up to this many byte strings are cut and joined one by one: the calls of Arrow and numpy for them take longer.
FEW_ITEMS_MAX = 128


def position_type(nbytes: int, cells: int) -> type[np.int32] | type[np.int64]:
    """Return the type for positions within `nbytes`, cut into `cells`."""
    return np.int32 if nbytes <= _SMALL and cells <= _SMALL else np.int64


class Pieces:
    """Some buffers, each cut into pieces; the pieces are numbered in the order in which they are added."""

    def __init__(self) -> None:
        self._data: list[bytes | Bytes] = []
        self._bounds: list[Ints] = []
        self._size = 0
        self._count = 0

    def add(self, data: bytes | Bytes, bounds: Ints) -> int:
        """Add a buffer, whose piece i is bounds[i] to bounds[i + 1]; return the number of its first piece."""
        first = self._count
        self._data.append(data)
        self._bounds.append(bounds + self._size if self._size else bounds)
        self._size += len(data)
        self._count += len(bounds) - 1
        return first

    def gatherer(self) -> Gatherer:
        """Return the object that copies these pieces; later pieces are not included."""
        if len(self._data) == 1:
            return Gatherer(self._data[0], self._bounds[0])
        bounds = np.concatenate([*(b[:-1] for b in self._bounds[:-1]), self._bounds[-1]])
        # A join, not numpy's concatenate, because it accepts bytes and arrays alike.
        return Gatherer(b"".join(self._data), bounds)  # type: ignore[arg-type]


def pieces_of(data: bytes | Bytes, bounds: Ints) -> pa.Array:
    """Return an Arrow array of the pieces from bounds[i] to bounds[i + 1]; nothing is copied."""
    type_ = pa.binary() if bounds.dtype == np.int32 else pa.large_binary()
    return pa.Array.from_buffers(type_, len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


class Gatherer:
    """Copies chosen pieces of one buffer."""

    def __init__(self, data: bytes | Bytes, bounds: Ints) -> None:
        self._pieces = pieces_of(data, bounds)
        self._offsets = bounds.dtype

    def gather(self, choice: Ints) -> bytes:
        """Return the chosen pieces end to end."""
        return self._take(choice).buffers()[2].to_pybytes() if choice.size else b""

    def gather_array(self, choice: Ints) -> tuple[Bytes, Ints]:
        """Return the chosen pieces end to end, as an array that may be written to, and where each begins and ends."""
        if not choice.size:
            return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
        _, bounds, data = self._take(choice).buffers()
        return np.frombuffer(data, dtype=np.uint8), np.frombuffer(bounds, dtype=self._offsets, count=choice.size + 1)

    def _take(self, choice: Ints) -> pa.Array:
        """Return the chosen pieces as one Arrow array."""
        # The caller computes its choice from its own bounds, so Arrow need not check it.
        return pc.take(self._pieces, pa.array(choice.reshape(-1)), boundscheck=False)


Sizes = npt.NDArray[np.uint32]


#: The bytes of one size on the wire.
SIZE_BYTES = 4


def total_of_sizes(sizes: bytes) -> int:
    """Return the sum of sizes on the wire; for a single one numpy would take twenty times as long."""
    if len(sizes) == SIZE_BYTES:
        return int.from_bytes(sizes, "little")
    return int(np.frombuffer(sizes, dtype="<u4").sum(dtype=np.uint64))


@dataclass(frozen=True, slots=True)
class PackedBytes:
    """`len(sizes)` byte strings; `data` is their concatenation."""

    data: bytes
    sizes: Sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, items: Iterable[bytes]) -> PackedBytes:
        """Pack separate byte strings."""
        parts = items if isinstance(items, list) else list(items)
        return cls(b"".join(parts), np.fromiter(map(len, parts), dtype=np.uint32, count=len(parts)))

    @classmethod
    def from_wire(cls, data: bytes, sizes: bytes) -> PackedBytes:
        """Wrap the two fields of the wire without copying."""
        return cls(data, np.frombuffer(sizes, dtype="<u4"))

    def wire_sizes(self) -> bytes:
        """Return the sizes as the wire has them, little-endian fixed32."""
        return self.sizes.astype("<u4", copy=False).tobytes()

    @property
    def bounds(self) -> Ints:
        """The position at which each byte string begins, and the end of the last one."""
        bounds = np.zeros(len(self.sizes) + 1, dtype=position_type(len(self.data), 4 * len(self.sizes)))
        np.cumsum(self.sizes, out=bounds[1:])
        return bounds

    def split(self) -> list[bytes]:
        """Return the separate byte strings: an object per row, made by Arrow unless they are few."""
        if len(self.sizes) <= FEW_ITEMS_MAX:
            data, ends = self.data, list(accumulate(self.sizes.tolist()))
            return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        found: list[bytes] = pieces_of(self.data, self.bounds).to_numpy(zero_copy_only=False).tolist()
        return found


def pack_items(items: Sequence[bytes]) -> PackedBytes:
    """Pack separate byte strings; Arrow does it in one pass, joining and measuring."""
    _, offsets, data = pa.array(items, type=pa.large_binary()).buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[: len(items) + 1]
    return PackedBytes(data.to_pybytes() if data is not None else b"", np.diff(bounds).astype(np.uint32))


def join_items(heads: Bytes, *parts: PackedBytes) -> list[bytes]:
    """Return separate byte strings: item i is line i of `heads`, n x bytes, and item i of each part.

    If the items of each part have one size, as keys usually have, numpy alone joins them.
    """
    count = len(heads)
    if not count:
        return []
    if count <= FEW_ITEMS_MAX:
        lines, width = heads.tobytes(), heads.shape[1]
        starts = [lines[n * width : (n + 1) * width] for n in range(count)]
        return [b"".join(item) for item in zip(starts, *(part.split() for part in parts), strict=True)]
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
    return PackedBytes(data.tobytes(), np.diff(bounds[:: len(parts) + 1]).astype(np.uint32)).split()
