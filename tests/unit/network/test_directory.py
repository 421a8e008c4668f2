"""The order of sets for a client, the reports that a directory accepts, and when a client moves back."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

from venus.broker.mirrors.directory_exchange import reachable_addresses
from venus.network.directory import (
    BACK_AFTER_S,
    GONE_S,
    LOOK_EVERY_S,
    LOOKS_APART_S,
    PROBLEMS_MAX,
    SETS_MAX,
    SILENT_S,
    ClientRole,
    Preference,
    ReportedSet,
    SetDirectory,
)
from venus.network.topology import Tier

NOW = 1000.0


def report(name: str, tier: Tier, level: int, site: str = "", **more: Any) -> ReportedSet:
    known: dict[str, Any] = {"set_id": f"id of {name}", "addresses": (f"{name}:1",), "heard_at": NOW} | more
    return ReportedSet(name=name, tier=tier, level=level, site=site, **known)


HQ = report("hq", Tier.CORE, 0, "berlin", is_home=True)
SPARE = report("spare", Tier.CORE, 0, "paris")
WEST = report("west", Tier.TANDEM, 1, "paris")
EAST = report("east", Tier.TANDEM, 1, "berlin")
LYON = report("lyon", Tier.ACCESS, 2, "lyon")
NICE = report("nice", Tier.ACCESS, 2, "nice")


def directory(*sets: ReportedSet, own: ReportedSet = HQ, **more: Any) -> SetDirectory:
    """Return the directory of `own` with the reports of these sets."""
    found = SetDirectory(**more)
    found.record_own(own)
    found.on_answer(sets, NOW)
    return found


def names(found: SetDirectory, role: ClientRole, site: str = "", business: str = "", now: float = NOW) -> list[str]:
    return [one.set.name for one in found.find(role, business, site, now)]


PRODUCER, CONSUMER = ClientRole.PRODUCER, ClientRole.CONSUMER


def test_producers_use_the_home_then_other_core_sets() -> None:
    found = directory(SPARE, WEST, LYON)
    assert names(found, PRODUCER, "paris") == ["hq", "spare"], "only the home takes writes, however near another is"
    moved = directory(replace(SPARE, promoted=frozenset({"shop"})), own=replace(HQ, replaced=frozenset({"shop"})))
    assert names(moved, PRODUCER, business="shop") == ["spare", "hq"]
    assert names(moved, PRODUCER, business="other") == ["hq", "spare"]


def test_consumers_use_access_sets_then_those_nearer_to_the_home() -> None:
    found = directory(WEST, LYON, NICE)
    assert names(found, CONSUMER, "nice") == ["nice", "lyon", "west", "hq"]
    assert names(directory(), CONSUMER) == ["hq"], "an empty network has its home"


def test_the_nearest_set_is_first_by_configuration_then_by_site_load_and_lag() -> None:
    near = {"oslo": ["nice", "lyon"]}
    assert names(directory(LYON, NICE, near=near), CONSUMER, "oslo")[:2] == ["nice", "lyon"]
    assert names(directory(LYON, NICE, near_above=near), CONSUMER, "oslo")[:2] == ["nice", "lyon"]
    assert names(directory(LYON, NICE, near={"x": ["y"]}, near_above=near), CONSUMER, "oslo")[0] == "lyon"
    busy = replace(LYON, load=0.8)
    assert names(directory(busy, NICE), CONSUMER)[:2] == ["nice", "lyon"]
    assert names(directory(busy, NICE), CONSUMER, "lyon")[:2] == ["lyon", "nice"], "nearness comes before load"
    assert names(directory(replace(LYON, lag_s=60.0), NICE), CONSUMER)[:2] == ["nice", "lyon"]
    assert names(directory(replace(LYON, lag_s=1.0), NICE), CONSUMER)[:2] == ["lyon", "nice"], "that is no lag"


def test_equally_near_sets_have_one_rank() -> None:
    ranks = {one.set.name: one.rank for one in directory(replace(LYON, load=0.9), NICE).find(CONSUMER, "", "x", NOW)}
    assert ranks["lyon"] == ranks["nice"] < ranks["hq"]


def test_a_set_with_a_problem_comes_last_and_one_without_the_business_is_left_out() -> None:
    for unfit in (replace(LYON, trouble="refused"), replace(LYON, unready=frozenset({"shop"}))):
        assert names(directory(unfit, NICE), CONSUMER, "lyon", "shop") == ["nice", "hq", "lyon"]
    part = replace(LYON, businesses=frozenset({"stock"}))
    assert names(directory(part, NICE), CONSUMER, "lyon", "shop") == ["nice", "hq"]
    assert names(directory(part, NICE), CONSUMER, "lyon", "stock")[0] == "lyon"


def test_a_silent_set_comes_last_and_is_removed_after_a_while() -> None:
    found = directory(LYON, NICE)
    later = NOW + SILENT_S + 1
    found.on_answer([replace(NICE, heard_at=later)], later)
    found.record_own(replace(HQ, heard_at=later))
    assert names(found, CONSUMER, "lyon", now=later) == ["nice", "hq", "lyon"]
    assert names(found, CONSUMER, "lyon", now=NOW + GONE_S + 1) == ["nice", "hq"], "lyon is gone"


def test_a_set_below_may_report_only_itself_and_those_below_it() -> None:
    found = directory(EAST)
    found.on_report("west", [WEST, LYON, replace(EAST, addresses=("evil:1",)), replace(HQ, addresses=("evil:1",))], NOW)
    assert {one.name: one.addresses for one in found.known_sets(NOW)} == {
        "hq": ("hq:1",),
        "east": ("east:1",),
        "west": ("west:1",),
        "lyon": ("lyon:1",),
    }
    found.on_report("west", [WEST, report("south", Tier.TANDEM, 1)], NOW)
    assert "south" not in {one.name for one in found.known_sets(NOW)}, "it is beside west, not below"
    found.on_report("west", [LYON], NOW)
    found.on_report("nice", [replace(NICE, level=0)], NOW)
    for more in ({"is_home": True}, {"promoted": frozenset({"shop"})}):
        found.on_report("aix", [report("aix", Tier.CORE, 0, **more)], NOW)
        assert names(found, PRODUCER, business="shop") == ["hq", "aix"], "no set becomes the home by saying so"
    assert "nice" not in {one.name for one in found.known_sets(NOW)}, "a set below has a higher level"
    assert any("level 0" in text for text in found.problems(NOW))


def test_a_set_below_that_has_replaced_the_home_is_the_home() -> None:
    found = directory(own=replace(HQ, replaced=frozenset({"shop"})))
    found.record_own(replace(HQ, replaced=frozenset({"shop"})), {"shop": "spare"})
    found.on_report("spare", [replace(SPARE, promoted=frozenset({"shop"}))], NOW)
    assert names(found, PRODUCER, business="shop") == ["spare", "hq"]


def test_a_set_below_cannot_take_the_broker_of_another_set() -> None:
    found = directory(EAST)
    found.on_report("west", [replace(WEST, addresses=("east:1", "west:1", "hq:1"))], NOW)
    assert [one.addresses for one in found.known_sets(NOW) if one.name == "west"] == [("west:1",)]
    assert sum("a broker belongs to one set" in text for text in found.problems(NOW)) == 2


def test_a_renamed_set_keeps_its_brokers_once_the_old_name_is_silent() -> None:
    found = directory(LYON)
    later = NOW + SILENT_S + 1
    found.on_report("rhone", [report("rhone", Tier.ACCESS, 1, addresses=("lyon:1",), heard_at=later)], later)
    assert {one.name: one.addresses for one in found.known_sets(later)}["rhone"] == ("lyon:1",)


def test_two_sets_of_one_name_are_a_problem_and_the_first_stays() -> None:
    found = directory(LYON)
    twin = replace(LYON, set_id="another", addresses=("twin:1",))
    found.on_report("lyon", [twin], NOW)
    found.on_report("hq", [replace(HQ, set_id="another", level=1, tier=Tier.TANDEM)], NOW)
    assert [one.addresses for one in found.known_sets(NOW)] == [("hq:1",), ("lyon:1",)]
    assert len(found.problems(NOW)) == 2
    assert all(text.startswith("two sets are called ") for text in found.problems(NOW))
    later = NOW + SILENT_S + 1
    found.on_report("lyon", [replace(twin, heard_at=later)], later)
    assert [one.addresses for one in found.known_sets(later)] == [("hq:1",), ("twin:1",)], "the first one is silent"
    assert not found.problems(later), "the twin is alone now"


def test_a_sets_own_report_is_not_replaced_by_reports_of_others() -> None:
    found = directory(own=WEST)
    found.on_report("lyon", [LYON], NOW)
    found.on_answer([replace(LYON, heard_at=NOW + 1, addresses=("old:1",))], NOW + 1)
    assert [one.name for one in found.sets_below(NOW)] == ["west", "lyon"]
    assert found.sets_below(NOW)[1].addresses == ("lyon:1",)
    found.on_report("lyon", [replace(LYON, heard_at=NOW - 5, addresses=("late:1",))], NOW)
    assert found.sets_below(NOW)[1].addresses == ("lyon:1",), "an older description replaces no newer one"


def test_a_sets_own_report_replaces_reports_of_others() -> None:
    """West reports a false set named lyon, and one with the broker of nice, before these report themselves."""
    found = directory()
    ghost = report("ghost", Tier.ACCESS, 2, addresses=("nice:1",))
    found.on_report("west", [WEST, replace(LYON, set_id="invented", addresses=("evil:1",)), ghost], NOW)
    found.on_report("lyon", [LYON], NOW)
    found.on_report("nice", [NICE], NOW)
    found.on_report("west", [WEST, replace(LYON, set_id="invented", addresses=("evil:1",)), ghost], NOW + 1)
    known = {one.name: one.addresses for one in found.known_sets(NOW)}
    assert (known["lyon"], known["nice"]) == (("lyon:1",), ("nice:1",))


def test_one_set_cannot_fill_the_directory() -> None:
    found = directory()
    found.on_report("west", [WEST, *(report(f"s{n}", Tier.ACCESS, 2) for n in range(SETS_MAX))], NOW)
    found.on_report("lyon", [LYON], NOW)
    assert len(found.known_sets(NOW)) == 1 + SETS_MAX // 2 + 1
    assert "lyon" in {one.name for one in found.known_sets(NOW)}
    assert any("is left out" in text for text in found.problems(NOW))


def test_the_number_of_sets_and_problems_is_limited() -> None:
    found = directory()
    for number in range(2 * SETS_MAX):
        found.on_report(f"s{number}", [report(f"s{number}", Tier.ACCESS, 1)], NOW)
        found.on_report("x", [report("x", Tier.ACCESS, 1, addresses=("hq:1", f"hq:{number}"))], NOW)
    assert len(found.known_sets(NOW)) == SETS_MAX + 1
    assert len(found.problems(NOW)) == PROBLEMS_MAX


def test_a_wildcard_address_is_not_given_to_clients() -> None:
    assert reachable_addresses(["0.0.0.0:7400", "[::]:7400", "[::1]:7400", "hq:7400", "hq:7400"]) == (
        "[::1]:7400",
        "hq:7400",
    )


def test_replaced_choices_keep_the_state_of_those_that_stay() -> None:
    found = Preference(("a", "b"), back_after_s=10)
    found.record_failure("a")
    found.record_check("a", 0.0, healthy=True)
    found.replace(("a", "c", "b"), "b")
    assert (found.in_use, found.nearer()) == ("b", ("a", "c"))
    found.record_check("a", 10.0, healthy=True)
    assert found.move_back(10.0)
    assert found.in_use == "a"


def test_the_next_set_serves_after_a_failure_and_the_first_again_after_a_healthy_minute() -> None:
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


def test_a_bad_check_or_a_gap_between_checks_restarts_the_minute() -> None:
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


def test_a_failure_of_a_checked_set_restarts_its_minute() -> None:
    found = Preference(("a", "b"), back_after_s=10)
    found.record_failure("a")
    found.record_check("a", 0.0, healthy=True)
    found.record_check("a", 10.0, healthy=True)
    found.record_failure("a")
    assert found.find_nearer(10.0) is None
    assert found.in_use == "b"


def test_the_client_returns_to_the_nearest_set_that_is_healthy_long_enough() -> None:
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


def test_when_all_sets_failed_the_first_is_tried_first() -> None:
    found = Preference(("a", "b"))
    found.record_failure("a")
    found.record_failure("b")
    assert found.in_use == "a"
    found.record_success("b")
    assert (found.in_use, found.nearer()) == ("b", ("a",))
    found.record_failure("a")
    assert found.in_use == "b", "it was not in use anyway"


def test_nearer_sets_are_checked_every_few_seconds_and_none_while_the_first_serves() -> None:
    found = Preference(("a", "b", "c"))
    assert found.take_due(0.0) == ()
    found.record_success("c")
    assert found.take_due(0.0) == ("a", "b")
    assert found.take_due(LOOK_EVERY_S - 0.1) == ()
    assert found.take_due(LOOK_EVERY_S) == ("a", "b")


def test_no_consumer_returns_to_a_set_without_a_healthy_minute() -> None:
    """Random failures, checks and sessions are compared with a plain history of checks."""
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
