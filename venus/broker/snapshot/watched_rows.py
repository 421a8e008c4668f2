"""Effects of batches on watched tables, with the rows before each change, for subscriptions by content (SREM 2).

Nothing here runs for tables without subscriptions. Rows are looked up among the recently written rows, and in a view of
the store. There is only one view, because each new view sorts a vector memtable. When the recently written rows take
too much memory, their older half is forgotten and a new view is taken. A change of the watched tables needs a new view
as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from venus.broker.machine import folding
from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.store import keys
from venus.broker.store.reads import StoreView
from venus.broker.store.rocks import Store
from venus.model import ChangeKind
from venus.wire import change_pb2

#: Limit of the bytes of recently written rows in memory, which save look-ups in a view.
WRITTEN_BYTES_MAX = 32 << 20
#: Memory that a row takes in addition to its key and value.
_ENTRY_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedSection:
    """Effect of a section on a watched table: stored values before and after each change that took effect.

    `before` has None where there was no row. A marker (such as TRUNCATE) has no values. `is_exact` = nothing of the
    effect is missing.
    """

    table_id: int
    kind: ChangeKind
    before: Sequence[bytes | None] = ()
    after: Sequence[bytes] = ()
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedBatch:
    """A batch that became rows: its sections and schemas of watched tables."""

    place: QueuedBatch
    sections: Sequence[FoldedSection]
    schemas: Sequence[change_pb2.TableSchema]

    @property
    def nbytes(self) -> int:
        """The approximate size of the batch in memory."""
        return 512 + sum(
            len(value or b"") + 64 for section in self.sections for value in (*section.before, *section.after)
        )


class FoldObserver(Protocol):
    """Observer of the effects of batches on the full data, of the tables in `watched_tables` only."""

    @property
    def watched_tables(self) -> dict[int, frozenset[int]]:
        """The watched tables by the number of their business; replaced, never changed."""
        ...

    def on_folded(self, business: Business, folded: Sequence[FoldedBatch]) -> None:
        """Handle batches whose rows are stored now."""
        ...

    def on_refill(self, business: Business) -> None:
        """Handle the loss of all rows of a mirror, which takes its full data again."""
        ...


class WatchedRowLookup:
    """The stored rows of watched tables, including those of the present step. Used in the materialiser's thread."""

    def __init__(self, store: Store, *, written_bytes_max: int = WRITTEN_BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = written_bytes_max
        self._view: StoreView | None = None
        self._watched: dict[int, frozenset[int]] = {}
        self._newer, self._older = dict[bytes, bytes](), dict[bytes, bytes]()  # two halves of the written rows
        self._nbytes = 0  # of the newer half

    def begin(self, watched: dict[int, frozenset[int]]) -> WatchedRowLookup:
        """Begin a step in which these tables are watched. Only a new view contains the earlier rows of other tables.

        Rows may also be written while nothing is watched, so the view is kept only if `watched` is the same object as
        before.
        """
        if watched is not self._watched:
            self.drop()
            self._watched = watched
        elif 2 * self._nbytes > self._bytes_max:
            self._forget_older()
        return self

    def _forget_older(self) -> None:
        """Forget the older half of the written rows: a view that is taken from now on contains them."""
        self._older, self._newer, self._nbytes, self._view = self._newer, {}, 0, None

    def look_up(self, row_keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist."""
        newer, older = self._newer, self._older
        found: dict[bytes, bytes] = {}
        rest: list[bytes] = []
        for key in row_keys:
            value = newer.get(key) or older.get(key)  # no stored value is empty
            if value is None:
                rest.append(key)
            else:
                found[key] = value
        if rest:
            if self._view is None:
                self._view = self._store.view(keys.ROW)
            found.update(self._view.look_up(rest))
        return found

    def record(self, key: bytes, value: bytes) -> None:
        """Record a key and value that the present step writes."""
        if key not in self._newer:
            self._nbytes += _ENTRY_BYTES + len(key) + len(value)
        self._newer[key] = value

    def drop(self) -> None:
        """Release the view of the store, and forget the written rows."""
        self._view, self._newer, self._older, self._nbytes, self._watched = None, {}, {}, 0, {}


@dataclass(slots=True)
class WatchedStep:
    """Effects of one step on watched tables."""

    tables: frozenset[int]
    rows: WatchedRowLookup
    folded: list[FoldedBatch] = field(default_factory=list)


def fold_watched(
    rows: WatchedRowLookup, section: folding.ChangeSection, effect: folding.SectionEffect, floor: int, *, blind: bool
) -> FoldedSection:
    """Return the effect of a section on a watched table, with the rows before each change.

    The effect is not exact for the end of a sweep or a late marker: the rows that these remove are not looked up.
    """
    if section.kind is not ChangeKind.CHANGES:
        is_exact = section.kind is ChangeKind.SWEEP_BEGIN or (section.kind is ChangeKind.TRUNCATE and blind)
        return FoldedSection(table_id=section.table_id, kind=section.kind, is_exact=is_exact)
    known = rows.look_up(effect.keys)
    before: list[bytes | None] = []
    for key, value in zip(effect.keys, effect.values, strict=True):
        old = known.get(key)
        before.append(old if old is not None and folding.is_live(old, floor) else None)
        known[key] = value
        rows.record(key, value)
    return FoldedSection(table_id=section.table_id, kind=section.kind, before=before, after=effect.values)
