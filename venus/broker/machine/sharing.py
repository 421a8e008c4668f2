"""An immutable sequence whose versions share their elements.

The state of a business is replaced with every entry, and each version may be kept until its entry is applied. With
tuples, n undecided half messages would cost n copies of up to n references; here a version is three words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")

#: What a version leaves out at its start is given back once it is so many elements, and more than it shows.
_COPY_ABOVE = 256


class Shared(Sequence[T]):
    """A view of a list that only ever grows. Equal to any sequence with the same elements."""

    __slots__ = ("_items", "_start", "_stop")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._start, self._stop = 0, len(self._items)

    def followed_by(self, item: T) -> Shared[T]:
        """Return these elements and one more, in constant time for the newest version."""
        found = self
        if len(self._items) != self._stop:  # another version has gone on from here
            found = Shared(self)
        found._items.append(item)
        return found._view(found._start, found._stop + 1)

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> Shared[T]: ...

    def __getitem__(self, at: int | slice) -> T | Shared[T]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError("only whole runs are shared")
            return self._view(self._start + start, self._start + max(start, stop))
        where = at + self._start if at >= 0 else at + self._stop
        if not self._start <= where < self._stop:
            raise IndexError(at)
        return self._items[where]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[self._start : self._stop])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Shared({list(self)!r})"

    def _view(self, start: int, stop: int) -> Shared[Any]:
        if start > _COPY_ABOVE and start > stop - start:
            return Shared(self._items[start:stop])
        found: Shared[Any] = Shared.__new__(Shared)
        found._items, found._start, found._stop = self._items, start, stop
        return found
