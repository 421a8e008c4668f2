"""At every cut of every history a target has the rows that the source's WHERE finds; no mechanism is superfluous."""

from __future__ import annotations

import pytest

from tests.support.predicates.predicate_histories import FAULTS, run_histories

STEPS = 20
PARTS = 8


def test_the_target_has_the_rows_of_where() -> None:
    leaves, changes = run_histories(range(600), STEPS)

    assert leaves > 500
    assert changes > 300


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hundred_thousand_histories_hold(part: int) -> None:
    size = 100_000 // PARTS
    leaves, changes = run_histories(range(1000 + part * size, 1000 + (part + 1) * size), STEPS)

    assert leaves > size
    assert changes > size // 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disabled_mechanism_is_noticed(fault: str) -> None:
    with pytest.raises(AssertionError, match="history"):
        run_histories(range(300), STEPS, fault)
