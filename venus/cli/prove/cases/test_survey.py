"""Surveys of each dialect before an installation: their figures, and that they leave nothing behind."""

from __future__ import annotations

import re
import time

import pytest

from venus.adapters.assess.html import render_page
from venus.adapters.assess.report import Assessment, assess
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.adapters.dialects.registry import open_source, survey
from venus.adapters.dialects.survey_contract import Survey, SurveyRequest, TableSize
from venus.config import Settings

ROWS = 300


@pytest.fixture
def settings(place: Place) -> Settings:
    """Return settings whose source is the place of the cases."""
    return place.settings()


@pytest.fixture
def shop(place: Place, app: Application) -> Application:
    """Create one table that can be carried, one that cannot, and a view."""
    types = place.types
    run_transaction(app, f"CREATE TABLE item (id {types['int']} NOT NULL PRIMARY KEY, name {types['text']})")
    run_transaction(app, f"CREATE TABLE bare (v {types['int']})", "CREATE VIEW shown AS SELECT id FROM item")
    for number in range(ROWS):
        app.execute("INSERT INTO item VALUES (?, ?)", number, f"item number {number}")
    app.commit()
    place.analyze(app, "item", "bare")
    return app


def read_survey(settings: Settings, *, count_rows: bool = False, sample_s: float = 20.0) -> Survey:
    return survey(settings, SurveyRequest(include=["*"], exclude=[], count_rows=count_rows, sample_s=sample_s))


def table_size(found: Survey, name: str) -> TableSize:
    return next(size for size in found.sizes if size.name == name)


def read_assessment(settings: Settings, source: Source) -> Assessment:
    return assess(settings, source, count_rows=True, version="0.1", taken_at="2026-11-22")


def test_rows_are_counted_when_that_is_asked_for(shop: Application, settings: Settings) -> None:
    item = table_size(read_survey(settings, count_rows=True), "item")

    assert (item.rows, item.counted) == (ROWS, True)


def test_statistics_are_near_enough(shop: Application, settings: Settings) -> None:
    item = table_size(read_survey(settings), "item")

    assert item.rows is not None
    assert ROWS * 0.8 < item.rows < ROWS * 1.2


def test_sizes_and_samples(place: Place, shop: Application, settings: Settings) -> None:
    found = read_survey(settings)
    item = table_size(found, "item")

    assert {size.name for size in found.sizes} == {"item", "bare"}
    assert item.data_bytes is not None
    assert item.data_bytes >= ROWS
    assert item.sample is not None
    assert item.sample.rows == ROWS
    # on Oracle the text is a CLOB, which no sample reads
    per_row = item.sample.nbytes / ROWS
    assert (3 <= per_row <= 6) if place.empty_is_null else (15 <= per_row <= 30)


def test_a_survey_that_has_no_time_left_takes_no_sample(shop: Application, settings: Settings) -> None:
    assert [size.sample for size in read_survey(settings, sample_s=0.0).sizes] == [None, None]


def test_what_is_not_carried_is_listed(shop: Application, settings: Settings) -> None:
    assert any(other.kind == "view" and other.name.endswith("shown") for other in read_survey(settings).others)


def test_changes_are_counted_or_said_to_be_unknown(place: Place, shop: Application, settings: Settings) -> None:
    if place.dialect == "postgresql":
        shop.close()  # a session reports its changes at its end, or after a while
        deadline = time.monotonic() + 120
        while table_size(read_survey(settings), "item").changes != ROWS:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert table_size(read_survey(settings), "item").over_s > 0
    elif place.dialect != "oracle":  # the database counts them with a delay
        found = read_survey(settings)
        assert table_size(found, "item").changes is None
        assert any(text.startswith("change rate: ") for text in found.unknown)


def test_an_assessment_names_the_refused_table_and_offers_a_way_out(
    shop: Application, settings: Settings, source: Source
) -> None:
    found = read_assessment(settings, source)

    assert [t.size.name for t in found.refused_tables] == ["bare"]
    assert [t.size.name for t in found.carried_tables] == ["item"]
    assert found.forecast.rows == ROWS
    assert "bare" in found.script
    assert found.exclusion.startswith("[source]\nexclude = [\n")
    shown = render_page(found)
    assert "bare" in shown
    assert re.search(r"\$[a-z]", shown) is None, "a place of the template that was not filled in"


def test_without_the_refused_tables_nothing_blocks(shop: Application, settings: Settings) -> None:
    with_exclusion = settings.model_copy(update={"source": settings.source.model_copy(update={"exclude": ["bare"]})})
    source = open_source(with_exclusion)
    try:
        found = read_assessment(with_exclusion, source)
    finally:
        source.close()

    assert (found.script, found.exclusion, found.refused_tables) == ("", "", ())


def test_nothing_is_left_behind(place: Place, shop: Application, settings: Settings, source: Source) -> None:
    before = place.dump()

    read_assessment(settings, source)

    assert place.dump() == before
    assert len(shop.execute("SELECT id FROM item")) == ROWS
