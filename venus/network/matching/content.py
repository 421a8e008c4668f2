"""Exact matching of the rows of one table with many predicates (SREM 2.1). Pure.

A predicate becomes an interest for the indexes. Values become numbers in the same order, possibly rounded; a pair whose
value and bound have the same number is therefore evaluated again. Equal predicates are one entry. New entries stay in a
small index of their own until there are enough of them to rebuild the large one. Entries without users are skipped
until there are many. So one entry more or less never rebuilds an index of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor, inf, nextafter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from venus.model import Column, Kind, TableSchema
from venus.network.matching.indexes import NumberedIndex
from venus.network.matching.interests import NO_EVENTS, NONE, Events, Floats, Ids, Interest, Matches
from venus.predicates.constants import PredicateSort, sort_of
from venus.predicates.evaluation import Values, evaluate_predicate, keys_of, order_numbers
from venus.predicates.ranges import Bound, Predicate, Range

#: The large index is rebuilt when the new or the unused entries are more than this, and more than this part of all.
REBUILD_MIN, REBUILD_PART = 256, 0.25
#: Rows kept as a sample of typical events.
SAMPLE_ROWS = 200
#: Whole numbers up to this one are exact as floats.
_EXACT_MAX = float(2**53)
Columns = Callable[[Column], Values]
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _WantedColumn:
    """A column that predicates name, and the forms in which they compare its values."""

    column: Column
    sort: PredicateSort | None
    presence: bool = False
    keys: bool = False
    numbers: bool = False

    def include(self, wanted: Range) -> None:
        """Record in which form a range compares the column."""
        if is_about_presence(wanted):
            self.presence = True
        elif wanted.values is not None:
            self.keys = True
        else:
            self.numbers = True


@dataclass(slots=True)
class _Entry:
    """A predicate with its interest, and the number of its users."""

    predicate: Predicate | None  # None = every row
    interest: Interest
    #: By column: the bounds at which a value must be compared again.
    doubtful: dict[str, tuple[float, float]]
    users: int = 0


class SharedInterests(Protocol):
    """The interests of an index at other brokers, which share the matching (venus/broker/matching)."""

    def add(self, number: int, interest: Interest) -> None:
        """Add an interest."""

    def remove(self, number: int) -> None:
        """Remove an interest."""

    def match(self, events: Events) -> Matches | None:
        """Return each pair of an event and a number; None = there are few interests, which are matched here."""


class ContentIndex:
    """Index of one table's predicates, by its own numbers. A predicate may be of any version with the same columns."""

    def __init__(self, shared: SharedInterests | None = None) -> None:
        self._shared = shared
        self._entries: dict[int, _Entry] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._columns: dict[int, _WantedColumn] = {}
        self._main, self._fresh = NumberedIndex(), NumberedIndex()
        self._new: list[int] = []
        self._unused = 0
        self._is_stale = self._is_unbuilt = False
        self._sample = NO_EVENTS
        self._low: dict[str, Floats] = {}
        self._high: dict[str, Floats] = {}
        self._alive: Bools = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def limit(self) -> int:
        """One more than the highest number that an entry has had."""
        return self._next

    def has_columns_of(self, schema: TableSchema) -> bool:
        """Whether each column that a predicate has named is the same in this version; else the index is useless."""
        known = {column.number: column for column in schema.columns}
        return all(
            known.get(number) == one.column and sort_of(schema, one.column) is one.sort
            for number, one in self._columns.items()
        )

    def clear(self) -> None:
        """Remove all entries, also at other brokers. Do not use the index afterwards."""
        if self._shared is not None:
            for number in self._entries:
                self._shared.remove(number)
        self._entries, self._numbers = {}, {}

    def add(self, predicate: Predicate | None) -> int:
        """Add one user of a predicate, None = every row; return the entry's number."""
        text = predicate.canonical if predicate is not None else ""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = self._next
            self._next += 1
            self._entries[number] = _Entry(predicate, *interest_of(predicate))
            for wanted in predicate.ranges if predicate is not None else ():
                self._columns.setdefault(wanted.column.number, _WantedColumn(wanted.column, wanted.sort)).include(
                    wanted
                )
            self._new.append(number)
            self._is_stale = self._is_unbuilt = True
            if self._shared is not None:
                self._shared.add(number, self._entries[number].interest)
        self._entries[number].users += 1
        return number

    def remove(self, number: int) -> bool:
        """Remove one user of an entry; return whether it was the last one."""
        entry = self._entries[number]
        entry.users -= 1
        if entry.users:
            return False
        del self._entries[number]
        del self._numbers[entry.predicate.canonical if entry.predicate is not None else ""]
        self._unused += 1
        self._is_stale = self._is_unbuilt = True
        if self._shared is not None:
            self._shared.remove(number)
        return True

    def match(self, columns: Columns, rows: int) -> Matches:
        """Return each pair of a row and an entry whose predicate includes the row."""
        if not rows or not self._entries:
            return NONE
        events = events_of(self._columns, columns, rows)
        if self._is_stale:
            self._list_bounds()
        shared = self._shared.match(events) if self._shared is not None else None
        found, ids = self._match_here(events) if shared is None else (shared.events, shared.interests)
        alive = self._alive[ids]
        found, ids = found[alive], ids[alive]
        sure = self._check_doubtful(events, columns, found, ids)
        self._sample = events.select(np.arange(min(rows, SAMPLE_ROWS))) if rows > self._sample.count else self._sample
        return Matches.of(found[sure], ids[sure])

    def _match_here(self, events: Events) -> tuple[Ids, Ids]:
        """Return the pairs of a row and an entry by the indexes, before exact comparisons."""
        if not self._sample.count:
            self._sample, self._is_unbuilt = events.select(np.arange(min(events.count, SAMPLE_ROWS))), True
            self._new = list(self._entries)
        if self._is_unbuilt:
            self._build()
        (rows, ids), (more, others) = self._main.find(events), self._fresh.find(events)
        return np.concatenate([rows, more]), np.concatenate([ids, others])

    def _build(self) -> None:
        """Build the index of the new entries, or the large one if there are many new or unused ones."""
        most = max(REBUILD_MIN, int(REBUILD_PART * len(self._entries)))
        if len(self._new) > most or self._unused > most or not self._main.has_conditions:
            self._main = self._index_of(self._entries)
            self._fresh, self._new, self._unused = NumberedIndex(), [], 0
        else:
            self._new = [n for n in self._new if n in self._entries]
            self._fresh = self._index_of(self._new)
        self._is_unbuilt = False

    def _index_of(self, numbers: Iterable[int]) -> NumberedIndex:
        """Build an index of some entries."""
        return NumberedIndex(((number, self._entries[number].interest) for number in numbers), self._sample)

    def _list_bounds(self) -> None:
        """List the entries, and the values at which each must be compared again."""
        self._alive = np.zeros(self._next, np.bool_)
        self._alive[list(self._entries)] = True
        names = {name for entry in self._entries.values() for name in entry.doubtful}
        self._low = {name: np.full(self._next, np.nan) for name in names}
        self._high = {name: np.full(self._next, np.nan) for name in names}
        for number, entry in self._entries.items():
            for name, (low, high) in entry.doubtful.items():
                self._low[name][number], self._high[name][number] = low, high
        self._is_stale = False

    def _check_doubtful(self, events: Events, columns: Columns, rows: Ids, ids: Ids) -> Bools:
        """Return which pairs match: pairs with a value at a rounded bound are evaluated exactly, all others match."""
        doubtful: Bools = np.zeros(len(rows), np.bool_)
        for name, low in self._low.items():
            values = events.numbers[name][rows]
            doubtful |= (values == low[ids]) | (values == self._high[name][ids])
        sure: Bools = np.ones(len(rows), np.bool_)
        if not doubtful.any():
            return sure
        at = np.flatnonzero(doubtful)
        for number in np.unique(ids[at]).tolist():
            pairs = at[ids[at] == number]
            chosen = pa.array(rows[pairs])
            predicate = self._entries[number].predicate
            assert predicate is not None

            def select(wanted: Column, chosen: pa.Array = chosen) -> pa.Array:
                """Return the values of a column in the doubtful rows."""
                return columns(wanted).all.take(chosen)

            sure[pairs] = evaluate_predicate(predicate, select, len(pairs))
        return sure


