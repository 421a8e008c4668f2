"""PostgreSQL as a source: the parts of the dialect contract over one connection, for one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import (
    Numbering,
    OtherObject,
    SourceCapabilities,
    SourceDictionary,
    UncapturedTable,
)
from venus.adapters.dialects.postgresql import names, registry
from venus.adapters.dialects.postgresql.capture.capture import PostgresCapture
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import structure, tables
from venus.adapters.dialects.postgresql.installation.check import find_uncaptured_tables
from venus.adapters.dialects.postgresql.installation.installer import PostgresInstaller
from venus.adapters.dialects.postgresql.registry import PostgresRegistry
from venus.config import Settings
from venus.model import TableSchema


def open_source(settings: Settings) -> PostgresSource:
    """Connect to the source in the settings."""
    return PostgresSource(settings.source.url.get_secret_value(), columns=ColumnChoice.from_settings(settings))


class PostgresSource:
    """A PostgreSQL database whose changes are captured."""

    name = "postgresql"
    capabilities = SourceCapabilities(transactional_ddl=True)

    def __init__(
        self,
        url: str,
        *,
        columns: ColumnChoice = NO_CHOICE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = PostgresConnection(url, columns=columns)
        self.dictionary = PostgresSourceDictionary(self._connection)
        self.registry = PostgresRegistry(self._connection)
        self.installer = PostgresInstaller(self._connection, self.registry.invalidate)
        self.capture = PostgresCapture(self._connection, self.registry, monotonic)

    def close(self) -> None:
        self._connection.close()


class PostgresSourceDictionary(SourceDictionary):
    """The part of a source that reads its dictionary."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        connection = self._connection
        with connection.snapshot():
            known = {}
            if registry.is_installed(connection):
                known = {
                    (t.schema.namespace, t.schema.name): t.schema
                    for t, _ in registry.read_registered_tables(connection)
                }
            rows = tables.choose_tables(tables.read_all_tables(connection), include, exclude)
            found = []
            for table in tables.read_tables(connection, rows):
                schema = known.get((table.namespace, table.name))
                if table.key and not table.unsupported and table.kind != "f":
                    found.append(table.to_schema(schema.table_id if schema else 0, schema.version if schema else 1))
        return found

    def read_table_names(self) -> list[str]:
        return [f"{r[1]}.{r[2]}" for r in tables.application_tables(tables.read_all_tables(self._connection))]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        with self._connection.snapshot():
            return find_uncaptured_tables(self._connection, include, exclude)

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        return tables.find_unmatched_patterns(tables.read_all_tables(self._connection), patterns)

    def read_numberings(self) -> list[Numbering]:
        return structure.read_numberings(self._connection, self._read_namespaces())

    def read_other_objects(self) -> list[OtherObject]:
        return structure.read_other_objects(self._connection, self._read_namespaces())

    def _read_namespaces(self) -> list[str]:
        known = registry.read_registered_tables(self._connection) if registry.is_installed(self._connection) else []
        return sorted({t.schema.namespace for t, _ in known} - {names.OWN_SCHEMA})
