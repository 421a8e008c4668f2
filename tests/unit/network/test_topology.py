"""The upstreams of each set, and the errors about an impossible topology."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from venus.network.topology import BrokerSet, Tier, Topology, merge_reports, topology_problems


def core(name: str = "hq", **more: object) -> BrokerSet:
    return BrokerSet(name=name, tier=Tier.CORE, level=0, **more)  # type: ignore[arg-type]


def tandem(name: str, level: int = 1, **more: object) -> BrokerSet:
    return BrokerSet(name=name, tier=Tier.TANDEM, level=level, **more)  # type: ignore[arg-type]


def access(name: str, level: int = 1, **more: object) -> BrokerSet:
    return BrokerSet(name=name, tier=Tier.ACCESS, level=level, **more)  # type: ignore[arg-type]


HQ = core("hq", addresses=("hq:7400",), site="berlin")
EUROPE = tandem("europe", addresses=("eu1:7400", "eu2:7400"))
LYON = access("lyon", 2, upstream=("europe",), labels=frozenset({"eu"}))


def valid_topology(*sets: BrokerSet) -> Topology:
    assert list(topology_problems(sets)) == []
    return Topology.of(sets)


def names(sets: tuple[BrokerSet, ...]) -> list[str]:
    return [one.name for one in sets]


def test_a_level_pulls_from_the_level_above_in_the_configured_order() -> None:
    asia = tandem("asia")
    oslo = access("oslo", 2, upstream=("eu2:7400", "asia"))
    found = valid_topology(LYON, asia, EUROPE, HQ, access("rome", 2), oslo)

    assert names(found.sets) == ["hq", "asia", "europe", "lyon", "oslo", "rome"]
    assert found.levels == (0, 1, 2)
    assert names(found.upstreams_of(LYON)) == ["europe"]
    assert [names(found.upstreams_of(one)) for one in found.sets_at(2)] == [
        ["europe"],
        ["europe", "asia"],
        ["asia", "europe"],
    ]
    assert found.upstreams_of(HQ) == ()


def test_no_tandem_level_and_many_are_both_valid() -> None:
    assert names(valid_topology(HQ, access("lyon", 1)).sets_at(1)) == ["lyon"]
    levels = [tandem(f"t{level}", level) for level in range(1, 9)]
    assert valid_topology(HQ, *levels, access("a", 9)).levels == tuple(range(10))


def test_core_sets_may_pull_from_each_other() -> None:
    paris = core("paris", upstream=("hq",))
    assert names(valid_topology(HQ, paris).upstreams_of(paris)) == ["hq"]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([HQ, HQ], "two sets are called hq: give one of them another name"),
        ([HQ, tandem("b", 1, addresses=("hq:7400",))], "hq:7400 is in two sets, hq and b: a broker belongs to one"),
        (
            [core("a", upstream=("b",)), core("b", upstream=("a",))],
            "a loop: a pulls from b pulls from a; nothing would ever arrive there from a source",
        ),
        (
            [HQ, tandem("a", 1, upstream=("b",)), tandem("b", 1, upstream=("c",)), tandem("c", 1, upstream=("a",))],
            "a loop: a pulls from b pulls from c pulls from a; nothing would ever arrive there from a source",
        ),
        (
            [HQ, tandem("a", 1, upstream=("a",))],
            "a loop: a pulls from a; nothing would ever arrive there from a source",
        ),
        ([HQ, access("lyon", 2)], "set lyon has level 2, and no set has level 1: it has no upstream"),
        (
            [core("hq", upstream=("europe",)), replace(EUROPE, upstream=("x",)), tandem("x", 0)],
            "set hq is a core set and pulls from europe, a tandem set: only core sets may",
        ),
        ([replace(HQ, level=1)], "set hq is a core set of level 1: core sets have level 0"),
        ([HQ, tandem("a", 0)], "set a of tier tandem has level 0: only core sets have level 0"),
        ([HQ, tandem("a", -1)], "set a: level is -1, and levels go from 0 to 100"),
        (
            [HQ, access("a", 1), access("b", 2, upstream=("a",))],
            "set b pulls from a, an access set: those serve consumers; make it a tandem set",
        ),
        (
            [HQ, EUROPE, access("b", 2, upstream=("hq",))],
            "set b of level 2 pulls from hq of level 0: it pulls from level 1",
        ),
        (
            [HQ, tandem("b", 1, upstream=("hp",))],
            "set b: upstream hp is no set and no broker of one (did you mean hq?)",
        ),
        (
            [HQ, EUROPE, replace(LYON, labels=frozenset({"eur"}))],
            "set lyon pulls the label eur, which no business and no table has (did you mean eu?)",
        ),
        (
            [HQ, replace(EUROPE, labels=frozenset({"us"})), LYON],
            "set lyon pulls the label eu, and europe above does not get it: add it there",
        ),
        (
            [HQ, replace(EUROPE, labels=frozenset({"us"})), replace(LYON, labels=frozenset())],
            "set lyon pulls everything, and europe above gets some labels only: name them, or let it get all",
        ),
    ],
)
def test_an_impossible_topology_is_refused_in_one_line(sets: list[BrokerSet], said: str) -> None:
    problems = list(topology_problems(sets, {"eu", "us"}))
    assert said in problems
    assert "\n" not in problems[0]


def test_the_cause_is_named_and_a_loop_only_once() -> None:
    sets = [core("a", upstream=("b",)), core("b", upstream=("c",)), core("c", upstream=("a",))]
    assert len(list(topology_problems(sets))) == 1


def test_unknown_labels_are_not_checked() -> None:
    assert list(topology_problems([HQ, EUROPE, LYON])) == []
    assert len(list(topology_problems([HQ, EUROPE, LYON], labels=()))) == 1


def test_only_the_visible_part_of_a_topology_is_checked() -> None:
    part = [replace(LYON, upstream=("elsewhere:7400",))]
    assert list(topology_problems(part, complete=False)) == []
    assert list(topology_problems(part)) != []


def test_brokers_of_a_set_with_different_options_are_named() -> None:
    one, two = replace(EUROPE, addresses=("eu1:7400",)), replace(EUROPE, addresses=("eu2:7400",))
    found, problems = merge_reports([HQ, two, one])
    assert problems == []
    assert found.sets_at(1) == (replace(EUROPE, addresses=("eu2:7400", "eu1:7400")),)

    found, problems = merge_reports([HQ, one, replace(two, level=2, labels=frozenset({"eu"}))])
    assert problems == [
        "two sets are called europe, or its brokers disagree: level is 1 at eu1:7400 and 2 at eu2:7400",
        "two sets are called europe, or its brokers disagree: labels is none at eu1:7400 and eu at eu2:7400",
    ]
    assert found.sets_at(1)[0].addresses == ("eu1:7400", "eu2:7400")


def test_every_input_is_refused_or_reaches_the_core() -> None:
    chance = random.Random(12)
    accepted = 0
    for _ in range(3000):
        count = chance.randint(1, 7)
        sets = [
            replace(
                chance.choice((core("c"), core("c"), tandem("t"), tandem("t", 2), access("a"), access("a", 2))),
                name=f"s{n}",
                upstream=tuple(f"s{chance.randrange(count)}" for _ in range(chance.choice((0, 0, 0, 1)))),
            )
            for n in range(count)
        ]
        if list(topology_problems(sets)):
            continue
        accepted += 1
        topology = Topology.of(sets)
        for one in sets:
            way = [one]
            while way[-1].level:
                way.append(topology.upstreams_of(way[-1])[0])
            assert way[-1].tier is Tier.CORE
            assert len(way) == one.level + 1
    assert accepted > 100
