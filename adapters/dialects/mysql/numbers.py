"""Numbers of log rows, in little memory: a log that has grown for a week has hundreds of millions of them.

They come in order, and most of them without gaps, or with the same gap where several servers share the counting. So a
piece is its first number and how far each one is from the one before: a byte each, or nothing if all are as far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_SIZES = (np.uint8, np.uint32, np.uint64)


@dataclass(frozen=True, slots=True)
class _Piece:
    """`gaps` = one for all, or one for each number but the first."""

    first: int
    count: int
    gaps: int | npt.NDArray[Any]

    def ends_before(self, first: int, gap: int) -> bool:
        """Whether `first` is the next number of a piece with this one gap."""
        return isinstance(self.gaps, int) and self.gaps == gap and first == self.first + gap * self.count

    def numbers(self) -> npt.NDArray[np.int64]:
        gaps = np.full(self.count - 1, self.gaps, dtype=np.int64) if isinstance(self.gaps, int) else self.gaps
        return np.cumsum(np.concatenate(([self.first], gaps.astype(np.int64))))


class LogNumbers:
    """The numbers of one log, ascending."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, numbers: Iterable[int]) -> None:
        """Add those that come next, in order."""
        found = np.fromiter(numbers, dtype=np.int64)
        if not len(found):
            return
        gaps = np.diff(found)
        if not len(gaps) or (gaps == gaps[0]).all():
            self._follow(int(found[0]), len(found), int(gaps[0]) if len(gaps) else 1)
        else:
            size = next(size for size in _SIZES if int(gaps.max()) <= np.iinfo(size).max)
            self._pieces.append(_Piece(int(found[0]), len(found), gaps.astype(size)))
        self._count += len(found)

    def _follow(self, first: int, count: int, gap: int) -> None:
        """Add a piece with one gap, to the one before if it goes on like that."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.ends_before(first, gap):
            self._pieces[-1] = _Piece(last.first, last.count + count, gap)
        else:
            self._pieces.append(_Piece(first, count, gap))

    def portions(self, rows_max: int) -> Iterator[list[int]]:
        """Yield all of them, so many at a time."""
        for piece in self._pieces:
            if isinstance(piece.gaps, int):
                for start in range(0, piece.count, rows_max):
                    first, count = piece.first + piece.gaps * start, min(rows_max, piece.count - start)
                    yield list(range(first, first + piece.gaps * count, piece.gaps))
            else:
                numbers = piece.numbers()
                for start in range(0, piece.count, rows_max):
                    yield numbers[start : start + rows_max].tolist()
