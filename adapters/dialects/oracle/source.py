"""Oracle as a source: the parts of the dialect contract over two sessions (VENUS 3.1); its survey.

The survey for `venus assess` only reads: optimizer statistics, changes since they were gathered, segments, a small
sample, the server's own counters. If VENUS's user may not read a view, the survey names the view and the GRANT.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from venus.adapters.dialects.contract import (
    Numbering,
    OtherObject,
    SchemaChanged,
    SourceCapabilities,
    SourceDictionary,
    UncapturedTable,
)
from venus.adapters.dialects.oracle.capture.capture import OracleCapture
from venus.adapters.dialects.oracle.dictionary import structure
from venus.adapters.dialects.oracle.dictionary.reader import OracleDatabase, OracleDictionary, open_dictionary
from venus.adapters.dialects.oracle.dictionary.tables import (
    ListedTable,
    OracleTable,
    application_tables,
    choose_tables,
    find_unmatched_patterns,
    read_character_sets,
)
from venus.adapters.dialects.oracle.dictionary.types import LONGS
from venus.adapters.dialects.oracle.installation.installer import OracleInstaller
from venus.adapters.dialects.oracle.installation.row_checks import LOBS
from venus.adapters.dialects.oracle.registry import OracleRegistry, read_statistics
from venus.adapters.dialects.oracle.session.connection import OracleNotPermitted, OracleSession, Row
from venus.adapters.dialects.oracle.session.driver import Driver, OracleOptions, RotatingDriver, parse_driver_url
from venus.adapters.dialects.oracle.session.options import CutLimits, OracleColumnChoice, Version
from venus.adapters.dialects.oracle.sql import quote, statement
from venus.adapters.dialects.registry_rules import log_limits
from venus.adapters.dialects.survey_contract import (
    SAMPLE_ROWS,
    UNKNOWN_RATES,
    LogRates,
    ReadingPace,
    Sampler,
    SourceFact,
    Survey,
    SurveyRequest,
    TableSize,
    code_facts,
    measure_rows,
    sample_tables,
)
from venus.config import Settings
from venus.errors import SourceError
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
    asked = replace(
        options,
        inline=inline_mode,
        type_map=settings.source.type_map,
        limits=limits,
        columns=columns,
        log=log_limits(settings),
    )
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
        return [at.qualified_name for at in application_tables(self._database.dictionary.list_tables())]

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
                name=at.qualified_name,
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


#: Measured on the stand-in (docs/reference/oracle-evidence.md), not on an Oracle. Redo and undo are estimated: two
#: inserted and two deleted entries, of the log and of its index.
PACE = ReadingPace(
    row_us=9.0, value_us=1.2, kib_us=4.0, trigger_us=80.0, log_row_bytes=110, redo_bytes=1_200, undo_bytes=400
)
NO_ORACLE_MEASURED = (
    "pace of reading and cost of triggers: measured on a stand-in for Oracle, not on an Oracle; what triggers add to"
    " redo and undo: estimated"
)
_FETCH_ROWS = 500
#: A sample is spread over all blocks of a table that has at least this many times as many rows as the sample.
_SPREAD = 20


def survey(settings: Settings, asked: SurveyRequest) -> Survey:
    """Survey the database that the settings name."""
    driver, options = parse_driver_url(settings.source.url.get_secret_value())
    with closing(OracleSession(driver)) as session:
        columns = OracleColumnChoice(settings.source.columns.include, settings.source.columns.exclude)
        version, dictionary = open_dictionary(session, options.schemas, settings.source.type_map, columns)
        user = dictionary.user
        listed = choose_tables(dictionary.list_tables(), asked.include, asked.exclude)
        places = {f"{at.owner}.{at.name}": at for at in listed}
        figures = {owner: _read_figures(session, dictionary, owner) for owner in dictionary.schemas}
        sizes = [_table_size(at, figures[at.owner]) for at in listed]
        if asked.count_rows:
            sizes = [_count_rows(session, at, size) for at, size in zip(listed, sizes, strict=True)]
        server = OracleServerFacts(session, dictionary, version)
        server.read()
        return Survey(
            server=str(session.fetch_row(statement("survey", "banner"))[0]),
            pace=PACE,
            sizes=sample_tables(sizes, partial(_sample_table, session, dictionary, places, Sampler(asked))),
            numberings=tuple(
                structure.read_numberings(session, dictionary.schemas, dictionary.read_structure, dictionary.is_own)
            ),
            others=tuple(structure.read_other_objects(session, dictionary.schemas, dictionary.is_own)),
            unknown=(*_unknown_figures(sizes, figures, user), *server.unknown),
            facts=tuple(server.facts),
            log_rates=server.log_rates,
        )


@dataclass(slots=True)
class OracleServerFacts:
    """The facts about the server and its code, and the views that this user may not read."""

    session: OracleSession
    dictionary: OracleDictionary
    version: Version
    facts: list[SourceFact] = field(default_factory=list)
    log_rates: LogRates = UNKNOWN_RATES
    unknown: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Collect all facts that this user may see."""
        self._add_fact("version", self.dictionary.release)
        if self.version.patch_registry:
            patches = self._read_rows("last patch", "patches", "DBA_REGISTRY_SQLPATCH")
            self._add_fact("last patch", " of ".join(map(str, patches[-1])) if patches else "")
        instances = [int(row[0]) for row in self._read_rows("number of instances (RAC)", "instances", "GV_$INSTANCE")]
        self._add_fact("instances", "".join(f"{n}, RAC" if n > 1 else f"{n}, no RAC" for n in instances))
        self._add_fact("role", "".join(str(row[0] or "").lower() for row in self._read_rows("role", "role")))
        sets = read_character_sets(self.session)
        self._add_fact("character set", f"{sets.database}, of national texts {sets.national}" if sets.database else "")
        rates = self._read_rows("redo and undo today", "log_rates", "GV_$SYSSTAT", "GV_$INSTANCE")
        found = {str(name): float(rate) for name, rate in rates}
        self.log_rates = LogRates(redo=found.get("redo size"), undo=found.get("undo change vector size"))
        self.facts += code_facts(self._count_by_kind("code"), self._count_by_kind("invalid"))

    def _add_fact(self, what: str, value: str) -> None:
        if value:
            self.facts.append(SourceFact(what=what, value=value))

    def _count_by_kind(self, block: str) -> list[tuple[str, int]]:
        """Return how many objects of each kind there are in all schemas together."""
        found: Counter[str] = Counter()
        for owner in self.dictionary.schemas:
            for kind, count in self.session.fetch_rows(statement("survey", block), {"owner": owner}):
                found[str(kind)] += int(count)
        return sorted(found.items())

    def _read_rows(self, what: str, block: str, *views: str) -> list[Row]:
        """Return the rows of a query of survey.sql; if this user may not read its views, note the GRANTs instead."""
        try:
            return self.session.fetch_rows(statement("survey", block))
        except (OracleNotPermitted, SchemaChanged):
            self.session.rollback()
            user = quote(self.dictionary.user)
            grants = " ".join(f"GRANT SELECT ON {view} TO {user};" for view in views)
            self.unknown.append(f"{what}: {grants}" if grants else f"{what}: the server does not say")
            return []


