"""The subscriptions to one table, and the verdicts on its changes (SREM 2). Pure.

A live change comes with the previous row. A row that enters the predicate's range is an insertion, a row that stays is
an update, and a row that leaves is a deletion; any other change is no event. A change that is read again comes without
the previous row: inside the range it is an update, outside it is the deletion of its key. Both are correct whether or
not the reader has the row.

A predicate is compiled for the newest version of its table. It finds its columns by number in rows of every version; a
version that gives one of these columns another number or type ends the subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from venus.codec.arrow_rows import ColumnValues, default_values
from venus.codec.changed_rows import ChangeVerdicts, Operation, Operations, is_row
from venus.codec.packed import pack_items
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import StoredRows
from venus.errors import ProtocolError
from venus.model import Column, TableSchema
from venus.network.matching.content import ContentIndex, SharedInterests
from venus.network.matching.interests import Ids
from venus.predicates.evaluation import Values
from venus.predicates.ranges import Predicate, compile_predicate
from venus.predicates.syntax import PredicateRefused

#: An index numbers its entries in the order in which they come. It is rebuilt with new numbers once it has assigned
#: more numbers than the first limit, and more than the second for each entry that is left.
ENTRIES_MIN, ENTRIES_PART = 4096, 4


@dataclass(slots=True)
class _Subscription:
    """A subscription: its text, its predicate, and its entry in the index."""

    text: str
    predicate: Predicate | None
    entry: int


class WatchedTable:
    """The subscriptions to a table, by numbers that the caller assigns. `schemas` are all versions of the table.

    `shared` lets other brokers match the subscriptions.
    """

    def __init__(self, schemas: Iterable[TableSchema], shared: SharedInterests | None = None) -> None:
        self.versions: dict[int, TableSchema] = {schema.version: schema for schema in schemas}
        self._shared = shared
        self._index = ContentIndex(shared)
        self._subscriptions: dict[int, _Subscription] = {}
        self._members: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._subscriptions)

    @property
    def newest(self) -> TableSchema:
        """The newest version."""
        return self.versions[max(self.versions)]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all subscriptions."""
        return list(self._subscriptions)

    def add(self, number: int, text: str, compiled: Predicate | None = None) -> None:
        """Add a subscription; an empty text stands for every row. Raises PredicateRefused.

        `compiled` is the predicate of the text; it is used if it was compiled for the newest version.
        """
        newest = self.newest
        if compiled is None or compiled.schema.version != newest.version:
            compiled = compile_predicate(text, newest) if text else None
        if self._index.limit > max(ENTRIES_MIN, ENTRIES_PART * len(self._index)):
            self._rebuild()
        self._index_subscription(number, text, compiled)

    def _index_subscription(self, number: int, text: str, predicate: Predicate | None) -> None:
        """Add a subscription to the index, under the entry of its predicate."""
        entry = self._index.add(predicate)
        self._subscriptions[number] = _Subscription(text, predicate, entry)
        self._members.setdefault(entry, []).append(number)

    def remove(self, number: int) -> None:
        """Remove a subscription."""
        gone = self._subscriptions.pop(number)
        self._members[gone.entry].remove(number)
        if self._index.remove(gone.entry):
            del self._members[gone.entry]

    def _rebuild(self) -> None:
        """Build a new index of all subscriptions, with new entry numbers and the present columns."""
        some = list(self._subscriptions.items())
        self._index.clear()
        self._index, self._subscriptions, self._members = ContentIndex(self._shared), {}, {}
        for number, one in some:
            self._index_subscription(number, one.text, one.predicate)

    def describe(self, schema: TableSchema) -> dict[int, PredicateRefused]:
        """Add a new version of the table; return the subscriptions that it ends, each with the reason.

        An index compares each column in one way, so a version that changes a column needs a new index. The index finds
        entries by their text: all entries of the previous version must be removed before the first entry of the new
        version is added.
        """
        if schema.version in self.versions:
            return {}
        before, ended = self.newest, dict[int, PredicateRefused]()
        self.versions[schema.version] = schema
        if schema is not self.newest or self._index.has_columns_of(schema):
            return {}
        for number, one in list(self._subscriptions.items()):
            if one.predicate is None or has_same_columns(one.predicate, schema):
                continue
            try:
                one.predicate = refit(one.text, before, schema)
            except PredicateRefused as refused:
                ended[number] = refused
                self.remove(number)
        self._rebuild()
        return ended

    # -- verdicts ------------------------------------------------------------------------------------------------

    def judge(self, before: Sequence[bytes | None], after: Sequence[bytes]) -> ChangeVerdicts:
        """Match changes, given each row's stored value before (None = no row) and after."""
        width = max(1, self._index.limit)
        both = self._find_inside([*before, *after], width)  # together: each call has a cost of its own
        middle = np.searchsorted(both, len(before) * width)
        old, new = both[:middle], both[middle:] - len(before) * width
        codes = np.union1d(old, new)
        was, stays = np.isin(codes, old, assume_unique=True), np.isin(codes, new, assume_unique=True)
        operations = np.where(stays, np.where(was, Operation.UPDATE, Operation.INSERT), Operation.DELETE)
        return self._expand_entries(codes // width, codes % width, operations.astype(np.uint8))

    def judge_again(self, after: Sequence[bytes]) -> ChangeVerdicts:
        """Match changes without previous rows. Return only matches, as updates; a reader deletes all other keys."""
        width = max(1, self._index.limit)
        codes = self._find_inside(after, width)
        return self._expand_entries(codes // width, codes % width, np.full(len(codes), Operation.UPDATE, np.uint8))

    def _expand_entries(self, changes: Ids, entries: Ids, operations: Operations) -> ChangeVerdicts:
        """Return the verdicts by subscription, for pairs of a change and an index entry."""
        members = [self._members[entry] for entry in entries.tolist()]
        counts = np.fromiter(map(len, members), np.int64, len(members))
        flat = np.fromiter((number for some in members for number in some), np.int64, int(counts.sum()))
        return ChangeVerdicts(np.repeat(changes, counts), flat, np.repeat(operations, counts))

    def _find_inside(self, values: Sequence[bytes | None], width: int) -> Ids:
        """Find the rows that match each index entry; return a sorted code, row * width + entry, for each pair."""
        places = np.array([n for n, value in enumerate(values) if value is not None and is_row(value)], np.int64)
        if not len(places):
            return places
        stored = StoredRows(pack_items([values[n] for n in places.tolist()]))
        versions = stored.heads["version"]
        found: list[Ids] = []
        for version in np.unique(versions).tolist():
            of_it = versions == version
            rows = stored.select(of_it)
            matches = self._index.match(make_columns(rows, self._version(version)), len(rows))
            found.append(places[of_it][matches.events] * width + matches.interests)
        codes: Ids = np.sort(np.concatenate(found)) if len(found) > 1 else found[0]
        return codes

    def _version(self, version: int) -> TableSchema:
        """Return the description of a version. Raises ProtocolError if the version is not described."""
        try:
            return self.versions[version]
        except KeyError:
            raise ProtocolError(
                f"{self.newest.qualified_name} has rows of version {version}, which is not described"
            ) from None


def make_columns(rows: StoredRows, version: TableSchema) -> Callable[[Column], Values]:
    """Return a function for the values of a column; a column that was added later has its default."""
    cells, known = ColumnValues.of_stored_rows(rows, Layout.of(version)), dict[int, Values]()

    def columns(wanted: Column) -> Values:
        """Return the values of one column, decoded at its first use."""
        found = known.get(wanted.number)
        if found is None:
            raw = cells.column(wanted.number)
            found = known[wanted.number] = Values(
                default_values(wanted, pa.string(), len(rows)) if raw is None else raw
            )
        return found

    return columns


def has_same_columns(predicate: Predicate, schema: TableSchema) -> bool:
    """Whether a version has every column that a predicate names, unchanged."""
    known = {column.number: column for column in schema.columns}
    return all(known.get(wanted.column.number) == wanted.column for wanted in predicate.ranges)


def refit(text: str, before: TableSchema, now: TableSchema) -> Predicate:
    """Return a predicate for a newer version. Raises PredicateRefused if its meaning would change."""
    fitted = compile_predicate(text, now)
    known = {wanted.column.name: wanted for wanted in compile_predicate(text, before).ranges}
    for wanted in fitted.ranges:
        old = known.get(wanted.column.name)
        if old is None or old.column.number != wanted.column.number or old.sort is not wanted.sort:
            raise PredicateRefused(
                f"the predicate ({text}) names {wanted.column.name}, which is another column or type since version "
                f"{now.version} of {now.qualified_name}",
                hint="subscribe again: the rows are then chosen by the new column",
            )
    return fitted
