"""Which table versions the broker has been told about on this connection. Pure.

The rule is the simplest correct one: every registered version once per connection, in the first batch, and each new
version in the first batch after it was found. A version counts as told only when the cut that carried it is in the
source's batch table: a half that is rolled back takes its schemas with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from venus.errors import SourceError
from venus.model import TableSchema


class Schemas:
    """Table versions, sent and unsent."""

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()
        self._unsent: dict[tuple[int, int], TableSchema] = {}
        self._newest: dict[int, TableSchema] = {}

    def offer(self, schemas: Iterable[TableSchema]) -> None:
        """Take versions from the registry; those known already change nothing."""
        for schema in schemas:
            version = (schema.table_id, schema.version)
            if version in self._known:
                continue
            self._known.add(version)
            self._unsent[version] = schema
            newest = self._newest.get(schema.table_id)
            if newest is None or newest.version < schema.version:
                self._newest[schema.table_id] = schema

    def require(self, table_id: int, version: int) -> None:
        """Refuse a section in a version that the broker could not be told about."""
        if (table_id, version) not in self._known:
            raise SourceError(f"the registry has no version {version} of table {table_id}")

    def newest(self, table_id: int) -> TableSchema:
        """Return the current version of a registered table."""
        return self._newest[table_id]

    @property
    def unsent(self) -> tuple[TableSchema, ...]:
        """What the next batch must carry."""
        return tuple(self._unsent.values())

    def sent(self, schemas: Iterable[TableSchema]) -> None:
        """Note that these are committed at the source, in a batch that the broker has on disk."""
        for schema in schemas:
            self._unsent.pop((schema.table_id, schema.version), None)
