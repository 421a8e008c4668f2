"""A captured table that the source no longer has: verify names it and the remedy, and compares the other tables."""

from __future__ import annotations

import pytest

from tests.integration.verify.conftest import VerifiedSource
from venus.adapters.verify.findings import VerifyResult

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def reason(sample: VerifiedSource) -> tuple[str, str]:
    """Return the name of the table, and the reason why it could not be compared."""
    result: VerifyResult = sample.e2e.verify(tables=("word",))
    (table,) = result.tables
    ((why,),) = [[undecided.reason for undecided in table.undecided]]
    return table.table, why


def test_a_table_that_was_dropped_is_named_with_the_remedy(sample: VerifiedSource) -> None:
    e2e = sample.e2e
    e2e.stop("capture")
    sample.run("DROP TABLE word")

    name, why = reason(sample)
    assert why == (
        f"{name} at the source is not the captured table: it was altered, dropped or renamed; "
        "`venus status` says what to do once `venus sync` has noticed the change"
    )

    e2e.start("capture")
    e2e.until(lambda: "is not the captured table" not in reason(sample)[1], "capture to see it")
    assert reason(sample)[1].startswith(
        f"it is not at the source any more: `venus uninstall-triggers {name}` takes it out of capture; "
    )
    assert not e2e.verify(tables=("item",)).undecided_rows
