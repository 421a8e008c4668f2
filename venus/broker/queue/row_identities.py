"""Rows identities: which filters chose the rows of a set, so that a consumer with other rows is refused.

A consumer sends the identity of its rows with its position. If a set has other rows at the same offset, the consumer
would continue with rows chosen by other predicates, and no later check would show that.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from venus.broker.machine.business import Business
from venus.broker.machine.mirror import filters_from_wire, find_partial_tables, levels_to_wire
from venus.broker.machine.records import load_levels, load_schemas, read_schemas
from venus.broker.queue.border_masks import border_for
from venus.broker.queue.reduced_batches import TableChoice
from venus.broker.store.rocks import Store
from venus.codec import schema as schemas_codec
from venus.errors import OffsetTrimmed, OtherRows
from venus.masking.border import Border
from venus.model import TableSchema
from venus.network.row_filters import (
    Levels,
    RowsIdentity,
    TableRows,
    describe_differences,
    find_differing,
    partial_tables,
)
from venus.network.topology import PULLS_AS
from venus.rpc import reports
from venus.wire import broker_pb2


@dataclass(frozen=True, slots=True)
class _IdentityChanges:
    """Offsets after which the identity of a business's rows changes; outdated if `begin` or `versions` differ."""

    begin: int
    versions: int
    levels: Levels | None
    offsets: list[int]
    tables: list[tuple[TableRows, ...]]

    def at(self, offset: int) -> tuple[TableRows, ...]:
        """Return the identity of the tables' rows at an offset."""
        place = bisect_left(self.offsets, offset)
        return self.tables[place - 1] if place else ()


