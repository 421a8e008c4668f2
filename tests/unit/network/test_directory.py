"""Who is sent where, who is next, and when one goes back."""

from __future__ import annotations

import random
from itertools import pairwise

from venus.network.directory import BACK_AFTER_S, LOOK_EVERY_S, LOOKS_APART_S, Preference, SetDirectory
from venus.network.topology import BrokerSet, Tier, Topology

HQ = BrokerSet(name="hq", tier=Tier.CORE, level=0, site="berlin")
SPARE = BrokerSet(name="spare", tier=Tier.CORE, level=0, site="paris", upstream=("hq",))
WEST = BrokerSet(name="west", tier=Tier.TANDEM, level=1, site="paris")
EAST = BrokerSet(name="east", tier=Tier.TANDEM, level=1, site="berlin")
LYON = BrokerSet(name="lyon", tier=Tier.ACCESS, level=2, site="lyon", upstream=("west", "east"))
NICE = BrokerSet(name="nice", tier=Tier.ACCESS, level=2, site="nice")
ALL = Topology.of([HQ, SPARE, WEST, EAST, LYON, NICE])


def names(sets: tuple[BrokerSet, ...]) -> list[str]:
    return [one.name for one in sets]


def test_producers_go_to_core_sets_the_nearest_first() -> None:
    found = SetDirectory(ALL, near={"paris": ["spare", "hq"], "lyon": ["spare"]})
    assert names(found.for_producer("paris")) == ["spare", "hq"]
    assert names(found.for_producer("lyon")) == ["spare", "hq"]
    assert names(found.for_producer("berlin")) == ["hq", "spare"], "nothing is configured: the same site is nearest"
    assert names(found.for_producer()) == ["hq", "spare"]


def test_a_set_goes_to_the_level_above_as_it_is_configured_itself() -> None:
    found = SetDirectory(ALL, load={"east": 0.9, "west": 0.1})
    assert names(found.for_set("lyon")) == ["west", "east"]
    assert names(found.for_set("nice")) == ["west", "east"], "equally near: the one with less load"
    assert names(SetDirectory(ALL, near={"nice": ["east"]}, load={"east": 0.9}).for_set("nice")) == ["east", "west"]
    assert names(found.for_set("west")) == ["spare", "hq"], "of its own site"
    assert found.for_set("hq") == ()
    assert found.for_set("nobody") == ()


def test_consumers_go_to_access_sets_or_to_the_deepest_level() -> None:
    assert names(SetDirectory(ALL).for_consumer("nice")) == ["nice", "lyon"]
    assert names(SetDirectory(ALL, load={"lyon": 0.5, "nice": 0.6}).for_consumer()) == ["lyon", "nice"]
    assert names(SetDirectory(Topology.of([HQ, WEST, EAST])).for_consumer("paris")) == ["west", "east"]
    assert names(SetDirectory(Topology.of([HQ])).for_consumer()) == ["hq"]
    assert SetDirectory(Topology.of([])).for_consumer() == ()


def test_the_next_one_serves_on_failure_and_the_first_again_after_a_minute_of_health() -> None:
    found = Preference(("a", "b", "c"))
    assert (found.in_use, found.in_order(), found.nearer()) == ("a", ("a", "b", "c"), ())
    found.record_failure("a")
    assert (found.in_use, found.in_order(), found.nearer()) == ("b", ("b", "c", "a"), ("a",))
    now = 0.0
    while now < BACK_AFTER_S:
        assert found.take_due(now) == ("a",)
        found.record_check("a", now, healthy=True)
        assert not found.move_back(now), now
        now += LOOK_EVERY_S
    assert now == BACK_AFTER_S
    found.record_check("a", now, healthy=True)
    assert found.move_back(now)
    assert found.in_use == "a"
    assert not found.move_back(now)


