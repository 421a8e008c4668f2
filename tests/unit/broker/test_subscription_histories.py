"""Subscriptions by content have exactly the rows of the source, and live changes are what they are called."""

from __future__ import annotations

import pytest

from tests.support.predicates.subscription_faults import FAULTS
from tests.support.predicates.subscription_histories import run_histories
from venus.errors import VenusError

STEPS = 20
#: Every mechanism that is taken out is noticed within so many histories.
NOTICED = 400


def test_some_histories() -> None:
    assert min(run_histories(range(1, 13), STEPS).values()) > 0


@pytest.mark.full
def test_several_hundred_histories() -> None:
    run_histories(range(300), STEPS)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ten_thousand_histories() -> None:
    run_histories(range(300, 10_300), STEPS)


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mechanism_that_is_missing_is_noticed(fault: str) -> None:
    with pytest.raises((AssertionError, VenusError)):
        run_histories(range(NOTICED), STEPS, fault)
