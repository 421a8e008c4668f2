"""Which broker leads which business: after a death, at a hand-over, and after rebalancing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from venus.network.scheduling import Load
from venus.replication.leaders import (
    AGAIN_S,
    UNEVEN_S,
    Balancer,
    LeaderSchedule,
    Move,
    find_obstacle,
    is_uneven,
    plan_elections,
    plan_moves,
)
from venus.replication.records import NEAR_ENTRIES, Ballot, Leadership, LiveBroker, Member, choose_leader


def member(name: str) -> Member:
    return Member(broker=name, store="s")


def living_brokers(names: str, **more: object) -> dict[Member, LiveBroker]:
    return {member(n): LiveBroker(member=member(n), address=f"{n}:1", **more) for n in names}  # type: ignore[arg-type]


def business(n: int, leader: str, others: str = "", **more: object) -> Leadership:
    names = leader + others
    return Leadership(
        business=f"x{n:02}",
        term=1,
        leader=member(leader),
        in_sync=frozenset(map(member, names)),
        replicas=tuple(names),
        version=1,
        **more,  # type: ignore[arg-type]
    )


def leader_counts(records: list[Leadership]) -> Counter[str]:
    return Counter(known.leader.broker for known in records if known.leader is not None)


def leaderships_after(records: list[Leadership], moves: list[Move]) -> list[Leadership]:
    found = {known.business: known for known in records}
    for move in moves:
        known = found[move.business]
        assert known.leader == member(move.source)
        assert member(move.target) in known.in_sync
        found[move.business] = replace(known, leader=member(move.target), term=known.term + 1)
    return list(found.values())


def elect(known: Leadership, live: Mapping[Member, LiveBroker], ranks: Mapping[str, int], **ends: int) -> str:
    ballots = {
        one: Ballot(member=one, last_term=1, end=ends.get(one.broker, 10), high=5)
        for one in known.in_sync
        if one in live
    }
    chosen = choose_leader(known, ballots, live, ranks)
    assert chosen is not None
    assert chosen.leader is not None
    return chosen.leader.broker


def test_the_businesses_of_a_dead_broker_are_spread_over_all_survivors() -> None:
    records = [business(n, "abc"[n % 3], "abc".replace("abc"[n % 3], "")) for n in range(24)]
    live = living_brokers("ab")
    plans = plan_elections(records, live)
    assert len(plans) == 8
    winners = Counter(elect(known, live, plans[known.business]) for known in records if known.business in plans)
    assert winners == {"a": 4, "b": 4}


def test_without_a_dead_leader_no_election_is_planned() -> None:
    assert plan_elections([business(1, "a", "b")], living_brokers("ab")) == {}


def test_a_plan_counts_only_brokers_that_may_win() -> None:
    records = [business(n, "c", "a") for n in range(4)] + [business(10 + n, "c", "ab") for n in range(4)]
    plans = plan_elections(records, living_brokers("ab"))
    winners = [elect(known, living_brokers("ab"), plans[known.business]) for known in records]
    assert winners == ["a"] * 4 + ["b"] * 4


def test_a_plan_counts_only_replicas_that_are_complete() -> None:
    behind = [replace(business(n, "c", "ab"), in_sync=frozenset({member("c"), member("b")})) for n in range(4)]
    records = [*behind, *(business(10 + n, "c", "ab") for n in range(4))]
    plans = plan_elections(records, living_brokers("ab"))
    assert [elect(known, living_brokers("ab"), plans[known.business]) for known in records] == ["b"] * 4 + ["a"] * 4


def test_candidates_are_ordered_by_health_plan_log_and_priority() -> None:
    known, live = business(1, "c", "ab"), living_brokers("ab")
    sick = {one: Ballot(member=one, last_term=1, end=10, high=5, healthy=one.broker != "a") for one in live}
    chosen = choose_leader(known, sick, live, {"a": 0, "b": 9})
    assert chosen is not None
    assert chosen.leader == member("b"), "an unhealthy broker leads only if no other one can"
    alone = choose_leader(known, {member("a"): sick[member("a")]}, live, {"a": 9})
    assert alone is not None
    assert alone.leader == member("a")
    assert elect(known, live, {"a": 1, "b": 0}, a=11, b=10) == "b"
    assert elect(known, live, {"a": 1, "b": 0}, a=10 + NEAR_ENTRIES + 1, b=10) == "a", "b is far behind"
    assert elect(known, live, {"a": 0, "b": 0}, a=10, b=11) == "b"
    preferred = living_brokers("a") | living_brokers("b", priority=-1)
    assert elect(known, preferred, {"a": 0, "b": 0}) == "b"
    assert elect(known, preferred, {"a": 0, "b": 1}) == "a"


def test_new_businesses_get_the_broker_that_leads_the_fewest() -> None:
    schedule = LeaderSchedule([business(1, "a"), business(2, "b")], living_brokers("abc"))
    got = [schedule.assign(list(living_brokers("abc")), member("b")).broker for _ in range(4)]
    assert got == ["c", "b", "a", "c"], "among equals b, which was asked"
    full = living_brokers("ab") | living_brokers("c", load=Load(disk=0.95)) | living_brokers("d", load=Load(disk=0.2))
    assert LeaderSchedule([business(1, "d")], full).rank("d") < LeaderSchedule([], full).rank("c")


def test_rebalancing_moves_as_little_as_possible_and_gives_the_reason() -> None:
    records = [business(n, "ab"[n % 2], "ab".replace("ab"[n % 2], "") + "c") for n in range(24)]
    moves = plan_moves(records, living_brokers("abc"))
    assert leader_counts(leaderships_after(records, moves)) == {"a": 8, "b": 8, "c": 8}
    assert len(moves) == 8
    assert moves[0].reason == "a leads 12, c 0, the mean is 8"
    assert plan_moves(leaderships_after(records, moves), living_brokers("abc")) == []


def test_businesses_move_in_a_chain_if_the_idle_broker_has_no_replica() -> None:
    records = [business(n, "a", "b") for n in range(4)] + [business(10 + n, "b", "c") for n in range(3)]
    moves = plan_moves(records, living_brokers("abc"))
    counts = leader_counts(leaderships_after(records, moves))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_no_business_moves_to_a_lagging_draining_leaving_or_full_broker() -> None:
    records = [business(n, "a", "b") for n in range(4)]
    assert len(plan_moves(records, living_brokers("ab"))) == 2
    assert (
        plan_moves([replace(known, in_sync=frozenset({member("a")})) for known in records], living_brokers("ab")) == []
    )
    assert plan_moves(records, living_brokers("a") | living_brokers("b", draining=True)) == []
    assert plan_moves([replace(known, leaving=("b",)) for known in records], living_brokers("ab")) == []
    assert plan_moves(records, living_brokers("a", load=Load()) | living_brokers("b", load=Load(disk=0.9))) == []
    assert len(plan_moves(records, living_brokers("a") | living_brokers("b", unhealthy="sub-healthy"))) == 2, (
        "health excludes no broker"
    )


def test_a_draining_broker_does_not_count_as_imbalance() -> None:
    records = [*(business(n, "a", "bc") for n in range(6)), business(6, "b", "ac"), business(7, "c", "ab")]
    assert is_uneven(records, living_brokers("abc"))
    assert not is_uneven(records, living_brokers("a", draining=True) | living_brokers("bc"))


def test_the_obstacle_of_a_hand_over_is_named() -> None:
    whole = [business(1, "a", "b"), business(2, "b", "a")]
    assert find_obstacle(whole, living_brokers("ab")) == ""
    assert find_obstacle(whole, living_brokers("a")) == "x01 is not in sync at b"
    assert find_obstacle([replace(whole[0], leader=None)], living_brokers("ab")) == "x01 has no living leader"
    assert "is handed over to b" in find_obstacle([replace(whole[0], successor="b")], living_brokers("ab"))
    assert "moves away from b" in find_obstacle([replace(whole[0], leaving=("b",))], living_brokers("ab"))
    degraded = living_brokers("a") | living_brokers("b", unhealthy="lane 4 (details) is degraded")
    assert find_obstacle(whole, degraded) == "broker b: lane 4 (details) is degraded"


UNEVEN_RECORDS = {known.business: known for known in (business(n, "a", "bc") for n in range(3))}


def test_a_broker_that_leads_too_many_for_ten_minutes_hands_over_one_business() -> None:
    live, balancer = living_brokers("abc"), Balancer("a")
    assert is_uneven(UNEVEN_RECORDS.values(), live)
    assert balancer.next_move(UNEVEN_RECORDS, live, 0.0) is None
    assert balancer.next_move(UNEVEN_RECORDS, live, UNEVEN_S - 1) is None
    move = balancer.next_move(UNEVEN_RECORDS, live, UNEVEN_S)
    assert move is not None
    assert (move.business, move.source) == ("x00", "a")
    under_way = UNEVEN_RECORDS | {"x00": replace(UNEVEN_RECORDS["x00"], successor=move.target)}
    assert balancer.next_move(under_way, live, UNEVEN_S + 1) is None, "one at a time"
    failed = balancer.next_move(UNEVEN_RECORDS, live, UNEVEN_S + 2)
    assert failed is None, "it could not be handed over"
    assert balancer.next_move(UNEVEN_RECORDS, live, UNEVEN_S + AGAIN_S) is not None
    moved = UNEVEN_RECORDS | {"x00": replace(UNEVEN_RECORDS["x00"], leader=member(move.target))}
    again = balancer.next_move(moved, live, UNEVEN_S + AGAIN_S + 1)
    assert again is not None, "moves continue until no broker leads too much"
    assert again.business == "x01"


def test_a_business_that_cannot_be_handed_over_does_not_block_the_others() -> None:
    live, balancer = living_brokers("abc"), Balancer("a")
    _, first, last = (balancer.next_move(UNEVEN_RECORDS, live, at) for at in (0.0, UNEVEN_S, UNEVEN_S + 1))
    assert first is not None
    assert last is None, "the request may not be visible yet"
    refused = UNEVEN_RECORDS | {"x00": replace(UNEVEN_RECORDS["x00"], version=2)}
    other = balancer.next_move(refused, live, UNEVEN_S + 2)
    assert other is not None
    assert other.business == "x01"
    both = refused | {"x01": replace(UNEVEN_RECORDS["x01"], version=2)}
    third = balancer.next_move(both, live, UNEVEN_S + 4)
    assert third is not None
    assert third.business == "x02"
    every = {name: replace(known, version=2) for name, known in both.items()}
    assert balancer.next_move(every, live, UNEVEN_S + 6) is None, "all have failed lately"
    again = balancer.next_move(every, live, UNEVEN_S + AGAIN_S)
    assert again is not None
    assert again.business == "x00", "it may succeed by now"


def test_businesses_of_another_broker_that_cannot_be_handed_over_do_not_block_those_of_this_one() -> None:
    live, balancer = living_brokers("abcd"), Balancer("b")
    leaders = {**dict.fromkeys(range(5), "a"), **dict.fromkeys(range(5, 8), "b")}
    records = {
        known.business: known for known in (business(n, who, "abcd".replace(who, "")) for n, who in leaders.items())
    }
    assert is_uneven(records.values(), live)
    assert [balancer.next_move(records, live, at) for at in (0.0, UNEVEN_S)] == [None, None], "the other one begins"
    assert balancer.next_move(records, live, UNEVEN_S + 2 * AGAIN_S - 1) is None
    move = balancer.next_move(records, live, UNEVEN_S + 2 * AGAIN_S)
    assert move is not None
    assert move.source == "b"


def test_another_broker_hands_over_and_a_short_imbalance_is_ignored() -> None:
    live = living_brokers("abc")
    other, short = Balancer("b"), Balancer("a")
    assert [other.next_move(UNEVEN_RECORDS, live, at) for at in (0.0, UNEVEN_S)] == [None, None]
    balanced = {
        known.business: known for known in (business(n, "abc"[n], "abc".replace("abc"[n], "")) for n in range(3))
    }
    for at, records in ((0.0, UNEVEN_RECORDS), (300.0, balanced), (301.0, UNEVEN_RECORDS), (UNEVEN_S, UNEVEN_RECORDS)):
        assert short.next_move(records, live, at) is None
    assert short.next_move(UNEVEN_RECORDS, live, 301.0 + UNEVEN_S) is not None


def test_nothing_is_handed_over_while_a_replica_is_missing_or_a_lane_is_degraded() -> None:
    for live in (
        living_brokers("ab"),
        living_brokers("ab") | living_brokers("c", unhealthy="lane 3 (full data) is degraded"),
    ):
        balancer = Balancer("a")
        assert [balancer.next_move(UNEVEN_RECORDS, live, at) for at in (0.0, UNEVEN_S, 2 * UNEVEN_S)] == [None] * 3