def interest_of(predicate: Predicate | None) -> tuple[Interest, dict[str, tuple[float, float]]]:
    """Return a predicate's interest, which every row inside it matches, and the bounds to compare exactly."""
    equal: dict[str, frozenset[Hashable]] = {}
    between: dict[str, tuple[float, float]] = {}
    doubtful: dict[str, tuple[float, float]] = {}
    for wanted in predicate.ranges if predicate is not None else ():
        name = str(wanted.column.number)
        if is_about_presence(wanted):
            equal[presence(name)] = frozenset([not wanted.null])
        elif wanted.values is not None:
            equal[name] = frozenset(value.key for value in wanted.values)
        else:
            between[name], is_exact = _closed_range(wanted)
            if not is_exact:
                doubtful[name] = between[name]
    return Interest(equal, between), doubtful


def presence(name: str) -> str:
    """Return the name under which events say whether a column has a value."""
    return f"{name}?"


def is_about_presence(wanted: Range) -> bool:
    """Whether a range only says that there is a value, or none."""
    return wanted.null or (wanted.values is None and wanted.low is None and wanted.high is None)


def _closed_range(wanted: Range) -> tuple[tuple[float, float], bool]:
    """Return a range as a closed range of numbers, and whether the two ranges have exactly the same values."""
    low, high, sort = wanted.low, wanted.high, wanted.sort
    assert sort is not None
    if wanted.column.type.kind is Kind.INT:
        least = -inf if low is None else float(_whole(low, up=True))
        most = inf if high is None else float(_whole(high, up=False))
        if all(abs(end) < _EXACT_MAX or abs(end) == inf for end in (least, most)):
            return (least, most), True
    if sort is PredicateSort.FLOAT:  # NaN is above everything: it counts as infinity, and no bound is that high
        least = -inf if low is None else low.value.key if low.inclusive else nextafter(low.value.key, inf)
        most = inf if high is None else high.value.key if high.inclusive else nextafter(high.value.key, -inf)
        return (least, most), True
    least, most = (end if bound is None else _number_of(sort, bound) for bound, end in ((low, -inf), (high, inf)))
    return (least, most), False