@dataclass(frozen=True, slots=True)
class _SchemaFigures:
    """The dictionary's figures about a schema, by table."""

    statistics: Mapping[str, Row]
    changes: Mapping[str, tuple[int, int, int]]
    #: By (table, TABLE, INDEX or LOB); None if this user may not see them.
    segments: Mapping[tuple[str, str], int] | None
    attached: Mapping[str, list[str]]


def _read_figures(session: OracleSession, dictionary: OracleDictionary, owner: str) -> _SchemaFigures:
    return _SchemaFigures(
        *read_statistics(session, owner),
        _read_segment_sizes(session, owner, dictionary.user),
        _read_attached_objects(session, dictionary, owner),
    )


def _read_attached_objects(session: OracleSession, dictionary: OracleDictionary, owner: str) -> Mapping[str, list[str]]:
    """Return the triggers and materialized view logs of the application by table, as far as this user may see them."""
    found: dict[str, list[str]] = defaultdict(list)
    triggers = session.fetch_rows(statement("survey", "table_triggers"), {"owner": owner})
    for table, of, name, kind, state in triggers:
        if not dictionary.is_own(str(of), "TRIGGER", str(name)):
            found[str(table)].append(f"trigger {name}: {str(kind).lower()}, {str(state).lower()}")
    for table, log in session.fetch_rows(statement("survey", "view_logs"), {"owner": owner}):
        found[str(table)].append(f"materialized view log {log}")
    return found


def _read_segment_sizes(session: OracleSession, owner: str, user: str) -> Mapping[tuple[str, str], int] | None:
    """Return the sizes of segments, from the view of all segments if granted, else from the user's own segments."""
    for view in ("segments_of_anybody", *(["segments_of_own"] if owner == user else [])):
        text = statement("survey", "segments", segments=statement("survey", view))
        try:
            return {(str(t), str(kind)): int(n) for t, kind, n in session.fetch_rows(text, {"owner": owner})}
        except (SourceError, SchemaChanged):
            session.rollback()
    return None


