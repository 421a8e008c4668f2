"""The assessment: its tables, findings and forecast, as objects and as a JSON document.

The assessment combines the dialect's survey, dictionary and check with the speed of this machine, and only reads. It
also gives the remedies: a script for the database's own client, and lines for the configuration.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

from venus.adapters.assess.forecast import (
    Forecast,
    TableForecast,
    add_log_rates,
    add_peak,
    find_peak,
    forecast_source,
    forecast_table,
)
from venus.adapters.cutover.direction import WayBack, assess_way_back
from venus.adapters.dialects.contract import Numbering, OtherObject, Source
from venus.adapters.dialects.registry import describe_database, survey
from venus.adapters.dialects.survey_contract import SourceFact, Survey, SurveyRequest, TableSize
from venus.adapters.targets.way_back import format_losses
from venus.codec.columns import from_columns
from venus.codec.copy_text import to_copy
from venus.codec.row_bytes import Layout
from venus.config import Settings
from venus.errors import VenusError
from venus.masking.suggestions import suggest_masks
from venus.model import Column, Finding, Kind, LogicalType, TableSchema

FORMAT = "venus-assessment/1"
#: Assumed bytes of a key column whose type has no length.
_KEY_COLUMN_BYTES = 12
_LENGTH_MAX = 64
_OBSTACLES_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedTable:
    """Assessment of one table."""

    size: TableSize
    columns: int
    #: Declared types, each with its number of columns.
    types: Mapping[str, int]
    #: Why VENUS refuses the table; empty means that VENUS carries it.
    refused: tuple[str, ...]
    #: Parts that are not carried although the table is carried: checks, indexes, defaults, columns.
    left_out: tuple[str, ...]
    forecast: TableForecast | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Assessment of a source."""

    server: str
    #: Database and host.
    place: str
    version: str  # the version of VENUS
    taken_at: str
    tables: tuple[AssessedTable, ...]
    findings: tuple[Finding, ...]
    numberings: tuple[Numbering, ...]
    others: tuple[OtherObject, ...]
    unknown: tuple[str, ...]
    forecast: Forecast
    facts: tuple[SourceFact, ...] = ()
    #: Script for the database's own client that fixes refused tables and missing privileges.
    script: str = ""
    #: The alternative without a DBA: lines for the configuration.
    exclusion: str = field(default="")
    #: Whether the source could follow a new target after a cut-over; None = its kind cannot.
    way_back: WayBack | None = None
    #: Lines of [targets.NAME.columns] for columns whose names look personal.
    masks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Database, host and the server's version."""
        return f"{self.place} ({self.server})" if self.place else self.server

    @property
    def carried_tables(self) -> tuple[AssessedTable, ...]:
        """The tables that VENUS carries."""
        return tuple(t for t in self.tables if not t.refused)

    @property
    def refused_tables(self) -> tuple[AssessedTable, ...]:
        """The tables that VENUS refuses."""
        return tuple(t for t in self.tables if t.refused)

    @property
    def kinds(self) -> Mapping[str, list[str]]:
        """Names of the objects that VENUS does not carry, by kind."""
        found: dict[str, list[str]] = {}
        for other in self.others:
            found.setdefault(other.kind, []).append(other.name)
        return dict(sorted(found.items()))


