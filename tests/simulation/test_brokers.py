"""Short histories of whole brokers with producers and consumers (docs/explanation/replication.md).

A seed that fails is replayed exactly by `python -m tests.simulation.brokers SEED`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.simulation.brokers.disk import BUSINESS
from tests.simulation.brokers.rules import RULES
from tests.simulation.brokers.states import RARE
from tests.simulation.brokers.world import BrokerWorld
from tests.simulation.judge import Violation
from tests.simulation.patching import apply_edits
from tests.simulation.rules import Rule
from venus.broker.store import keys


def run_histories(seeds: Iterable[int]) -> Counter[str]:
    """Run histories; return how often each rare state was reached."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = BrokerWorld(seed)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}\nreplay it: python -m tests.simulation.brokers {seed}")
        counts.update(world.loop.counts)
        gc.collect()
    return counts


def test_histories_of_whole_brokers_hold() -> None:
    counts = run_histories(range(20))

    assert counts["cut applied"] > 200


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_two_thousand_histories_of_whole_brokers_hold_and_reach_every_rare_state() -> None:
    counts = run_histories(range(2000))

    assert {name: counts[name] for name in RARE if counts[name] < 20} == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_without_a_rule_an_invariant_breaks(rule: Rule) -> None:
    with apply_edits(rule.edits), pytest.raises(Violation, match=rule.invariant):
        BrokerWorld(rule.seed).run()


def test_a_leader_stops_rather_than_ship_a_damaged_entry() -> None:
    world = BrokerWorld(1)
    world.loop.run_until(2.0)
    leader = world.leading
    assert leader.business is not None
    index, life, shipped = leader.business.log.start, leader.life, list[tuple[bytes, ...]]()
    family = leader.disk.memory.families[keys.RLOG]
    key = keys.log_key(leader.business.number, index)
    family.values[key] = family.values[key][:-1] + bytes([family.values[key][-1] ^ 1])
    world.damaged = leader.disk.store

    leader.product._logs.read(BUSINESS, index, shipped.append)
    world.loop.run_until(2.1)

    assert shipped == []
    assert leader.life != life
    assert world.loop.counts["damage was found"] == 1
