"""Masks columns in the batches and full data that the sets below get, by the rules of this set's border.

This module masks everything that is sent to a mirror: increments (reduced_batches.py) and chunks of the full data
(snapshot/reading.py). Key columns stay, so record_ids, Sequences, offsets and the order of rows are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from venus.codec import schema as schemas_codec
from venus.codec.batch import changes_from_wire
from venus.codec.masked_rows import Maskers, RowMasker
from venus.codec.packed import pack_items
from venus.codec.stored_rows import FullRows, StoredRows
from venus.errors import Refused, Unavailable
from venus.masking.border import Border, flatten
from venus.model import TableSchema
from venus.network.row_filters import FittedFilter
from venus.network.topology import PULLS_AS
from venus.wire import change_pb2

_CHANGES = change_pb2.TableChanges.CHANGES


def border_for(borders: Mapping[str, Border], business: str, reader: str) -> Border | None:
    """Return the column rules for a reader (its group or lease holder), None if it is no set below or has no rules."""
    return borders.get(business) if reader.startswith(PULLS_AS) else None


class BorderMasks:
    """Masks columns of a business's tables for the sets below; `schemas` are all known versions of the tables."""

    def __init__(self, border: Border, schemas: Iterable[TableSchema]) -> None:
        self.tables = border.fit(schemas)
        self._maskers = Maskers(border.key)

    def has_version(self, table_id: int, version: int) -> bool:
        """Return whether the sets below get anything of a table version."""
        found = self.tables.get(table_id)
        return found is None or found.has_version(version)

    def has_table(self, table_id: int) -> bool:
        """Return whether the sets below get every known version of a table."""
        found = self.tables.get(table_id)
        return found is None or found.until is None

    def flatten(self, schema: TableSchema) -> TableSchema:
        """Return a schema as the sets below get it. Raises Unavailable if its version is not described yet."""
        return flatten(self._find_projected(schema.table_id, schema.version))

    def _find_projected(self, table_id: int, version: int) -> TableSchema:
        """Return a version's schema with its masked columns. Raises Unavailable if it is not described yet."""
        found = self.tables.get(table_id)
        if found is None or version not in found.projected:
            raise Unavailable(f"version {version} of table {table_id} is not described yet", hint="try again")
        return found.projected[version]

    def mask_message(self, message: change_pb2.BatchBody) -> bool:
        """Mask a batch in place; return whether it has changed."""
        is_changed = False
        for described in message.schemas:
            schema = schemas_codec.from_wire(described)
            masked = self.flatten(schema)
            if masked.masked_above != schema.masked_above:
                described.CopyFrom(schemas_codec.to_wire(masked))
                is_changed = True
        for table in message.tables:
            masker = self._find_masker(table.table_id, table.schema_version) if table.kind == _CHANGES else None
            if masker is None:
                continue
            changes = changes_from_wire(table)
            rows = masker.mask_rows(changes.rows, changes.is_deleted)
            table.rows, table.row_sizes = rows.data, rows.wire_sizes()
            is_changed = True
        return is_changed

    def _find_masker(self, table_id: int, version: int) -> RowMasker | None:
        """Return the masker for rows of a version, None if these rows stay as they are."""
        return self._maskers.find(self._find_projected(table_id, version))

    def mask_stored(self, table_id: int, stored: StoredRows) -> StoredRows:
        """Return rows of a table's full data with their columns masked, in the same order."""
        versions = stored.heads["version"]
        different = np.unique(versions).tolist()
        if len(different) < 2:
            return self._mask_version(table_id, different[0], stored) if different else stored
        items: list[bytes] = [b""] * len(stored)
        for version in different:
            chosen = versions == version
            masked = self._mask_version(table_id, version, stored.select(chosen))
            for place, item in zip(np.flatnonzero(chosen).tolist(), masked.packed.split(), strict=True):
                items[place] = item
        return StoredRows(pack_items(items))

    def _mask_version(self, table_id: int, version: int, stored: StoredRows) -> StoredRows:
        """Return rows of a single version with their columns masked."""
        masker = self._find_masker(table_id, version)
        if masker is None:
            return stored
        return masker.mask_full_rows(FullRows(table_id=table_id, schema_version=version, stored=stored)).stored

    def refuse_filters(self, filters: Mapping[int, FittedFilter]) -> None:
        """Raise Refused if a filter selects rows by a masked or dropped column: the result would reveal its values."""
        for table_id, one in filters.items():
            found = self.tables.get(table_id)
            rules = found.columns.by_number if found is not None else {}
            for predicate in one.predicates.values():
                for part in predicate.ranges:
                    if part.column.number in rules:
                        raise Refused(
                            f"the predicate of {one.name} ({one.text}) is about {part.column.name}, which is masked at "
                            "the border of the set above",
                            hint="Select the rows by other columns in [cluster.where]",
                        )
