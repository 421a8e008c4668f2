"""What a comparison comes to as a whole, and the exit code that scripts believe."""

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


def test_a_table_that_was_not_compared_to_its_end_is_not_the_same() -> None:
    """Rows on their way count against the limit: it may be reached without one that is wrong."""
    assert result(cut_short=True).verdict is ComparisonVerdict.UNDECIDED
    assert result(cut_short=False).verdict is ComparisonVerdict.SAME
    assert result(WRONG, cut_short=True).verdict is ComparisonVerdict.DIFFERENT


@pytest.mark.parametrize(("cut_short", "code"), [(False, 0), (True, 3)])
def test_a_repair_of_what_was_found_says_nothing_of_what_was_not_looked_at(cut_short: bool, code: int) -> None:
    repaired = RepairResult(emitted={"main.t": 1}, repaired=1)
    assert print_result(Invocation(), result(WRONG, cut_short=cut_short), repaired, None, would=False) == code


def test_the_html_report_shows_the_notes_of_the_run() -> None:
    found = result(cut_short=False)
    assert "<ul>" not in render_page(found)
    found.notes += ["the source is not compared: it is down", "main.u <is> not captured any more (dropped)"]
    page = render_page(found)
    assert "<li>the source is not compared: it is down</li>" in page
    assert "<li>main.u &lt;is&gt; not captured any more (dropped)</li>" in page