def build_assessment(
    survey: Survey,
    schemas: Seq[TableSchema],
    findings: Seq[Finding],
    *,
    speed: float,
    version: str,
    taken_at: str,
    transactional: bool,
    place: str = "",
) -> Assessment:
    """Build an assessment from the dialect's survey, dictionary and check."""
    by_name = {schema.qualified_name: schema for schema in schemas}
    blocking = [finding for finding in findings if finding.blocks]
    tables = []
    for size in survey.sizes:
        refused = tuple(dict.fromkeys(f.message for f in blocking if _is_about(f, size.qualified_name)))
        tables.append(_assess_table(size, by_name.get(size.qualified_name), refused, survey, speed))
    carried = [t for t in tables if not t.refused]
    unknown = list(survey.unknown)
    if nameless := [t.size.qualified_name for t in carried if t.forecast is None]:
        unknown.append(f"the forecast leaves out {', '.join(nameless)}: their number of rows is unknown")
    forecasts = [t.forecast for t in carried if t.forecast]
    forecast = forecast_source(forecasts, sum(t.size.rows or 0 for t in carried), speed)
    return Assessment(
        server=survey.server,
        place=place,
        version=version,
        taken_at=taken_at,
        tables=tuple(tables),
        findings=tuple(findings),
        numberings=survey.numberings,
        others=survey.others,
        unknown=tuple(unknown),
        forecast=add_log_rates(forecast, survey.log_rates, survey.pace),
        facts=survey.facts,
        script=build_script(findings, transactional=transactional),
        exclusion=build_exclusion([t.size.qualified_name for t in tables if t.refused]),
        masks=tuple(suggest_masks(schemas)),
    )


def _is_about(finding: Finding, table: str) -> bool:
    return finding.where == table or finding.where.startswith(f"{table}.")


def _assess_table(
    size: TableSize, schema: TableSchema | None, refused: tuple[str, ...], survey: Survey, speed: float
) -> AssessedTable:
    if schema is None:
        reasons = refused or ("it is not among the tables that can be captured: see the findings",)
        return AssessedTable(size=size, columns=0, types={}, refused=reasons, left_out=(), forecast=None)
    return AssessedTable(
        size=size,
        columns=len(schema.columns),
        types=dict(Counter(column.source_type.lower() for column in schema.columns).most_common()),
        refused=refused,
        left_out=tuple(f"{left.what} {left.name}".rstrip() + f": {left.reason}" for left in schema.left_out),
        forecast=forecast_table(size, len(schema.columns), _key_bytes(schema), survey.pace, speed),
    )


def _key_bytes(schema: TableSchema) -> int:
    """Return about how many bytes a key has."""
    return sum(_column_bytes(column) for column in schema.columns if column.name in schema.key)


def _column_bytes(column: Column) -> int:
    """Return about how many bytes a value of a key column has."""
    if column.type.kind in (Kind.TEXT, Kind.CHAR) and column.type.length:
        return min(column.type.length, _LENGTH_MAX) // 2 or 1
    return 16 if column.type.kind is Kind.UUID else _KEY_COLUMN_BYTES


#: The figures of a forecast, of a table and of the source.
_FIGURES = ("broker_bytes", "target_bytes", "changes_per_s", "trigger_ms_per_s", "log_bytes_per_hour")
_FORECAST = {f"{name}_seconds": f"{name}_s" for name in ("fill", "read", "load", "cutover")}
_FORECAST |= {name: name for name in ("rows", "speed", "peak_changes_per_s", "peak_trigger_ms_per_s", *_FIGURES)}
_FORECAST |= {
    name: name for log in ("redo", "undo") for name in (f"{log}_bytes_per_hour", f"{log}_with_venus_bytes_per_hour")
}


def to_document(found: Assessment) -> dict[str, Any]:
    """Return the assessment as a JSON document; unknown figures are null."""
    f = found.forecast
    return {
        "format": FORMAT,
        "server": found.server,
        "place": found.place,
        "version": found.version,
        "taken_at": found.taken_at,
        "facts": {fact.what: fact.value for fact in found.facts},
        "tables": [_table_document(t) for t in found.tables],
        "carried": len(found.carried_tables),
        "refused": len(found.refused_tables),
        "findings": [
            {"where": x.where, "message": x.message, "way_out": x.remedy, "blocks": x.blocks, "statements": [*x.script]}
            for x in found.findings
        ],
        "script": found.script,
        "exclude": found.exclusion,
        "suggested_masks": list(found.masks),
        "not_carried": {
            "sequences": [
                {"name": n.name, "table": n.table, "column": n.column, "next": n.next_value} for n in found.numberings
            ],
            "objects": found.kinds,
        },
        "forecast": {name: getattr(f, figure) for name, figure in _FORECAST.items()}
        | {"formulas": {line.what: line.formula for line in f.lines}},
        "unknown": list(found.unknown),
        "fall_back": _way_back_document(found.way_back),
    }


