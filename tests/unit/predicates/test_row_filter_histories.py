"""After every batch a set has what WHERE finds of what the set above has; taken out, each mechanism is missed."""

from __future__ import annotations

import pytest

from tests.support.row_filter_histories import FAULTS, run_histories

STEPS = 20
PARTS = 8


def test_a_set_has_what_where_finds_at_every_level() -> None:
    leaves, fills, frozen = run_histories(range(1000), STEPS)

    assert leaves > 500
    assert fills > 3000
    assert frozen > 500


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hundred_thousand_histories_of_sets(part: int) -> None:
    size = 100_000 // PARTS
    leaves, fills, frozen = run_histories(range(2000 + part * size, 2000 + (part + 1) * size), STEPS)

    assert leaves > size // 2
    assert fills > 3 * size
    assert frozen > size // 2


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_taken_out_is_missed(fault: str) -> None:
    with pytest.raises(AssertionError, match="history"):
        run_histories(range(300), STEPS, fault)
