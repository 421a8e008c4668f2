"""Runs an assessment: the dialect's survey, dictionary and check, and the speed of this machine. Read-only."""

from __future__ import annotations

import time
from collections.abc import Callable

from venus.adapters.assess.report import Assessment, build_assessment
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.registry import describe_database, survey
from venus.adapters.dialects.survey_contract import SurveyRequest
from venus.codec.columns import from_columns
from venus.codec.copy_text import to_copy
from venus.codec.layout import Layout
from venus.config import Settings
from venus.model import Column, Kind, LogicalType, TableSchema

#: What the probe takes where the constants of forecast.py were measured.
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
    """Return how many times as long a core takes here as on the machine of the bench.

    Other load of the machine does not count, because it may be different during the fill. Other work costs
    processor time too, by caches and by cores that are two of one, so the quickest part counts.
    """
    return min(measure_parts(clock)) * PARTS / REFERENCE_S


def measure_parts(clock: Callable[[], float]) -> list[float]:
    """Do the work in equal parts; return the duration of each."""
    layout = Layout.of(_SCHEMA)
    columns = [[f"{name} of row {row}" for row in range(_ROWS)] for name in "abcdefgh"]
    to_copy(*from_columns(columns, layout), layout)  # what is imported at the first use is not the work
    found = []
    for _ in range(PARTS):
        started = clock()
        for _ in range(_ROUNDS // PARTS):
            to_copy(*from_columns(columns, layout), layout)
        found.append(clock() - started)
    return found


def assess(settings: Settings, source: Source, *, count_rows: bool, version: str, taken_at: str) -> Assessment:
    """Assess a source; VENUS need not be installed there."""
    include, exclude = settings.source.tables, settings.source.exclude
    schemas = source.dictionary.read_tables(include, exclude)
    findings = source.installer.check(include, exclude)
    found = survey(settings, SurveyRequest(include=include, exclude=exclude, count_rows=count_rows))
    place = describe_database(settings.source.url.get_secret_value())
    return build_assessment(
        found, schemas, findings, place=place, speed=measure_speed(), version=version, taken_at=taken_at,
        transactional=source.capabilities.transactional_ddl,
    )  # fmt: skip
