"""Operators' requests in histories of whole brokers are executed, and every invariant still holds."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.simulation.brokers.operator_requests import OperatedWorld


def run_histories(seeds: range) -> Counter[str]:
    """Run histories; return how often each rare state was reached."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = OperatedWorld(seed)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}")
        counts.update(world.loop.counts)
        gc.collect()
    return counts


WISHES = ("led by the requested broker", "a leader was not to be had", "a replica has left", "a replica has come")


def test_requests_are_executed_and_lose_nothing() -> None:
    counts = run_histories(range(20, 35))  # these seeds reach each outcome

    assert {name: counts[name] for name in WISHES if not counts[name]} == {}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_five_hundred_histories_with_operators_hold() -> None:
    counts = run_histories(range(500))

    assert {name: counts[name] for name in WISHES if counts[name] < 10} == {}
