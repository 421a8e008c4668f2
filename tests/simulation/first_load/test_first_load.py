"""A first load during the first read ends equal to one cut, despite concurrent writes and kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.simulation.first_load.target import Violation
from tests.simulation.first_load.world import RULES, World


def run_histories(seeds: Iterable[int]) -> Counter[str]:
    """Run histories; return how often each rare event happened."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except (Violation, KeyError) as error:
            pytest.fail(f"seed {seed}: {error}\nreplay it: python -m tests.simulation.first_load {seed}")
        counts.update(world.counts)
    return counts


def test_a_hundred_histories_hold() -> None:
    assert run_histories(range(100))["killed"] > 50


@pytest.mark.full
def test_three_thousand_histories_reach_each_rare_state() -> None:
    counts = run_histories(range(1000, 4000))
    assert min(counts[name] for name in ("killed", "halted", "resync", "sweep at the end")) >= 5, counts


@pytest.mark.slow
def test_thirty_thousand_histories_hold() -> None:
    run_histories(range(10_000, 40_000))


#: For each rule, the seed of a history that breaks without the rule.
SEEDS = dict(zip(RULES, (10, 0, 0, 27, 137, 10, 10, 11, 33, 33), strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_a_history_breaks(rule: str) -> None:
    World(SEEDS[rule]).run()
    with pytest.raises((Violation, KeyError)):
        World(SEEDS[rule], rule).run()