def _way_back_document(found: WayBack | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "obstacles": [obstacle.line for obstacle in found.obstacles],
        "could_not_come_back": [loss.document for loss in found.losses],
    }


def format_way_back(found: WayBack | None) -> list[str]:
    """Return the lines about a fall-back to the source; [] for a source that cannot follow a target."""
    if found is None:
        return []
    verdict = f"forbidden by {len(found.obstacles)} of these" if found.obstacles else "nothing forbids it"
    lines = [f"a fall-back (`venus cutover --fall-back`): {verdict}"]
    lines += [f"  ! {obstacle.line}" for obstacle in found.obstacles[:_OBSTACLES_SHOWN_MAX]]
    if (more := len(found.obstacles) - _OBSTACLES_SHOWN_MAX) > 0:
        lines.append(f"  ... and {more:,} more: --json")
    return lines + format_losses([loss.document for loss in found.losses if not loss.remedy])


def _table_document(t: AssessedTable) -> dict[str, Any]:
    return {
        "table": t.size.qualified_name,
        "carried": not t.refused,
        "refused": list(t.refused),
        "rows": t.size.rows,
        "rows_counted": t.size.counted,
        "data_bytes": t.size.data_bytes,
        "index_bytes": t.size.index_bytes,
        "largest_value_bytes": t.size.largest_bytes,
        "attached": list(t.size.attached),
        "columns": t.columns,
        "types": dict(t.types),
        "left_out": list(t.left_out),
        "fill_seconds": t.forecast.read_s + t.forecast.load_s if t.forecast else None,
    } | {name: getattr(t.forecast, name, None) for name in ("row_bytes", *_FIGURES)}


#: A remedy of the check is a statement if it begins and ends like one.
_STATEMENT = re.compile(r"^(?:(?:GRANT|ALTER|CREATE|SET|EXEC|ANALYZE)\b[^;]*;\s*)+$", re.DOTALL)
#: A placeholder that the operator has to fill in.
_OPEN = re.compile(r"\.\.\.")


def build_script(findings: Seq[Finding], *, transactional: bool) -> str:
    """Return statements for all blocking findings, or a comment where none helps; "" if nothing blocks."""
    blocking = [finding for finding in findings if finding.blocks]
    if not blocking:
        return ""
    head = "-- VENUS assessment: what blocks, and how to fix it. Read it before you run it."
    return "\n\n".join([head, *_script_paragraphs(blocking, transactional=transactional)]) + "\n"


def _script_paragraphs(findings: Iterable[Finding], *, transactional: bool) -> Iterator[str]:
    """Yield the part of the script about each finding: a comment, and the statements that fix it."""
    for finding in findings:
        remark = f"-- {_join_lines(finding.where)}: {_join_lines(finding.message)}"
        statements = "".join(f"{statement.rstrip().rstrip(';')};\n" for statement in finding.script).rstrip()
        if statements:
            ways = f"-- or: {_join_lines(finding.remedy)}" if _has_other_remedy(finding) else ""
            body = f"BEGIN;\n{statements}\nCOMMIT;" if transactional else statements
            yield "\n".join(filter(None, (remark, body, ways)))
        elif is_statement(finding.remedy):
            yield f"{remark}\n{finding.remedy}"
        else:
            yield f"{remark}\n-- fix: {_join_lines(finding.remedy or 'exclude the table')}"


def _has_other_remedy(finding: Finding) -> bool:
    """Return whether a finding has a remedy besides its script."""
    return bool(finding.remedy) and finding.remedy not in finding.script


def is_statement(text: str) -> bool:
    """Return whether a remedy is a SQL statement that can be executed unchanged."""
    return bool(_STATEMENT.match(text)) and not _OPEN.search(text)


