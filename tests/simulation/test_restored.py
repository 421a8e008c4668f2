"""Restored backups of data directories lose nothing, because a broker with an old store counts as a new member."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.simulation.judge import Violation
from tests.simulation.restored import RestoringBrokers, RestoringWorld

RESTORED = "restored from a backup"


def run_histories(kind: type[RestoringWorld | RestoringBrokers], seeds: range) -> Counter[str]:
    """Run histories; return how often each rare state was reached."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = kind(seed)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"{kind.__name__}, seed {seed}: {error}")
        counts.update(world.loop.counts)
        gc.collect()
    return counts


def test_logs_from_backups_are_followed_and_lose_nothing() -> None:
    assert run_histories(RestoringWorld, range(40))[RESTORED] > 40


def test_brokers_from_backups_lose_nothing() -> None:
    assert run_histories(RestoringBrokers, range(10))[RESTORED] > 10


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_five_hundred_histories_with_backups_hold() -> None:
    assert run_histories(RestoringBrokers, range(500))[RESTORED] > 500


def test_a_restored_store_that_counts_as_the_same_member_loses_acknowledged_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RestoringWorld, "set_back_is_another", False)
    with pytest.raises(Violation) as found:
        RestoringWorld(WITHOUT_THE_RULE).run()
    assert found.value.invariant == "each broker that may lead has every safe entry"


#: Seed of a history that shows the loss.
WITHOUT_THE_RULE = 1
