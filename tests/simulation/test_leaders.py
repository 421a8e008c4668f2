"""Placement, elections and balance of many businesses; if any one of their rules is removed, a history breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.created import CreatedWorld
from tests.simulation.judge import Violation
from tests.simulation.leaders import LeaderWorld
from tests.simulation.patching import SourceEdit, apply_edits
from tests.simulation.rules import Rule

World = Callable[[int], LeaderWorld | CreatedWorld]


def _rule(text: str, where: str, old: str, new: str, seed: int, invariant: str) -> Rule:
    return Rule(text=text, edits=(SourceEdit(where=where, old=old, new=new),), seed=seed, invariant=invariant)


RULES = (
    _rule(
        "A broker hands over only what it leads",
        "leaders.Balancer._choose",
        " and moves[0].source != self._me",
        " and False",
        seed=0,
        invariant="a broker hands over what it leads",
    ),
    _rule(
        "Nothing is handed over for balance while a replica is missing or a lane is degraded",
        "leaders.Balancer.next_move",
        "waits or find_obstacle(known, live)",
        "waits",
        seed=7,
        invariant="nothing is handed over while a replica is missing or a lane is degraded",
    ),
    _rule(
        "One business is handed over at a time",
        "leaders.find_obstacle",
        "if known.successor:",
        "if False:",
        seed=35,
        invariant="one hand-over at a time",
    ),
    _rule(
        "A hand-over that failed is repeated after a while",
        "leaders.Balancer.next_move",
        "self._find_failed(records, now)",
        "[]",
        seed=4,
        invariant="a hand-over that failed is not repeated at once",
    ),
    _rule(
        "A business that another broker fails to hand over does not block the others",
        "leaders.Balancer._choose",
        "if now - since < 2 * AGAIN_S:",
        "if True:",
        seed=39,
        invariant="no broker leads far more than the others",
    ),
    _rule(
        "Only an imbalance that lasts is repaired",
        "leaders.Balancer.next_move",
        "now - self._since < self._uneven_s",
        "False",
        seed=2,
        invariant="a short imbalance is left alone",
    ),
    _rule(
        "The plan of the elections after a death counts those before it",
        "leaders.plan_elections",
        "schedule.assign(complete)",
        "pass",
        seed=0,
        invariant="the businesses of a dead broker spread over the survivors",
    ),
    _rule(
        "The broker that leads least is the next leader",
        "records._preference",
        "ranks.get(ballot.member.broker, inf), ",
        "",
        seed=0,
        invariant="the businesses of a dead broker spread over the survivors",
    ),
    _rule(
        "A healthy candidate comes first",
        "records._suitability",
        "not ballot.healthy, ",
        "",
        seed=8,
        invariant="an unhealthy broker is the last choice",
    ),
    _rule(
        "A draining broker gets no new business",
        "leaders.LeaderSchedule.assign",
        "return broker.draining, bool",
        "return bool",
        seed=3,
        invariant="a draining broker gets nothing new",
    ),
    _rule(
        "Replicas that share a site are replaced",
        "venus.broker.replicas.placement:ReplicaPlacement.next_record",
        "or replace_crowded(known, view)",
        "",
        seed=3,
        invariant="replicas are at different sites",
    ),
    _rule(
        "A replica goes to another site first",
        "venus.broker.replicas.placement:ClusterView.choose_replicas",
        "self.site_of(name) in sites, ",
        "",
        seed=8,
        invariant="replicas are at different sites",
    ),
    _rule(
        "The leader's replica is not the one that a repair takes away",
        "venus.broker.replicas.placement:replace_crowded",
        " and name != leader",
        "",
        seed=17,
        invariant="the leader's replica stays",
    ),
    _rule(
        "Replicas move to a broker that has hardly any",
        "venus.broker.replicas.placement:Rebalancer.next_record",
        "if after is not None:",
        "if False:",
        seed=6,
        invariant="replicas move to a new broker",
    ),
    _rule(
        "No replica moves for balance while another one is missing or moves",
        "venus.broker.replicas.placement:ReplicaBalancer.next_record",
        " or find_obstacle(records.values(), view.live)",
        "",
        seed=26,
        invariant="no replica moves for balance while another one is missing or moves",
    ),
    _rule(
        "The leader's replica is not the one that moves for balance",
        "venus.broker.replicas.placement:_can_move",
        " or known.leader.broker == source",
        "",
        seed=4,
        invariant="the leader's replica stays",
    ),
    _rule(
        "A replica leaves once all others are in sync",
        "venus.broker.replicas.placement:remove_leaving",
        "not ready.issuperset(stay) or ",
        "",
        seed=1,
        invariant="a replica is taken away once all others are in sync",
    ),
)
#: Rules in histories of a new business.
CREATED = (
    _rule(
        "Only the broker that creates a business is known to have no data of an earlier one",
        "venus.broker.replicas.placement:ReplicaPlacement.new_record",
        "in_sync=frozenset({me}),",
        "in_sync=frozenset({me}), last_in_sync=frozenset(view.by_name[name].member for name in others),",
        seed=86,
        invariant="no entry of a forgotten business comes back",
    ),
)
REACHED = (
    "election",
    "hand-over for balance",
    "replica replaced",
    "a broker died while all was well",
    "new business",
    "replica moved for balance",
)


def violation(kind: World, seed: int) -> str | None:
    """Return the invariant that breaks in a history."""
    try:
        kind(seed).run()
    except Violation as found:
        return found.invariant
    except (AssertionError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def run_histories(kind: World, seeds: range) -> Counter[str]:
    """Run histories; return how often each rare state was reached."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = kind(seed)
        try:
            world.run()
        except (Violation, AssertionError, ValueError) as error:
            pytest.fail(f"seed {seed}: {error}")
        counts.update(world.loop.counts)
    return counts


def test_leaders_and_replicas_are_placed_by_the_rules() -> None:
    counts = run_histories(LeaderWorld, range(12))
    assert {name: counts[name] for name in REACHED if not counts[name]} == {}


def test_a_new_business_is_handed_over_and_loses_nothing() -> None:
    counts = run_histories(CreatedWorld, range(100))
    assert counts["data of a forgotten business"] > 10
    assert counts["handed over as requested"] > 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_more_histories_hold() -> None:
    run_histories(LeaderWorld, range(400))
    run_histories(CreatedWorld, range(3000))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_without_a_rule_of_placement_an_invariant_breaks(rule: Rule) -> None:
    with apply_edits(rule.edits):
        assert violation(LeaderWorld, rule.seed) == rule.invariant


@pytest.mark.parametrize("rule", CREATED, ids=lambda rule: rule.text)
def test_without_a_rule_of_creation_an_invariant_breaks(rule: Rule) -> None:
    with apply_edits(rule.edits):
        assert violation(CreatedWorld, rule.seed) == rule.invariant
