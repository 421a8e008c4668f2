"""Content subscriptions have exactly the source's rows, and each live change has the right kind."""

from __future__ import annotations

import pytest

from tests.support.predicates.subscription_faults import FAULTS
from tests.support.predicates.subscription_histories import run_histories
from venus.errors import VenusError

STEPS = 20
#: Number of histories in which every disabled mechanism is noticed.
NOTICED = 400


def test_some_histories_hold() -> None:
    assert min(run_histories(range(1, 13), STEPS).values()) > 0


@pytest.mark.full
def test_several_hundred_histories_hold() -> None:
    run_histories(range(300), STEPS)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ten_thousand_histories_hold() -> None:
    run_histories(range(300, 10_300), STEPS)


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disabled_mechanism_is_noticed(fault: str) -> None:
    with pytest.raises((AssertionError, VenusError)):
        run_histories(range(NOTICED), STEPS, fault)
