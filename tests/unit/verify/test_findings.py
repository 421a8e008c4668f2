"""The overall result of a comparison, and its exit code for scripts."""

from __future__ import annotations

import pytest

from venus.adapters.verify.findings import (
    ComparisonVerdict,
    DifferenceKind,
    Fault,
    RowDifference,
    TableResult,
    VerifyResult,
    render_page,
)
from venus.adapters.verify.repair import RepairResult
from venus.cli.invocation import Invocation
from venus.cli.verify import print_result

WRONG = RowDifference(table="main.t", key={"id": "1"}, kind=DifferenceKind.MISSING, fault=Fault.APPLY, columns=())


def result(*differences: RowDifference, cut_short: bool) -> VerifyResult:
    table = TableResult(table="main.t", differences=list(differences), cut_short=cut_short)
    return VerifyResult(business="main", target="main", leg="ends", tables=[table])


def test_an_incompletely_compared_table_is_not_reported_as_the_same() -> None:
    """Rows in flight count against the limit, which may be reached without a wrong row."""
    assert result(cut_short=True).verdict is ComparisonVerdict.UNDECIDED
    assert result(cut_short=False).verdict is ComparisonVerdict.SAME
    assert result(WRONG, cut_short=True).verdict is ComparisonVerdict.DIFFERENT


@pytest.mark.parametrize(("cut_short", "code"), [(False, 0), (True, 3)])
def test_a_repair_does_not_claim_anything_about_uncompared_rows(cut_short: bool, code: int) -> None:
    repaired = RepairResult(emitted={"main.t": 1}, repaired=1)
    assert print_result(Invocation(), result(WRONG, cut_short=cut_short), repaired, None, would=False) == code


def test_the_html_report_shows_the_notes_of_the_run() -> None:
    found = result(cut_short=False)
    assert "<ul>" not in render_page(found)
    found.notes += ["the source is not compared: it is down", "main.u <is> not captured any more (dropped)"]
    page = render_page(found)
    assert "<li>the source is not compared: it is down</li>" in page
    assert "<li>main.u &lt;is&gt; not captured any more (dropped)</li>" in page
