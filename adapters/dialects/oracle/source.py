"""Oracle as a source: the parts of the dialect contract over two sessions (VENUS 3.1)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.contract import (
    Numbering,
    OtherObject,
    SourceCapabilities,
    SourceDictionary,
    UncapturedTable,
)
from venus.adapters.dialects.oracle.capture.capture import OracleCapture
from venus.adapters.dialects.oracle.dictionary import structure
from venus.adapters.dialects.oracle.dictionary.reader import OracleDatabase
from venus.adapters.dialects.oracle.dictionary.tables import application_tables, choose_tables, find_unmatched_patterns
from venus.adapters.dialects.oracle.installation.installer import OracleInstaller
from venus.adapters.dialects.oracle.registry import OracleRegistry
from venus.adapters.dialects.oracle.session.column_choice import OracleColumnChoice
from venus.adapters.dialects.oracle.session.cut_bounds import CutLimits
from venus.adapters.dialects.oracle.session.driver import Driver, OracleOptions, RotatingDriver, parse_driver_url
from venus.adapters.dialects.oracle.sql import statement
from venus.config import Settings
from venus.model import TableSchema


def open_source(settings: Settings) -> OracleSource:
    """Connect to the database that the settings name."""
    url = settings.source.url.get_secret_value()
    driver, options = parse_driver_url(url)
    if settings.source.password_file or settings.source.password_command:
        driver = RotatingDriver(driver, url)
    capture = settings.capture
    limits = CutLimits(rows_max=capture.cut_rows_max, bytes_max=capture.cut_bytes_max, read_s=capture.cut_read_s)
    inline_mode = settings.source.mode == "inline"
    columns = OracleColumnChoice(settings.source.columns.include, settings.source.columns.exclude)
    asked = replace(options, inline=inline_mode, type_map=settings.source.type_map, limits=limits, columns=columns)
    return OracleSource(driver, asked)


class OracleSource:
    """One Oracle database, used by one thread."""

    name = "oracle"
    capabilities = SourceCapabilities(transactional_ddl=False)

    def __init__(self, driver: Driver, options: OracleOptions | None = None) -> None:
        self.database = OracleDatabase(driver, options or OracleOptions())
        self.registry = OracleRegistry(self.database)
        self.dictionary = OracleSourceDictionary(self.database, self.registry)
        self.capture = OracleCapture(self.database, self.registry)
        self.installer = OracleInstaller(self.database, self.capture.invalidate)

    def close(self) -> None:
        self.database.close()


class OracleSourceDictionary(SourceDictionary):
    """The part of a source that reads its dictionary."""

    def __init__(self, database: OracleDatabase, registry: OracleRegistry) -> None:
        self._database = database
        self._registry = registry

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        """Read the dictionary."""
        dictionary = self._database.dictionary
        known = {(c.schema.namespace, c.schema.name): c.schema for c in self._registry.read_entries().values()}
        listed = choose_tables(dictionary.list_tables(), include, exclude)
        return [dictionary.read_table(at, known.get((at.owner, at.name))).schema for at in listed]

    def read_table_names(self) -> list[str]:
        """Return every table of the captured schemas."""
        return [at.qualified for at in application_tables(self._database.dictionary.list_tables())]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        """Return the tables that the patterns choose and the registry does not contain.

        Reuses the list of tables that `refresh_schemas` has just read.
        """
        dictionary, listed = self._database.dictionary, self._database.listed
        self._database.listed = None
        if not self._database.is_installed():
            self._database.writer.rollback()
            return []
        listed = dictionary.list_tables() if listed is None else listed
        known = {(row[0], row[1]) for row in self._database.writer.fetch_rows(statement("registry", "known_names"))}
        found = [
            UncapturedTable(
                name=at.qualified,
                obstacle=next(iter(dictionary.read_table(at, as_inline=self._database.options.inline).refusals), ""),
            )
            for at in choose_tables(listed, include, exclude)
            if (at.owner, at.name) not in known
        ]
        self._database.writer.rollback()
        return found

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        """Return the patterns that choose no table."""
        return find_unmatched_patterns(self._database.dictionary.list_tables(), patterns)

    def read_numberings(self) -> list[Numbering]:
        """Return the sequences of the captured schemas."""
        dictionary = self._database.dictionary
        return structure.read_numberings(
            self._database.writer, dictionary.schemas, dictionary.read_structure, dictionary.is_own
        )

    def read_other_objects(self) -> list[OtherObject]:
        """Return the objects of the captured schemas that are neither tables nor sequences."""
        dictionary = self._database.dictionary
        return structure.read_other_objects(self._database.writer, dictionary.schemas, dictionary.is_own)
