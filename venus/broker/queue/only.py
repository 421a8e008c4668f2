"""What a reader wants of a business: some tables by name, and of some tables the rows inside a predicate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from venus.broker.machine.business import Business
from venus.broker.machine.envelope import Version
from venus.broker.machine.records import schemas_of
from venus.broker.store.rocks import Store
from venus.codec import schema as schemas_codec
from venus.model import TableSchema
from venus.network.labels import is_wanted
from venus.network.row_filters import Fitted, RowFilter, fitted

#: No table has this id: nothing of a business is wanted, which is something else than everything.
NOTHING = frozenset({-1})


@dataclass(frozen=True, slots=True)
class Part:
    """What is wanted of a business as it is now. Parts with the same `key` want the same of every batch."""

    ids: frozenset[int]  # of the tables; empty = all
    where: tuple[RowFilter, ...] = ()
    rows: Mapping[int, Fitted] = field(default_factory=dict)
    versions: Mapping[Version, TableSchema] = field(default_factory=dict)

    @property
    def key(self) -> tuple[frozenset[int], tuple[RowFilter, ...]]:
        """What tells it from another part of the same business."""
        return self.ids, self.where


class Choice:
    """What one reader wants of one business; what has such a name later counts too."""

    def __init__(self, names: Iterable[str], where: Iterable[RowFilter] = ()) -> None:
        self.names, self.where = tuple(names), tuple(where)
        self._known = -1
        self._ids = NOTHING
        self._rows: Mapping[int, Fitted] = {}
        self._versions: Mapping[Version, TableSchema] = {}

    def part(self, business: Business, store: Store) -> Part:
        """Return what that is of the tables that there are."""
        ids = self.ids(business)
        if not self.where:
            return Part(ids)
        if len(self._versions) != len(business.schemas):  # what is committed here is on disk a moment later
            found = [schemas_codec.from_wire(wire) for _, wire in schemas_of(store, business.number)]
            self._versions = {(schema.table_id, schema.version): schema for schema in found}
            self._rows = fitted(self.where, found)
        return Part(ids, self.where, self._rows, self._versions)

    def ids(self, business: Business) -> frozenset[int]:
        """Return the ids of the tables that there are; the empty set stands for all."""
        if not self.names:
            return frozenset()
        if self._known != len(business.schemas):  # it grows with every version, and each name comes with one
            self._known = len(business.schemas)
            tables = list(business.tables.items())
            found = frozenset(n for n, t in tables if is_wanted(self.names, t.namespace, t.name))
            self._ids = found or NOTHING
        return self._ids