def build_exclusion(tables: Seq[str]) -> str:
    """Return the lines of venus.toml that exclude these tables; "" without tables."""
    if not tables:
        return ""
    names = ",\n".join(f'    "{_quote(name)}"' for name in tables)
    return f"[source]\nexclude = [\n{names},\n]\n"


def _quote(name: str) -> str:
    """Return a name as a TOML string."""
    return "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in name)


def _join_lines(text: str) -> str:
    return " ".join(text.splitlines())


#: Seconds that the probe takes on the machine on which the constants of forecast.py were measured.
REFERENCE_S = 0.2
_ROWS = 4_000
_ROUNDS = 50
PARTS = 10
_TEXT = LogicalType(kind=Kind.TEXT)
_SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="probe",
    name="probe",
    columns=tuple(Column(name=f"c{n}", number=n + 1, type=_TEXT) for n in range(8)),
    key=("c0",),
)


def measure_speed(clock: Callable[[], float] = time.process_time) -> float:
    """Return by what factor a core of this machine is slower than one of the benchmark machine.

    The result excludes other load on the machine, which may be different during the fill. Other load also makes this
    process use more CPU time, through shared caches and hyper-threads, so only the quickest part counts.
    """
    return min(measure_parts(clock)) * PARTS / REFERENCE_S


def measure_parts(clock: Callable[[], float]) -> list[float]:
    """Convert rows from columns to COPY's format, in equal parts of work; return the duration of each part."""
    layout = Layout.of(_SCHEMA)
    columns = [[f"{name} of row {row}" for row in range(_ROWS)] for name in "abcdefgh"]
    to_copy(*from_columns(columns, layout), layout)  # the first use imports modules, which must not be measured
    found = []
    for _ in range(PARTS):
        started = clock()
        for _ in range(_ROUNDS // PARTS):
            to_copy(*from_columns(columns, layout), layout)
        found.append(clock() - started)
    return found


#: How often the counters of changes are read while they are watched.
WATCH_EVERY_S = 10.0
NOT_COUNTED = "peak of the changes: this database counts none that VENUS can read"


def watch_changes(
    settings: Settings, found: Assessment, duration_s: float, wait: Callable[[float], None]
) -> Assessment:
    """Return the assessment with the highest rate of changes within this time; `wait` waits for a number of seconds."""
    chosen = settings.source
    request = SurveyRequest(include=chosen.tables, exclude=chosen.exclude, sample_s=0.0)
    readings, until = [], time.monotonic() + duration_s
    while True:
        read = survey(settings, request)
        counted = {size.qualified_name: size.changes for size in read.sizes if size.changes is not None}
        readings.append((time.monotonic(), counted))
        if not counted or readings[-1][0] >= until:
            break
        wait(min(WATCH_EVERY_S, max(0.0, until - readings[-1][0])))
    peak = find_peak(readings)
    if peak is None:
        return replace(found, unknown=(*found.unknown, NOT_COUNTED))
    return replace(found, forecast=add_peak(found.forecast, peak, read.pace))


def assess(settings: Settings, source: Source, *, count_rows: bool, version: str, taken_at: str) -> Assessment:
    """Assess a source, also one without an installation of VENUS."""
    include, exclude = settings.source.tables, settings.source.exclude
    schemas = source.dictionary.read_tables(include, exclude)
    findings = [*source.installer.check(include, exclude), *source.installer.find_large_rows(include, exclude)]
    found = survey(settings, SurveyRequest(include=include, exclude=exclude, count_rows=count_rows))
    place = describe_database(settings.source.url.get_secret_value())
    assessment = build_assessment(
        found,
        schemas,
        findings,
        place=place,
        speed=measure_speed(),
        version=version,
        taken_at=taken_at,
        transactional=source.capabilities.transactional_ddl,
    )
    carried = {table.size.qualified_name for table in assessment.carried_tables}
    try:
        way_back = assess_way_back(settings, [schema for schema in schemas if schema.qualified_name in carried])
    except VenusError as error:
        return replace(assessment, unknown=(*assessment.unknown, f"whether it could fall back: {error}"))
    return replace(assessment, way_back=way_back)