def test_one_bad_look_and_a_gap_between_looks_start_the_minute_over() -> None:
    for breaks in ("a bad look", "a gap"):
        found = Preference(("a", "b"))
        found.record_failure("a")
        for now in (0.0, 15.0, 30.0, 45.0):
            found.record_check("a", now, healthy=True)
        if breaks == "a bad look":
            found.record_check("a", 50.0, healthy=False)
        start = 50.0 + LOOKS_APART_S + 1
        for n in range(4):
            found.record_check("a", start + 15 * n, healthy=True)
            assert found.find_nearer(start + 15 * n) is None, breaks
        found.record_check("a", start + 60, healthy=True)
        assert found.find_nearer(start + 60) == "a"
        assert found.find_nearer(start + 60 + LOOKS_APART_S + 1) is None, "that was long ago"


def test_a_failure_of_one_that_was_looked_at_starts_its_minute_over() -> None:
    found = Preference(("a", "b"), back_after_s=10)
    found.record_failure("a")
    found.record_check("a", 0.0, healthy=True)
    found.record_check("a", 10.0, healthy=True)
    found.record_failure("a")
    assert found.find_nearer(10.0) is None
    assert found.in_use == "b"


def test_it_goes_back_to_the_nearest_that_is_healthy_long_enough() -> None:
    found = Preference(("a", "b", "c"), back_after_s=10)
    found.record_failure("a")
    found.record_failure("b")
    assert (found.in_use, found.nearer()) == ("c", ("a", "b"))
    for now in (0.0, 10.0):
        found.record_check("b", now, healthy=True)
    found.record_check("a", 10.0, healthy=True)
    assert found.move_back(10.0)
    assert (found.in_use, found.nearer()) == ("b", ("a",))
    found.record_check("a", 20.0, healthy=True)
    assert found.move_back(20.0)
    assert found.in_use == "a"


def test_when_all_failed_it_begins_with_the_first_and_whoever_serves_is_in_use() -> None:
    found = Preference(("a", "b"))
    found.record_failure("a")
    found.record_failure("b")
    assert found.in_use == "a"
    found.record_success("b")
    assert (found.in_use, found.nearer()) == ("b", ("a",))
    found.record_failure("a")
    assert found.in_use == "b", "it was not in use anyway"


def test_those_nearer_are_due_every_few_seconds_and_nobody_when_the_first_serves() -> None:
    found = Preference(("a", "b", "c"))
    assert found.take_due(0.0) == ()
    found.record_success("c")
    assert found.take_due(0.0) == ("a", "b")
    assert found.take_due(LOOK_EVERY_S - 0.1) == ()
    assert found.take_due(LOOK_EVERY_S) == ("a", "b")


def test_nobody_goes_back_to_what_was_not_healthy_for_a_minute_whatever_happens() -> None:
    """Random failures, looks and services against a plain history of looks."""
    chance = random.Random(5)
    went_back = 0
    for _ in range(300):
        found, history, now = Preference(("a", "b", "c")), dict[str, list[tuple[float, bool]]](), 0.0
        for _ in range(200):
            now += chance.choice((1.0, 5.0, 5.0, 5.0, 14.0, 20.0))
            one = chance.choice("abc")
            match chance.random():
                case n if n < 0.02:
                    found.record_failure(one)
                    history.setdefault(one, []).append((now, False))
                case _:
                    for each in found.nearer():
                        healthy = chance.random() > 0.02
                        found.record_check(each, now, healthy=healthy)
                        history.setdefault(each, []).append((now, healthy))
            before = found.in_use
            if found.move_back(now):
                went_back += 1
                assert found.choices.index(found.in_use) < found.choices.index(before)
                good = [at for at, _ in history[found.in_use]]
                bad = [at for at, healthy in history[found.in_use] if not healthy]
                since = [at for at in good if now - BACK_AFTER_S <= at <= now]
                assert not [at for at in bad if at > now - BACK_AFTER_S]
                assert all(b - a <= LOOKS_APART_S for a, b in pairwise(since))
    assert went_back > 50
