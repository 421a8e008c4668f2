"""A broker's reported load: rounded, rarely changed, and used for placement."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from venus.broker.replicas.broker_load import AGAIN_AFTER_S, MEASURE_EVERY_S, BrokerLoad, MachineLoad
from venus.broker.replicas.placement import ClusterView, ReplicaBalancer, ReplicaPlacement
from venus.coordination.stored_records import UNPRINTABLE_REASON, decode_broker, encode_broker
from venus.errors import ProtocolError
from venus.network.scheduling import Load, rank_brokers
from venus.replication.leaders import UNEVEN_S
from venus.replication.records import Leadership, LiveBroker, Member


def broker(name: str, disk: float | None = None, *, report: int = 1, businesses: int = 3) -> LiveBroker:
    load = None if disk is None else Load(disk=disk, network=disk)
    return LiveBroker(
        member=Member(broker=name, store=f"s{name}"),
        address=f"{name}:1",
        load=load,
        report=report,
        businesses=businesses,
    )


def test_a_load_is_reported_when_it_has_changed_and_periodically() -> None:
    now, load = [0.0], [Load(cpu=0.1)]
    loads = BrokerLoad(Path("/"), lambda: now[0], lambda *_: load[0])
    first = loads(broker("a"), 2)
    assert (first.load, first.businesses, first.report) == (load[0], 2, 2)
    load[0] = Load(cpu=0.2)
    assert loads(first, 3) is first, "it looks every ten seconds"
    now[0] += MEASURE_EVERY_S
    second = loads(first, 3)
    assert (second.load, second.report) == (load[0], 3)
    now[0] += MEASURE_EVERY_S
    assert loads(second, 3) is second, "nothing has changed"
    now[0] += AGAIN_AFTER_S
    assert loads(second, 3).report == 4, "others must know that it is still so"


def test_the_machine_can_be_measured(tmp_path: Path) -> None:
    machine = MachineLoad()
    for now in (1.0, 2.0):
        found = machine(tmp_path, now)
        shares = (found.memory, found.cpu, found.disk, found.network)
        assert all(0 <= share <= 1 and round(share * 20) == pytest.approx(share * 20) for share in shares)
    assert found.memory > 0


def test_a_broker_with_an_unprintable_reason_is_unhealthy() -> None:
    stored = encode_broker(replace(broker("a"), unhealthy="lane 3\x07"))

    assert decode_broker("k", stored).unhealthy == UNPRINTABLE_REASON


def test_a_reported_load_is_stored_and_checked() -> None:
    said = broker("a", 0.35, report=7)
    assert decode_broker("k", encode_broker(said)) == said
    silent = replace(broker("a"), report=0, businesses=0)
    assert decode_broker("k", encode_broker(silent)) == silent
    for wrong in (
        b"[7,3,0.0,0.0,0.35]",
        b"[7,3,0.0,0.0,0.35,2]",
        b'[7,3,0.0,0.0,0.35,"a"]',
        b"[-1,3,0,0,0,0]",
        b"[7,3,0.0,0.0,0.35,NaN]",
        b"[7,3,true,0.0,0.35,0.1]",
        b"5",
    ):
        value = encode_broker(said).replace(b"[7,3,0.0,0.0,0.35,0.35]", wrong)
        assert wrong in value
        with pytest.raises(ProtocolError):
            decode_broker("k", value)


def replicas_of(live: list[LiveBroker], business: str = "x", me: int = 0, replicas: int = 2) -> tuple[str, ...]:
    placement = ReplicaPlacement(replicas=replicas, min_in_sync=1)
    return placement.new_record(business, live[me].member, ClusterView(live), 1).replicas


def test_replicas_are_placed_on_brokers_with_room() -> None:
    live = [broker("a", 0.3), broker("b", 0.2), broker("c", 0.7), broker("d", 0.85), broker("e", 0.2)]
    assert {replicas_of(live, f"x{n}")[1] for n in range(6)} == {"b", "e"}


def test_successive_replicas_are_spread_without_a_new_report() -> None:
    live = [broker("a", 0.3), *(broker(name, 0.2 if name == "b" else 0.3) for name in "bcde")]
    view, wanted = ClusterView(live), ReplicaPlacement(replicas=2, min_in_sync=1)
    made = [wanted.new_record(f"x{n}", live[0].member, view, 1) for n in range(40)]
    assert Counter(record.successor or "a" for record in made) == dict.fromkeys("abcde", 8)
    assert Counter(record.replicas[1] for record in made) == dict.fromkeys("bcde", 10)


def test_brokers_without_a_report_are_chosen_by_their_rank() -> None:
    live = [broker(name) for name in "abcde"]
    assert replicas_of(live, "shop", replicas=3) == ("a", *rank_brokers("shop", "bcde")[:2])
    assert replicas_of(live, "shop", me=2)[0] == "c", "among equals the broker that was asked leads"


def test_a_replica_on_a_draining_broker_moves_to_one_with_room() -> None:
    known = ReplicaPlacement(replicas=2, min_in_sync=1).new_record(
        "x", member("a"), ClusterView([broker("a", 0.3), broker("b", 0.3)]), 1
    )
    live = [broker("a", 0.3), replace(broker("b", 0.3), draining=True), broker("c", 0.9), broker("d", 0.1)]
    found = ReplicaPlacement(replicas=2, min_in_sync=1).next_record(known, ClusterView(live))
    assert found is not None
    assert found.replicas == ("a", "b", "d")
    assert found.leaving == ("b",)
    draining = ReplicaPlacement(replicas=2).new_record("x", member("b"), ClusterView(live), 1)
    assert draining.successor == draining.replicas[1], "a draining broker hands a new business over"


@pytest.mark.parametrize("minimum", [1, 2])
def test_only_the_creator_of_a_business_is_complete_and_another_leader_is_requested(minimum: int) -> None:
    led_by_a = ReplicaPlacement(replicas=3).new_record("x", member("a"), ClusterView([broker("a")]), 1)
    view = ClusterView([broker(name) for name in "abc"], [led_by_a])
    made = ReplicaPlacement(replicas=3, min_in_sync=minimum).new_record("y", member("a"), view, 1)
    assert (made.leader, made.candidates, made.successor) == (member("a"), frozenset({member("a")}), "b")
    alone = ReplicaPlacement(replicas=1, min_in_sync=1).new_record("z", member("a"), view, 1)
    assert (alone.leader, alone.successor) == (member("a"), ""), "no broker leads that may be dead"


def test_a_requested_leader_counts_as_leader() -> None:
    wanted, made = ReplicaPlacement(replicas=3), list[Leadership]()
    for n in range(24):
        view = ClusterView([broker(name) for name in "abc"], made)
        made.append(wanted.new_record(f"x{n}", member("a"), view, 1))
    assert Counter(record.successor or "a" for record in made) == dict.fromkeys("abc", 8)


# -- sites -----------------------------------------------------------------------------------------------------------


def live_brokers(site: str, *names: str, disk: float = 0.1) -> list[LiveBroker]:
    return [replace(broker(name, disk), site=site) for name in names]


def test_replicas_go_to_different_sites_first_then_by_load() -> None:
    live = [*live_brokers("east", "a", "b"), *live_brokers("west", "c", "d"), *live_brokers("north", "e", disk=0.9)]
    for n in range(20):
        found = replicas_of(live, f"x{n}", replicas=3)
        assert {name for name in found if name in "ab"} == {"a"}
        assert "e" in found, "a full broker at a site of its own"
    assert len(replicas_of(live, replicas=4)) == 4, "where there are too few sites, they share one"


def test_a_broker_without_a_site_is_a_site_of_its_own() -> None:
    live = [*live_brokers("east", "a", "b"), *live_brokers("", "c", "d")]
    assert set(replicas_of(live, replicas=3)) == {"a", "c", "d"}


def test_replicas_that_share_a_site_are_repaired_one_after_the_other() -> None:
    wanted = ReplicaPlacement(replicas=3, min_in_sync=2)
    live = [*live_brokers("east", "a", "b", "c"), *live_brokers("west", "d"), *live_brokers("north", "e")]
    known = wanted.new_record("x", member("a"), ClusterView(live[:3]), 1)
    assert sorted(known.replicas) == ["a", "b", "c"]
    assert wanted.next_record(known, ClusterView(live[:3])) is None, "there is no other site"

    known = replace(known, in_sync=frozenset(map(member, "ab")))
    first = wanted.next_record(known, ClusterView(live))
    assert first is not None
    assert (len(first.replicas), first.leaving) == (4, ("c",)), (
        "the one that is not in sync goes first, never the leader"
    )
    assert wanted.next_record(first, ClusterView(live)) is None, "one at a time"

    moved = replace(first, in_sync=frozenset(map(member, set(first.replicas))))
    for _ in range(3):
        after = wanted.next_record(moved, ClusterView(live))
        assert after is not None
        moved = replace(after, in_sync=frozenset(map(member, after.replicas)))
    assert (set(moved.replicas), moved.leaving) == ({"a", "d", "e"}, ())
    assert wanted.next_record(moved, ClusterView(live)) is None


def test_a_dead_broker_still_occupies_its_site() -> None:
    wanted = ReplicaPlacement(replicas=3, min_in_sync=2)
    known = wanted.new_record(
        "x",
        member("a"),
        ClusterView([*live_brokers("east", "a"), *live_brokers("west", "b"), *live_brokers("north", "c")]),
        1,
    )
    left = [*live_brokers("east", "a"), *live_brokers("west", "b", "d")]
    assert wanted.next_record(known, ClusterView(left, sites={"c": "north"})) is None
    assert wanted.next_record(known, ClusterView([*left, *live_brokers("south", "e")], sites={"c": "west"})) is not None


def member(name: str) -> Member:
    return Member(broker=name, store=f"s{name}")


def test_replicas_move_to_a_new_broker_one_by_one_and_never_to_an_occupied_site() -> None:
    live = [*live_brokers("east", "a"), *live_brokers("west", "b"), *live_brokers("east", "d")]
    records = {
        f"x{n}": Leadership(
            business=f"x{n}",
            term=1,
            leader=member("b"),
            in_sync=frozenset(map(member, "ab")),
            replicas=("a", "b"),
        )
        for n in range(4)
    }
    view, (leading, other) = ClusterView(live, records.values()), (ReplicaBalancer("b"), ReplicaBalancer("a"))
    assert [one.next_record(records, view, 0.0) for one in (leading, other)] == [None, None], "it may not last"
    assert other.next_record(records, view, UNEVEN_S) is None, "the leader moves its replicas"
    moved = leading.next_record(records, view, UNEVEN_S)
    assert moved == replace(records["x0"], replicas=("a", "b", "d"), leaving=("a",))
    records["x0"] = moved
    assert leading.next_record(records, ClusterView(live, records.values()), UNEVEN_S + 1) is None, "one at a time"
    records["x0"] = replace(moved, in_sync=frozenset(map(member, "bd")), replicas=("b", "d"), leaving=())
    again = leading.next_record(records, ClusterView(live, records.values()), UNEVEN_S + 2)
    assert again == replace(records["x1"], replicas=("a", "b", "d"), leaving=("a",))

    west = [*live_brokers("east", "a"), *live_brokers("west", "b"), *live_brokers("west", "d")]
    before = {
        name: replace(one, in_sync=moved.in_sync, replicas=("a", "b"), leaving=()) for name, one in records.items()
    }
    crowded = ReplicaBalancer("b")
    for now in (0.0, UNEVEN_S):
        assert crowded.next_record(before, ClusterView(west, before.values()), now) is None, "b's site is d's"