def _table_size(at: ListedTable, figures: _SchemaFigures) -> TableSize:
    rows, age_s = figures.statistics.get(at.name, (None, None))
    changes = figures.changes.get(at.name, (0, 0, 0))
    segments = figures.segments
    large = segments.get((at.name, "LOB"), 0) if segments is not None else 0
    return TableSize(
        namespace=at.owner,
        name=at.name,
        rows=None if rows is None else max(0, int(rows) + changes[0] - changes[2]),
        counted=False,
        data_bytes=None if segments is None else segments.get((at.name, "TABLE"), 0) + large,
        index_bytes=None if segments is None else segments.get((at.name, "INDEX"), 0),
        large_bytes=large,
        changes=None if age_s is None else sum(changes),
        over_s=float(age_s or 0),
        attached=tuple(figures.attached.get(at.name, ())),
    )


def _count_rows(session: OracleSession, at: ListedTable, size: TableSize) -> TableSize:
    table = f"{quote(at.owner)}.{quote(at.name)}"
    try:
        rows = int(session.fetch_row(statement("survey", "count", table=table))[0])
    except (SourceError, SchemaChanged):  # the check reports tables that may not be read
        return size
    return replace(size, rows=rows, counted=True)


def _sample_table(
    session: OracleSession,
    dictionary: OracleDictionary,
    places: Mapping[str, ListedTable],
    sampler: Sampler,
    size: TableSize,
) -> TableSize:
    """Return the size of a table with a sample of its rows and its largest value, if there is time."""
    table = dictionary.read_table(places[size.qualified_name])
    text, largest = sample_query(table, size.rows), largest_query(table, size)
    try:
        if text:
            size = replace(size, sample=sampler.take(lambda: measure_rows(_stream_rows(session, text))))
        if largest and (size.sample or size.counted or not text):
            size = replace(size, largest_bytes=max(int(n or 0) for n in session.fetch_row(largest)))
    except (SourceError, SchemaChanged):  # the check reports tables that may not be read
        session.rollback()
    return size


def sample_query(table: OracleTable, rows: int | None) -> str:
    """Return the query of a sample, which selects like a fill but omits large values: segments show their size."""
    columns = [
        f"{reading.expression(quote(name))} AS C{number}"
        for number, (name, reading) in enumerate(table.readings.items())
        if not reading.mapping.located and reading.declared.data_type not in LONGS
    ]
    if not columns:
        return ""
    parts = {"columns": ", ".join(columns), "table": table.keyed.sql, "rows": str(SAMPLE_ROWS)}
    return statement("survey", "sample", sample=_sample_clause(rows), **parts)


def _sample_clause(rows: int | None) -> str:
    """Return the clause that samples blocks of a table of this many rows; empty for a small one."""
    share = 100 * SAMPLE_ROWS / rows if rows else 100
    return f" SAMPLE BLOCK ({share:.6f})" if share < 100 / _SPREAD else ""


def largest_query(table: OracleTable, size: TableSize) -> str:
    """Return the query for the longest value of each LOB column: in all rows if they are counted, else in some."""
    lobs = [quote(name) for name, reading in table.readings.items() if reading.declared.data_type in LOBS]
    if not lobs:
        return ""
    parts = {"columns": ", ".join(lobs), "table": table.keyed.sql, "sample": _sample_clause(size.rows)}
    some = statement("survey", "some_rows", rows=str(SAMPLE_ROWS), **parts)
    lengths = ", ".join(f"MAX({statement('sampling', 'length', c=f'T.{name}')})" for name in lobs)
    return statement("survey", "largest", lengths=lengths, rows=table.keyed.sql if size.counted else some)


def _stream_rows(session: OracleSession, text: str) -> Iterator[Row]:
    for piece in session.stream(text, None, _FETCH_ROWS):
        yield from piece


def _unknown_figures(sizes: Seq[TableSize], figures: Mapping[str, _SchemaFigures], user: str) -> Iterator[str]:
    """Yield the figures that are not available, each with the way to get it."""
    yield NO_ORACLE_MEASURED
    for owner, found in figures.items():
        if found.segments is None:
            yield f"size of the tables of {owner}: GRANT SELECT ON DBA_SEGMENTS TO {quote(user)};"
    bare = [size for size in sizes if size.changes is None]
    if bare:
        names = ", ".join(size.qualified_name for size in bare[:5]) + (" ..." if len(bare) > 5 else "")
        gather = f"EXEC DBMS_STATS.GATHER_TABLE_STATS('{bare[0].namespace}', '{bare[0].name}')"
        yield f"rows and change rate of {names}: no statistics; {gather}, or `venus assess --count-rows` for the rows"
