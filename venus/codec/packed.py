"""Many byte strings laid end to end: how rows and record ids live in memory, on the wire and on disk.

No object per row is made on the hot path; numpy sees the sizes as an array over the wire's own bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from venus.codec.pieces import Ints, pieces_of, position_type

Sizes = npt.NDArray[np.uint32]


#: Of one byte string, on the wire.
SIZE_BYTES = 4


def total(sizes: bytes) -> int:
    """Add up sizes as they are on the wire; for a single one numpy would take twenty times as long."""
    if len(sizes) == SIZE_BYTES:
        return int.from_bytes(sizes, "little")
    return int(np.frombuffer(sizes, dtype="<u4").sum(dtype=np.uint64))


@dataclass(frozen=True, slots=True)
class Packed:
    """`len(sizes)` byte strings; `data` is their concatenation."""

    data: bytes
    sizes: Sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, items: Iterable[bytes]) -> Packed:
        """Pack separate byte strings."""
        parts = items if isinstance(items, list) else list(items)
        return cls(b"".join(parts), np.fromiter(map(len, parts), dtype=np.uint32, count=len(parts)))

    @classmethod
    def from_wire(cls, data: bytes, sizes: bytes) -> Packed:
        """Take the two fields of the wire as they are; no copy."""
        return cls(data, np.frombuffer(sizes, dtype="<u4"))

    def wire_sizes(self) -> bytes:
        """Return the sizes as the wire has them, little-endian fixed32."""
        return self.sizes.astype("<u4", copy=False).tobytes()

    @property
    def bounds(self) -> Ints:
        """Return where each begins, and the last one ends."""
        bounds = np.zeros(len(self.sizes) + 1, dtype=position_type(len(self.data), 4 * len(self.sizes)))
        np.cumsum(self.sizes, out=bounds[1:])
        return bounds

    def split(self) -> list[bytes]:
        """Return the separate byte strings: an object per row, made by Arrow."""
        found: list[bytes] = pieces_of(self.data, self.bounds).to_numpy(zero_copy_only=False).tolist()
        return found
