"""MariaDB or MySQL as a source: the parts of the dialect contract over two sessions (VENUS 3.1).

One thread uses them. The reader holds the snapshot of a cut; the writer does everything else in short transactions.
"""

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
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.capture.capture import MysqlCapture
from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.mysql.dictionary import structure, tables
from venus.adapters.dialects.mysql.installation.check import find_obstacle
from venus.adapters.dialects.mysql.installation.installer import MysqlInstaller
from venus.adapters.dialects.mysql.registry import MysqlRegistry
from venus.adapters.dialects.mysql.sql import statement
from venus.adapters.dialects.name_patterns import find_useless_patterns
from venus.config import Settings
from venus.model import TableSchema


def open_source(settings: Settings) -> MysqlSource:
    """Connect to the source in the settings."""
    return MysqlSource(settings.source.url.get_secret_value(), columns=ColumnChoice.from_settings(settings))


class MysqlSource:
    """A MariaDB or MySQL database whose changes are captured."""

    name = "mysql"
    capabilities = SourceCapabilities(transactional_ddl=False)

    def __init__(
        self,
        url: str,
        *,
        columns: ColumnChoice = NO_CHOICE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        address = parse_address(url, columns)
        self._reader = MysqlConnection(address, "REPEATABLE READ")
        self._writer = MysqlConnection(address, "READ COMMITTED")
        self._writer.open()
        self.registry = MysqlRegistry(self._writer)
        self.dictionary = MysqlSourceDictionary(self._writer, self.registry)
        self.installer = MysqlInstaller(self._writer, self.registry.invalidate)
        self.capture = MysqlCapture(self._reader, self._writer, self.registry, monotonic)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class MysqlSourceDictionary(SourceDictionary):
    """The part of a source that reads its dictionary."""

    def __init__(self, writer: MysqlConnection, registry: MysqlRegistry) -> None:
        self._writer = writer
        self._registry = registry

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        known = {}
        if registry.is_installed(self._writer):
            known = {k.schema.name: k for k in registry.read_tables(self._writer)}
        found = []
        for table in self._read_dictionary().choose_tables(include, exclude):
            if table.key and not table.unsupported:
                k = known.get(table.name)
                found.append(
                    table.to_schema(k.table_id, k.schema.version, k.schema, k.number_max)
                    if k
                    else table.to_schema(0, 1)
                )
        return found

    def read_table_names(self) -> list[str]:
        return [f"{self._writer.address.database}.{name}" for name in tables.read_table_names(self._writer)]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        if not registry.is_installed(self._writer):
            return []
        known = {row[0] for row in self._writer.rows(statement("registry", "names"))}
        place = self._writer.address.database
        names = tables.choose_names(place, tables.read_table_names(self._writer), include, exclude)
        if not (names := [name for name in names if name not in known]):
            return []
        # capture has usually just read the whole dictionary, to compare it with the registry
        read = self._registry.loaded.dictionary.tables if self._registry.loaded else {}
        found = read if all(name in read for name in names) else self._read_dictionary().tables
        return [
            UncapturedTable(name=f"{place}.{name}", obstacle=find_obstacle(found[name]))
            for name in names
            if name in found
        ]

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        database = self._writer.address.database
        return find_useless_patterns(
            patterns, (tables.pattern_names(database, n) for n in tables.read_table_names(self._writer))
        )

    def _read_dictionary(self) -> tables.MysqlDictionary:
        return tables.read_dictionary(self._writer, zero_dates_null=self._writer.options.zero_dates_null)

    def read_numberings(self) -> list[Numbering]:
        writer = self._writer
        return structure.read_numberings(writer, writer.address.database, mariadb=tables.is_mariadb(writer))

    def read_other_objects(self) -> list[OtherObject]:
        return structure.read_other_objects(self._writer, self._writer.address.database)