class RowIdentities:
    """The rows identities of the businesses of this set; thread-safe. `name` is the set's name, once it is known."""

    def __init__(self, store: Store) -> None:
        self.name = ""
        #: The rules at the border to the sets below, by business.
        self.borders: Mapping[str, Border] = {}
        self._store = store
        self._lock = threading.Lock()
        self._points: dict[int, _IdentityChanges] = {}

    def at(self, business: Business, offset: int) -> RowsIdentity | None:
        """Return the identity of this set's rows at an offset; None = unknown: a set above has an older version."""
        points = self._load_changes(business)
        return RowsIdentity(set=self.name, tables=points.at(offset)) if points.levels is not None else None

    def for_mirror(self, business: Business, offset: int) -> RowsIdentity | None:
        """Return the rows identity at an offset, under the upstream's name, for a request to the upstream."""
        found = self.at(business, offset)
        above, _ = load_levels(self._store, business.number, business.committed.mirror)
        return replace(found, set=above) if found is not None else None

    def check_rows(self, business: Business, offset: int, wanted: broker_pb2.Open, opened: broker_pb2.Opened) -> None:
        """Add the rows identity to the answer. Raises OtherRows or OffsetTrimmed if the consumer has other rows."""
        levels = self._load_changes(business).levels
        if levels is None:
            return
        if wanted.group.startswith(PULLS_AS):
            opened.levels.CopyFrom(levels_to_wire(levels))
        border = border_for(self.borders, business.name, wanted.group)
        choice = TableChoice(wanted.only, filters_from_wire(wanted.where), border)
        here = self._identity_for(business, offset, levels, choice)
        opened.rows.CopyFrom(reports.to_wire(here))
        if not wanted.HasField("rows"):
            return
        if wanted.HasField("rows_at"):
            here = self._identity_for(business, wanted.rows_at, levels, choice)
        brought = reports.from_wire(wanted.rows)
        only = choice.ids(business) or set(wanted.table_ids) or None
        differ = find_differing(brought, here, only)
        if border is not None:  # a table that is not sent any more may be there or not
            masks = choice.part(business, self._store).masks
            differ = tuple(n for n in differ if masks is None or masks.has_table(n))
        if differ:
            raise self._other_rows_error(business, offset, brought, describe_differences(differ, brought, here))

    def _identity_for(self, business: Business, offset: int, levels: Levels, choice: TableChoice) -> RowsIdentity:
        """Return the identity of the rows that a reader with this choice gets at an offset."""
        if not choice.is_rewritten:
            return RowsIdentity(set=self.name, tables=self._load_changes(business).at(offset))
        masks = choice.part(business, self._store).masks
        schemas = [schema for at, schema in load_schemas(self._store, business.number) if at < offset]
        if masks is not None:
            schemas = [masks.flatten(s) for s in schemas if masks.has_version(s.table_id, s.version)]
        return RowsIdentity(set=self.name, tables=tuple(partial_tables((*levels, choice.where), schemas).values()))

    def _other_rows_error(
        self, business: Business, offset: int, brought: RowsIdentity, tables: str
    ) -> OffsetTrimmed | OtherRows:
        """Return the error for a consumer whose rows are not those of this set."""
        if brought.set == self.name:
            return OffsetTrimmed(
                f"{business.name}: set {self.name} has loaded the full data again, and has other rows at offset "
                f"{offset} than those that were read here: {tables}",
                hint="start again from the full data: `venus resync --all --target NAME`",
            )
        origin = f"set {brought.set}" if brought.set else "the set that was read until now"
        return OtherRows(
            f"{business.name}: set {self.name} has other rows than {origin} at offset {offset}: {tables}; nothing is "
            "read from it",
            hint=f"give set {self.name} the same predicates, or load from the full data of this one",
        )

    def add_changes(self, business: Business, increment: broker_pb2.Increment) -> None:
        """Add the new rows identity to an increment that changes it by describing a table."""
        points = self._load_changes(business)
        if not points.offsets or points.offsets[-1] < increment.base_offset:
            return
        behind = points.at(increment.base_offset + increment.count)
        if points.at(increment.base_offset) != behind:
            increment.rows.CopyFrom(reports.to_wire(RowsIdentity(set=self.name, tables=behind)))

    def invalidate(self, business: Business) -> None:
        """Drop the cached identity, because the set above reports other filters."""
        with self._lock:
            self._points.pop(business.number, None)

    def _load_changes(self, business: Business) -> _IdentityChanges:
        """Return the changes of a business's rows identity, cached until tables or the full data change."""
        mirror = business.committed.mirror
        begin = mirror.begin if mirror is not None else 0
        known = self._points.get(business.number)
        if known is not None and (known.begin, known.versions) == (begin, len(business.schemas)):
            return known
        levels = load_levels(self._store, business.number, mirror)[1]
        stored = list(read_schemas(self._store, business.number)) if levels is not None else []
        ids = find_partial_tables(levels or (), (wire for _, wire in stored))
        described = [(at, schemas_codec.from_wire(wire)) for at, wire in stored if wire.table_id in ids]
        # a version is on disk a moment after it is committed: then it is read again
        versions = len(stored) if levels is not None else len(business.schemas)
        found = _IdentityChanges(begin, versions, levels, *_find_changes(levels or (), described))
        with self._lock:
            self._points[business.number] = found
        return found


def _find_changes(
    levels: Levels, described: list[tuple[int, TableSchema]]
) -> tuple[list[int], list[tuple[TableRows, ...]]]:
    """Return the offsets after which the identity of tables changes, and the identity after each."""
    by_offset: defaultdict[int, list[TableSchema]] = defaultdict(list)
    for at, schema in described:
        by_offset[at].append(schema)
    versions: defaultdict[int, list[TableSchema]] = defaultdict(list)
    tables: dict[int, TableRows] = {}
    offsets: list[int] = []
    found: list[tuple[TableRows, ...]] = []
    for at, schemas in sorted(by_offset.items()):
        before = dict(tables)
        for schema in schemas:
            versions[schema.table_id].append(schema)
        for table_id in {schema.table_id for schema in schemas}:
            tables.pop(table_id, None)
            tables |= partial_tables(levels, versions[table_id])
        if tables != before:
            offsets.append(at)
            found.append(tuple(tables[table_id] for table_id in sorted(tables)))
    return offsets, found
