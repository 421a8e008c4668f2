"""Makes an assessment: the dialect's survey, its dictionary, its check, and how quick this machine is. Reads only."""

from __future__ import annotations

from venus.adapters.assess.report import Assessment, assessment
from venus.adapters.assess.speed import speed
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.registry import survey
from venus.adapters.dialects.surveying import Asked
from venus.adapters.dialects.urls import describe_database
from venus.config import Settings


def assess(settings: Settings, source: Source, *, count_rows: bool, version: str, taken_at: str) -> Assessment:
    """Look at a source that VENUS may not be installed at."""
    include, exclude = settings.source.tables, settings.source.exclude
    schemas = source.tables(include, exclude)
    findings = source.check(include, exclude)
    found = survey(settings, Asked(include=include, exclude=exclude, count_rows=count_rows))
    place = describe_database(settings.source.url.get_secret_value())
    return assessment(
        found, schemas, findings, place=place, speed=speed(), version=version, taken_at=taken_at,
        transactional=source.capabilities.transactional_ddl,
    )  # fmt: skip
