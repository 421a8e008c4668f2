"""The survey that `venus assess` makes of every source: server, code, triggers of the application, largest value."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.conformance.places import Place
from venus.adapters.dialects.registry import survey
from venus.adapters.dialects.survey_contract import Survey, SurveyRequest, TableSize

pytestmark = pytest.mark.integration

LARGEST = 5_000
TRIGGERS = {
    "postgresql": (
        "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN\n  RETURN new;\nEND'",
        "CREATE TRIGGER theirs BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION noted()",
    ),
    "mysql": ("CREATE TRIGGER theirs BEFORE UPDATE ON t FOR EACH ROW SET NEW.v = NEW.v",),
    "sqlite": ("CREATE TRIGGER theirs AFTER UPDATE ON t BEGIN SELECT 1; END",),
    "oracle": ("CREATE TRIGGER theirs BEFORE UPDATE ON t FOR EACH ROW BEGIN :NEW.v := :NEW.v; END",),
}


def read_survey(place: Place, *, count_rows: bool = False) -> tuple[Survey, TableSize]:
    found = survey(place.settings(), SurveyRequest(include=["*"], exclude=[], count_rows=count_rows))
    return found, next(size for size in found.sizes if size.name == "t")


@pytest.mark.parametrize("count_rows", [False, True], ids=["sampled", "counted"])
def test_the_survey_names_the_server_and_the_code_that_runs_at_each_change(place: Place, *, count_rows: bool) -> None:
    t = place.types
    with closing(place.connect()) as app:
        app.execute(f"CREATE TABLE t (id {t['int']} NOT NULL PRIMARY KEY, v {t['text']})")
        app.execute(f"INSERT INTO t (id, v) VALUES (1, 'short'), (2, '{'x' * LARGEST}')")
        for statement in TRIGGERS[place.dialect]:
            app.execute(statement)
        app.commit()
        with closing(place.open()) as source:
            source.installer.install(["*"], [])

    found, size = read_survey(place, count_rows=count_rows)

    assert size.largest_bytes == LARGEST
    (attached,) = size.attached  # without VENUS's own triggers
    assert attached.startswith("trigger theirs")
    facts = {fact.what: fact.value for fact in found.facts}
    assert facts["character set"].replace("-", "").upper().startswith(("UTF8", "AL32UTF8"))
    has_redo = place.dialect != "sqlite" and not isinstance(place, StandInPlace)
    assert (found.log_rates.redo is not None) == has_redo
    if place.dialect == "postgresql":
        assert (facts["role"], facts["lines of code"]) == ("primary", "plpgsql 3")
