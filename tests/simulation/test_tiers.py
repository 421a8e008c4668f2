"""Short histories of broker sets in tiers: a home, tandem sets, access sets, targets below them.

A seed that fails is replayed exactly by `python -m tests.simulation.tiers SEED`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.simulation.judge import Violation
from tests.simulation.patching import apply_edits
from tests.simulation.rules import Rule
from tests.simulation.tiers.rules import RULES
from tests.simulation.tiers.states import RARE
from tests.simulation.tiers.world import TierWorld

#: Check at the end of a history that needs a minute without activity, which costs 10 s of CPU.
_SLOW = {"A changed filter refills the mirror": pytest.mark.slow}


def run_histories(seeds: Iterable[int]) -> Counter[str]:
    """Run histories; return how often each rare state was reached."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = TierWorld(seed)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}\nreplay it: python -m tests.simulation.tiers {seed}")
        counts.update(world.loop.counts)
        gc.collect()
    return counts


def test_histories_of_sets_in_tiers_hold() -> None:
    counts = run_histories(range(10))

    assert counts["batch applied"] > 500
    assert counts["pulling ended: OffsetDiverged"] > 0


def test_a_restored_home_may_commit_the_same_batch_as_a_set_and_continue() -> None:
    """The set has the last batch of the lost history, which is also the first of the new one, in a newer epoch."""
    run_histories([7310010])


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_thousand_histories_of_sets_in_tiers_hold_and_reach_every_rare_state() -> None:
    counts = run_histories(range(1000))

    assert {name: counts[name] for name in RARE if counts[name] < 20} == {}


@pytest.mark.parametrize("rule", [pytest.param(r, marks=_SLOW.get(r.text, ()), id=r.text) for r in RULES])
def test_without_a_rule_an_invariant_breaks(rule: Rule) -> None:
    with apply_edits(rule.edits), pytest.raises(Violation, match=rule.invariant):
        TierWorld(rule.seed).run()
