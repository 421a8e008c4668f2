"""An assessment's report on carried and refused tables, as a document and as a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from venus.adapters.assess.html import render_page, verdict
from venus.adapters.assess.report import Assessment, build_assessment, to_document
from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.dialects.survey_contract import LogRates, ReadingPace, SourceFact, Survey, TableSize
from venus.cli.assess import format_report
from venus.model import Column, Finding, Kind, LogicalType, TableSchema

PACE = ReadingPace(row_us=2.0, value_us=0.5, kib_us=8.0, trigger_us=50.0, log_row_bytes=40)
SURVEY = Survey(
    server="Some DB 1.0",
    pace=PACE,
    sizes=(
        TableSize(namespace="app", name="good", rows=10, counted=True),
        TableSize(namespace="app", name="bad", rows=5, counted=False),
        TableSize(namespace="app", name="bad_too", rows=None, counted=False),
        TableSize(namespace="app", name="goodness", rows=None, counted=False),
    ),
    numberings=(Numbering(namespace="app", next_value=11, table="good", column="id"),),
    others=(OtherObject(kind="view", name="app.v"), OtherObject(kind="job", name="app.j")),
    unknown=("size of nothing",),
)
FINDINGS = (
    Finding(where="app.bad", message="no key", remedy="exclude the table", blocks=True),
    Finding(where="app.bad_too.shape", message="cannot be carried", blocks=True),
    Finding(where="app.good", message="worth knowing"),
    Finding(where="privileges", message="not granted", remedy="GRANT A TO B;", blocks=True),
)


def schema(name: str) -> TableSchema:
    column = Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8), source_type="BIGINT")
    return TableSchema(table_id=0, version=1, namespace="app", name=name, columns=(column,), key=("id",))


def assess_survey(survey: Survey = SURVEY, findings: tuple[Finding, ...] = FINDINGS) -> Assessment:
    schemas = [schema("good"), schema("goodness")]
    return build_assessment(survey, schemas, findings, speed=1.0, version="1", taken_at="now", transactional=False)


def test_findings_refuse_their_own_table_only() -> None:
    found = assess_survey()

    assert {t.size.name: t.refused for t in found.refused_tables} == {
        "bad": ("no key",),
        "bad_too": ("cannot be carried",),
    }
    assert [t.size.name for t in found.carried_tables] == ["good", "goodness"]
    assert verdict(found) == "2 of 4 tables can be carried as they are; 3 findings to be settled first."


def test_a_table_without_a_known_size_is_named_and_left_out_of_the_forecast() -> None:
    found = assess_survey()

    assert found.forecast.rows == 10
    assert any("leaves out app.goodness" in text for text in found.unknown)


def test_a_table_that_the_dialect_does_not_list_is_refused_without_a_finding() -> None:
    found = assess_survey(findings=())

    assert {t.size.name for t in found.refused_tables} == {"bad", "bad_too"}
    assert all(t.refused[0] for t in found.refused_tables)


def test_the_document_is_json_and_lists_everything_not_carried() -> None:
    found = json.loads(json.dumps(to_document(assess_survey())))

    assert found["format"] == "venus-assessment/1"
    assert found["not_carried"]["objects"] == {"job": ["app.j"], "view": ["app.v"]}
    assert found["not_carried"]["sequences"][0]["column"] == "id"
    assert found["tables"][0]["types"] == {"bigint": 1}
    assert found["forecast"]["formulas"]


class _Links(HTMLParser):
    """Collects the links that a browser would fetch, and checks that elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_no_other_file_and_escapes_names() -> None:
    evil = replace(SURVEY, sizes=(TableSize(namespace="app", name="<script>alert(1)</script>", rows=1, counted=True),))
    shown = render_page(assess_survey(evil, (Finding(where="<b>", message="<i>", remedy="<u>", blocks=True),)))
    parser = _Links()
    parser.feed(shown)

    assert parser.fetched == []
    assert parser.open == []
    assert "<script" not in shown
    assert "url(" not in shown
    assert re.search(r"\$\w", shown) is None


def test_sentences_wrap_on_a_phone_and_commands_are_code() -> None:
    remedy = "run `venus install-triggers` with <u> & more"
    page = render_page(
        assess_survey(SURVEY, (Finding(where="app.good", message="no key", remedy=remedy, blocks=True),))
    )
    assert "run <code>venus install-triggers</code> with &lt;u&gt; &amp; more" in page
    assert "first fill and load (<code>venus migrate</code>)" in page
    assert page.count('<table class="words">') == 2
    assert ".words td { display: block" in page


def test_a_page_without_tables_says_so() -> None:
    assert "No table matches" in render_page(assess_survey(replace(SURVEY, sizes=()), ()))


def test_facts_attached_objects_and_findings_with_a_remedy_are_in_document_page_and_terminal() -> None:
    busy = replace(SURVEY.sizes[0], largest_bytes=5 << 20, attached=("trigger theirs", "materialized view log M"))
    facts = (SourceFact(what="role", value="primary"),)
    survey = replace(SURVEY, sizes=(busy,), facts=facts, log_rates=LogRates(redo=10.0))
    direct = Finding(where="app.good", message="3 statements write it by direct path", remedy="measure these loads")
    found = assess_survey(survey, (direct, Finding(where="app.good", message="worth knowing")))

    document = to_document(found)
    assert (document["facts"], document["forecast"]["redo_bytes_per_hour"]) == ({"role": "primary"}, 36_000.0)
    assert document["tables"][0]["largest_value_bytes"] == 5 << 20
    assert document["tables"][0]["attached"] == list(busy.attached)
    page = render_page(found)
    assert all(text in page for text in ("primary", "5.0 MiB", "trigger theirs", "by direct path"))
    lines = [line for line in format_report(found) if isinstance(line, str)]
    assert "role: primary" in lines
    assert "app.good has trigger theirs, materialized view log M" in lines
    assert "app.good: 3 statements write it by direct path: measure these loads" in lines
    assert not any("worth knowing" in line for line in lines)
