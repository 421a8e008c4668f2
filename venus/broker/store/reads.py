"""Reads of a store: single values, and walks that never end early without an error.

rocksdict's iterators are used within narrow limits. An iterator made by `iter()` is asked for its `status()` at the
end. One made by `items()`, `keys()` or `values()` ends silently at a damaged block, so an `iter()` iterator checks it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from venus.broker.store import keys
from venus.broker.store.files import wrap_error
from venus.errors import StorageError

#: How many rows are taken from an iterator at once while rows are small.
_RUN_ROWS_MAX = 64
_SMALL_BYTES = 4 << 10
#: How far a result may exceed a limit of bytes: a run of small rows. Larger rows are left for the next call.
BEYOND_BYTES = _RUN_ROWS_MAX * _SMALL_BYTES
#: Keys that are walked in one call of C, which holds the interpreter's lock.
_AT_ONCE = 512

#: A memtable with more entries takes over 5 ms to be sorted.
SORTED_ENTRIES_MAX = 30_000

_AGAIN = "start the broker again"


@dataclass(frozen=True, slots=True)
class KeyCount:
    """The result of a walk over a range of keys; `ended` = it reached the end of the range."""

    entries: int
    marks: list[bytes]  # evenly spread keys, from the first one on
    ended: bool


class StoreView:
    """View of a column family as it was when the view was taken. Used by one thread."""

    def __init__(self, cursor: Any, check_status: Callable[[Any], None]) -> None:
        self._cursor, self._check_status = cursor, check_status

    def look_up(self, many_keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that existed."""
        cursor, found = self._cursor, dict[bytes, bytes]()
        for wanted in sorted(set(many_keys)):
            cursor.seek(wanted)
            if not cursor.valid():
                self._check_status(cursor)
                break
            if cursor.key() == wanted:
                found[wanted] = cursor.value()
        return found


