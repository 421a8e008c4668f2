"""After every batch a set has the rows that WHERE finds in the set above; no mechanism is superfluous."""

from __future__ import annotations

import pytest

from tests.support.predicates.row_filter_histories import FAULTS, run_histories

STEPS = 20
PARTS = 8


@pytest.mark.full
def test_a_set_has_the_rows_of_where_at_every_level() -> None:
    found = run_histories(range(400), STEPS)

    assert found["leaves"] > 200
    assert found["fills"] > 1200
    assert min(found.values()) > 40, found


# one takes 27 ms of CPU: `make test-all` runs an eighth of them, the nightly run the others
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, PARTS))])
def test_a_hundred_thousand_histories_of_sets_hold(part: int) -> None:
    size = 100_000 // PARTS
    found = run_histories(range(2000 + part * size, 2000 + (part + 1) * size), STEPS)

    assert found["fills"] > 3 * size
    assert min(found.values()) > size // 10, found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disabled_mechanism_is_noticed(fault: str) -> None:
    with pytest.raises(AssertionError, match="history"):
        run_histories(range(300), STEPS, fault)