def _whole(bound: Bound, *, up: bool) -> int:
    """Return the first whole number inside a bound."""
    value: Decimal = bound.value.key
    if up:
        return ceil(value) if bound.inclusive else floor(value) + 1
    return floor(value) if bound.inclusive else ceil(value) - 1


def _number_of(sort: PredicateSort, bound: Bound) -> float:
    """Return a bound as a number for the indexes."""
    key: Any = bound.value.key
    if sort is PredicateSort.NUMBER:
        return float(key)
    return float(order_numbers(sort, Values(pa.array([key], pa.large_binary())))[0])


def events_of(wanted: Mapping[int, _WantedColumn], columns: Columns, rows: int) -> Events:
    """Return the values of these columns for the indexes: numbers in order, keys for equality, and presence."""
    numbers: dict[str, Floats] = {}
    others: dict[str, Sequence[Hashable]] = {}
    for number, one in wanted.items():
        values, name = columns(one.column), str(number)
        there = ~values.null
        if one.presence:
            others[presence(name)] = there.tolist()
        if one.numbers and one.sort is not None:
            found = np.full(rows, np.nan)
            found[there] = order_numbers(one.sort, values)
            numbers[name] = found
        if one.keys and one.sort is not None:
            keys = keys_of(one.sort, values)
            if not there.all():
                some = iter(keys)
                keys = [next(some) if is_there else None for is_there in there.tolist()]
            others[name] = keys
    return Events(rows, numbers, others)