class StoreReads:
    """The reading methods of an open store; rocks.py opens and closes it."""

    path: Path
    _views: dict[str, Any]
    _no_cache: Any  # options of a read that does not fill the cache

    def get(self, family: str, key: bytes, *, fill_cache: bool = True) -> bytes | None:
        """Return the value of a key, None if there is none."""
        view = self._views[family]
        try:
            return view.get(key) if fill_cache else view.get(key, None, self._no_cache)  # type: ignore[no-any-return]
        except Exception as error:
            raise wrap_error(self.path, error, "read") from error

    def scan(
        self, family: str, start: bytes, stop: bytes, *, limit: int | None = None, fill_cache: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Walk the keys from `start` up to but not including `stop`, as of now; an empty `stop` is no bound.

        Raises Corruption at the end rather than ending early. Exhaust it in the thread that began it.
        """
        cursor = self._cursor(family, fill_cache=fill_cache)
        cursor.seek(start)
        valid, key, value, advance = cursor.valid, cursor.key, cursor.value, cursor.next
        left = -1 if limit is None else limit
        while left and valid():
            at = key()
            if stop and at >= stop:
                return
            yield at, value()
            advance()
            left -= 1
        self._check_status(cursor)

    def scan_prefix(self, family: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Walk the keys that start with `prefix`."""
        return self.scan(family, prefix, keys.after_prefix(prefix))

    def read_range(
        self, family: str, start: bytes, stop: bytes, *, rows_max: int, bytes_max: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        """Read a run of keys and values at once; the last item says whether `stop` was reached.

        Returns at least one pair if there is one; further values total at most `bytes_max` plus BEYOND_BYTES.
        """
        pairs = self._views[family].items(from_key=start, read_opt=self._no_cache)
        found_keys: list[bytes] = []
        found_values: list[bytes] = []
        left, step = bytes_max, 1
        while left > 0 and len(found_keys) < rows_max:
            run = list(islice(pairs, min(step, rows_max - len(found_keys))))
            if not run:
                break
            fits = _count_fitting([value for _, value in run], left, alone=not found_keys)
            found_keys += [key for key, _ in run[:fits]]
            found_values += [value for _, value in run[:fits]]
            if stop and found_keys[-1] >= stop:
                inside = bisect_left(found_keys, stop)
                return found_keys[:inside], found_values[:inside], True
            if fits < len(run):
                return found_keys, found_values, stop != b"" and run[fits][0] >= stop
            nbytes = sum(map(len, found_values[-len(run) :]))
            left -= nbytes
            step = min(2 * step, _RUN_ROWS_MAX) if nbytes <= step * _SMALL_BYTES else 1
        following = next(pairs, None)
        if following is None:
            self._check_end(family, found_keys[-1] + b"\0" if found_keys else start, stop)
        return found_keys, found_values, following is None or (stop != b"" and following[0] >= stop)

    def read_values(
        self, family: str, start: bytes, last: tuple[bytes, bytes], *, rows_max: int, bytes_max: int
    ) -> tuple[list[bytes], bool]:
        """Read a run of values at half the cost of keys and values; the last item says whether `last` was reached.

        `last` is the key and value at which to end; `find_before` finds them. No earlier value may equal the last one.
        Returns at least one value; further values total at most `bytes_max` plus BEYOND_BYTES.
        """
        walk = self._views[family].values(from_key=start, read_opt=self._no_cache)
        found: list[bytes] = []
        left, step = bytes_max, 1
        while left > 0 and len(found) < rows_max:
            run = list(islice(walk, min(step, rows_max - len(found))))
            if not run:
                deque(self.scan(family, start, last[0]), maxlen=0)  # raises the error of a damaged block
                raise StorageError(f"cannot read {self.path}: a walk by value missed its end", hint=_AGAIN)
            fits = _count_fitting(run, left, alone=not found)
            if last[1] in run[:fits]:
                return found + run[: run.index(last[1]) + 1], True
            found += run[:fits]
            if fits < len(run):
                return found, False
            nbytes = sum(map(len, run))
            left -= nbytes
            step = min(2 * step, _RUN_ROWS_MAX) if nbytes <= step * _SMALL_BYTES else 1
        return found, False

    def find_before(self, family: str, stop: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key below `stop` and its value; an empty `stop` is no bound."""
        cursor = self._cursor(family, fill_cache=False)
        if not stop:
            cursor.seek_to_last()
        else:
            cursor.seek_for_prev(stop)
            if cursor.valid() and cursor.key() == stop:
                cursor.prev()
        if not cursor.valid():
            self._check_status(cursor)
            return None
        return cursor.key(), cursor.value()

    def _check_end(self, family: str, behind: bytes, stop: bytes) -> None:
        """Raise Corruption or StorageError if a walk ended too early: a key from `behind` to below `stop` exists.

        No thread may write below `stop` at the same time: `stop` must be at or before the end of the written keys.
        """
        cursor = self._cursor(family, fill_cache=False)
        cursor.seek(behind)
        self._check_status(cursor)
        if cursor.valid() and (not stop or cursor.key() < stop):
            raise StorageError(f"cannot read {self.path}: a walk ended before a key", hint=_AGAIN)

    def count_keys(self, family: str, start: bytes, stop: bytes, *, entries_max: int, marks_max: int) -> KeyCount:
        """Count the keys of a range up to about `entries_max`, and keep at most `marks_max` of them, evenly spread."""
        found = self._views[family].keys(from_key=start, read_opt=self._no_cache)
        counted, every = 0, 1
        marks: list[bytes] = []
        last = b""
        while counted < entries_max and (run := list(islice(found, _AT_ONCE))):
            last = run[-1]
            inside = bisect_left(run, stop) if stop and last >= stop else len(run)
            marks += run[-counted % every : inside : every]
            counted += inside
            while len(marks) > marks_max:
                marks, every = marks[::2], 2 * every
            if inside < len(run):
                return KeyCount(counted, marks, ended=True)
        if counted >= entries_max:
            return KeyCount(counted, marks, ended=False)
        self._check_end(family, last + b"\0" if last else start, stop)
        return KeyCount(counted, marks, ended=True)

    def look_up(self, family: str, many_keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist, with one iterator: each new one sorts a vector memtable."""
        return self.view(family).look_up(many_keys)

    def view(self, family: str) -> StoreView:
        """Return a view of a family as of now. Drop it before closing the store: a view keeps old files and memtables.

        A large vector memtable is flushed first: a view would sort it with the interpreter's lock held, a flush does
        not hold that lock.
        """
        try:
            if family == keys.ROW and self._count_in_memory(family) > SORTED_ENTRIES_MAX:
                self._views[family].flush(True)
        except Exception as error:
            raise wrap_error(self.path, error, "read") from error
        return StoreView(self._cursor(family, fill_cache=True), self._check_status)

    def _count_in_memory(self, family: str) -> int:
        """Return the number of entries in a family's active memtable."""
        return int(self._views[family].property_int_value("rocksdb.num-entries-active-mem-table") or 0)

    def find_at_or_before(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key that is not above `key`, and its value."""
        cursor = self._cursor(family, fill_cache=True)
        cursor.seek_for_prev(key)
        if not cursor.valid():
            self._check_status(cursor)
            return None
        return cursor.key(), cursor.value()

    def _cursor(self, family: str, *, fill_cache: bool) -> Any:
        """Return a new iterator over a family."""
        view = self._views[family]
        return view.iter() if fill_cache else view.iter(self._no_cache)

    def _check_status(self, cursor: Any) -> None:
        """Raise the error that ended an iterator, if there was one."""
        try:
            cursor.status()
        except Exception as error:
            raise wrap_error(self.path, error, "read") from error


def _count_fitting(values: Sequence[bytes], left: int, *, alone: bool) -> int:
    """Return how many values of a run fit into about `left` bytes; at least one if `alone` (nothing was read before).

    Large rows may follow small ones, and a run of 64 large rows would exceed every message.
    """
    most = left + BEYOND_BYTES
    if sum(map(len, values)) <= most:
        return len(values)
    fits = bisect_right(list(accumulate(map(len, values))), most)
    return max(fits, 1) if alone else fits
