"""Row filters of this set: those of the configuration, those in force, and their problems."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.machine.mirror import filters_from_wire, filters_to_wire
from venus.broker.machine.records import read_schemas
from venus.broker.mirrors import topology_position
from venus.codec import schema as schemas_codec
from venus.model import TableSchema
from venus.network.row_filters import RowFilter, fit_filters
from venus.wire import broker_pb2


class MirrorRowFilters:
    """Row filters by business. Thread-safe: only a cache of the store changes."""

    def __init__(self, core: Core, configured: Mapping[str, tuple[RowFilter, ...]]) -> None:
        self._core = core
        self.configured = configured
        self._schemas: dict[str, list[TableSchema]] = {}

    def configured_filters(self, business: str) -> tuple[RowFilter, ...]:
        """Return the configured filters of a business."""
        return self.configured.get(business, ())

    def effective_filters(self, business: str, above: broker_pb2.MirrorStatus | None) -> list[broker_pb2.RowFilter]:
        """Return the filters that selected the local rows: those of this set and of the upstream sets."""
        own = self._in_force(self._core.catalogue.find(business))
        inherited = above.where if above is not None else ()
        others = [one for one in inherited if not any(_may_match(one.table, known.table) for known in own)]
        return [*filters_to_wire(own), *others]

    def alarms(self, business: str, here: str, above: broker_pb2.MirrorStatus | None) -> list[str]:
        """Return alarms for tables no longer mirrored, and for tables with rows that the upstream does not receive."""
        found = self._core.catalogue.find(business)
        own = self._in_force(found)
        if not own and (above is None or not above.where):
            return []
        schemas = self._versions(found)
        said = [
            f"table {one.name} is no longer mirrored: {one.refused}; correct [cluster.where.{business}] and start "
            "this broker again"
            for one in fit_filters(own, schemas).values()
            if one.refused
        ]
        if above is not None and above.where:
            newest = {schema.table_id: schema for schema in sorted(schemas, key=lambda s: s.version)}
            wide = filters_from_wire(above.where)
            said += topology_position.find_missing_rows(own, wide, newest.values(), here, self._set_above(found))
        return said

    def find_absent(self, above: str, tables: Mapping[str, Collection[str]], business: str = "") -> list[str]:
        """Return alarms for predicates of what the upstream set lacks, of one business or of all."""
        return topology_position.find_unmatched_predicates(
            topology_position.items_of_business(self.configured, business), tables, above
        )

    def _set_above(self, business: Business) -> str:
        mirror = business.committed.mirror
        return mirror.set if mirror is not None else ""

    def _in_force(self, business: Business) -> tuple[RowFilter, ...]:
        mirror = business.committed.mirror
        return mirror.where if mirror is not None else ()

    def _versions(self, business: Business) -> list[TableSchema]:
        known = self._schemas.get(business.name, [])
        if {(s.table_id, s.version) for s in known} != business.schemas:
            known = [schemas_codec.from_wire(wire) for _, wire in read_schemas(self._core.store, business.number)]
            self._schemas[business.name] = known
        return known


def _may_match(name: str, other: str) -> bool:
    """Whether two names may denote one table, ignoring case and a missing namespace."""
    (schema, _, table), (other_schema, _, other_table) = name.lower().rpartition("."), other.lower().rpartition(".")
    return table == other_table and (schema == other_schema or not schema or not other_schema)
