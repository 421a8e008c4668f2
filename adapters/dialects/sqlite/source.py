"""SQLite as a source: the parts of the dialect contract over one file (VENUS 3.1)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence as Seq
from pathlib import Path

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import (
    Numbering,
    OtherObject,
    SourceCapabilities,
    SourceDictionary,
    UncapturedTable,
)
from venus.adapters.dialects.name_patterns import find_useless_patterns
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.capture.capture import SqliteCapture
from venus.adapters.dialects.sqlite.connection import connect, parse_file_url, read_transaction
from venus.adapters.dialects.sqlite.dictionary import structure
from venus.adapters.dialects.sqlite.dictionary.tables import (
    SqliteDictionary,
    assign_numbers,
    choose_tables,
    pattern_names,
    read_table_names,
)
from venus.adapters.dialects.sqlite.installation.installer import SqliteInstaller
from venus.adapters.dialects.sqlite.registry import SqliteRegistry
from venus.adapters.dialects.sqlite.sql import statement
from venus.config import Settings
from venus.model import TableSchema


def open_source(settings: Settings) -> SqliteSource:
    """Open the file in the settings."""
    return SqliteSource(parse_file_url(settings.source.url.get_secret_value()), ColumnChoice.from_settings(settings))


class SqliteSource:
    """One SQLite file, used by one thread."""

    name = "sqlite"
    capabilities = SourceCapabilities(transactional_ddl=True)

    def __init__(self, file: Path, columns: ColumnChoice = NO_CHOICE) -> None:
        self._reader = connect(file)
        try:
            self._writer = connect(file)
        except BaseException:
            self._reader.close()
            raise
        self.dictionary = SqliteSourceDictionary(file, self._writer, columns)
        self.registry = SqliteRegistry(file, self._writer)
        self.capture = SqliteCapture(file, self._reader, self._writer, columns, self.registry.restores)
        self.installer = SqliteInstaller(file, self._writer, columns, self.capture.invalidate)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class SqliteSourceDictionary(SourceDictionary):
    """The part of a source that reads its dictionary."""

    def __init__(self, file: Path, writer: sqlite3.Connection, columns: ColumnChoice) -> None:
        self._file = file
        self._writer = writer
        self._columns = columns

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        with read_transaction(self._writer, self._file):
            dictionary = SqliteDictionary(self._writer, self._columns)
            known = {}
            if registry.is_installed(self._writer):
                known = {c.schema.name: c.schema for c in registry.read_tables(self._writer).values()}
            names = choose_tables(read_table_names(self._writer)[0], include, exclude)
            return [assign_numbers(dictionary.read_table(n, known.get(n)).schema, 0)[0] for n in names]

    def read_table_names(self) -> list[str]:
        return [pattern_names(name)[1] for name in self._read_names()]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        with read_transaction(self._writer, self._file):
            if not registry.is_installed(self._writer):
                return []
            known = {name for (name,) in self._writer.execute(statement("registry", "names"))}
            names = [n for n in choose_tables(read_table_names(self._writer)[0], include, exclude) if n not in known]
            if not names:
                return []
            dictionary = SqliteDictionary(self._writer, self._columns)
            return [UncapturedTable(name=pattern_names(n)[1], obstacle=dictionary.find_obstacle(n)) for n in names]

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        return find_useless_patterns(patterns, map(pattern_names, self._read_names()))

    def _read_names(self) -> list[str]:
        with read_transaction(self._writer, self._file):
            names, others = read_table_names(self._writer)
        return [*names, *(other.name for other in others)]

    def read_numberings(self) -> list[Numbering]:
        with read_transaction(self._writer, self._file):
            tables = registry.read_tables(self._writer) if registry.is_installed(self._writer) else {}
            return structure.read_numberings(self._writer, [c.schema for c in tables.values()])

    def read_other_objects(self) -> list[OtherObject]:
        with read_transaction(self._writer, self._file):
            return structure.read_other_objects(self._writer)
