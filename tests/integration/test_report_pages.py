"""The HTML reports of commands in a real browser: in dark and light mode, on a phone and on a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browsers import find_low_contrasts, is_wider_than_screen, open_page, run_browser
from tests.unit.assess.test_report import assess_survey
from venus.adapters.assess import html as assess_page
from venus.adapters.verify import findings
from venus.adapters.verify.findings import (
    ColumnDifference,
    DifferenceKind,
    Fault,
    RowDifference,
    TableResult,
    UndecidedRow,
    VerifyResult,
)
from venus.adapters.verify.slice_tasks import ComparisonSide
from venus.cli.prove import html as proof_page
from venus.cli.prove.results import FAILED, PASSED, CaseResult, ProofReport, ReportSection

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

LONG = "a_name_without_any_place_to_break_it_" * 6


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with run_browser() as found:
        yield found


def render_comparison(*differences: RowDifference, undecided: bool = False) -> str:
    rows = [UndecidedRow(table=LONG, key={"id": "7"}, reason=LONG)] if undecided else []
    table = TableResult(table=f"main.{LONG}", leg="ends", rows=9, differences=[*differences], undecided=rows)
    result = VerifyResult(business="main", target="main", leg="ends", tables=[table], notes=[LONG])
    return findings.render_page(result)


def render_differences() -> str:
    values: dict[str, str | bytes | None] = {ComparisonSide.SOURCE.value: LONG, ComparisonSide.TARGET.value: None}
    return render_comparison(
        RowDifference(
            table="main.t",
            key={"id": LONG},
            kind=DifferenceKind.DIFFERENT,
            fault=Fault.APPLY,
            columns=(ColumnDifference(column="v", values=values),),
            note=LONG,
        ),
        undecided=True,
    )


def render_proof() -> str:
    report = ProofReport(version="1", taken_at="now", dialect="oracle", seed=1, facts=[("version", LONG)])
    cases = [CaseResult(name=LONG, outcome=FAILED, why=LONG), CaseResult(name="short", outcome=PASSED)]
    report.sections.append(ReportSection(title=LONG, cases=cases))
    report.plans.append(("a plan", (LONG, LONG)))
    report.figures.append((LONG, 3.0, "rows/s"))
    return proof_page.render_page(report)


PAGES: dict[str, Callable[[], str]] = {
    "assessment": lambda: assess_page.render_page(assess_survey()),
    "same": render_comparison,
    "different": render_differences,
    "undecided": lambda: render_comparison(undecided=True),
    "proof": render_proof,
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_report_is_readable_in_every_mode_and_size(browser: Browser, tmp_path: Path, name: str, dark: bool) -> None:
    file = tmp_path / "report.html"
    file.write_text(PAGES[name](), encoding="utf-8")
    for width in (360, 1280):
        with open_page(browser, file.as_uri(), width=width, dark=dark) as seen:
            seen.page.evaluate("document.querySelectorAll('details').forEach(found => { found.open = true; })")
            assert find_low_contrasts(seen.page) == []
            assert not is_wider_than_screen(seen.page)
            assert seen.complaints == []
