"""What a broker says of its load: rounded, seldom, and placed by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from venus.broker.replicas.broker_load import AGAIN_AFTER_S, MEASURE_EVERY_S, BrokerLoad, MachineLoad
from venus.broker.replicas.placement import ReplicaPlacement
from venus.coordination.stored_records import decode_broker, encode_broker
from venus.errors import ProtocolError
from venus.network.scheduling import Load, rank_brokers
from venus.replication.records import LiveBroker, Member


def broker(name: str, disk: float | None = None, *, report: int = 1, businesses: int = 3) -> LiveBroker:
    load = None if disk is None else Load(disk=disk, network=disk)
    return LiveBroker(
        member=Member(broker=name, store=f"s{name}"),
        address=f"{name}:1",
        load=load,
        report=report,
        businesses=businesses,
    )


def test_a_load_is_said_when_it_has_changed_and_now_and_then() -> None:
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


def test_what_is_said_of_a_load_is_kept_and_checked() -> None:
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


def test_replicas_are_placed_where_there_is_room() -> None:
    wanted = ReplicaPlacement(replicas=2, min_in_sync=1)
    me = broker("a", 0.3)
    live = [me, broker("b", 0.2), broker("c", 0.7), broker("d", 0.85), broker("e", 0.2)]
    got = [wanted.new_record(f"x{n}", me.member, live, 1).replicas[1] for n in range(6)]
    assert set(got) == {"b", "e"}


def test_one_after_the_other_is_placed_without_a_new_report() -> None:
    wanted = ReplicaPlacement(replicas=2, min_in_sync=1)
    me = broker("a", 0.3)
    live = [me, *(broker(name, 0.2 if name == "b" else 0.3) for name in "bcde")]
    got = [wanted.new_record(f"x{n}", me.member, live, 1, 1.0).replicas[1] for n in range(40)]
    assert all(5 <= got.count(name) <= 16 for name in "bcde"), got


def test_brokers_that_say_nothing_are_placed_by_their_rank_as_before() -> None:
    wanted = ReplicaPlacement(replicas=3, min_in_sync=1)
    me, live = broker("a"), [broker(name) for name in "abcde"]
    first = wanted.new_record("shop", me.member, live, 1)
    assert first.replicas == ("a", *rank_brokers("shop", "bcde")[:2])
    assert {wanted.new_record("shop", me.member, live, 1).replicas for _ in range(10)} == {first.replicas}


def test_a_draining_broker_is_replaced_by_one_with_room() -> None:
    wanted = ReplicaPlacement(replicas=2, min_in_sync=1)
    me = broker("a", 0.3)
    known = wanted.new_record("x", me.member, [me, broker("b", 0.3)], 1)
    live = [me, replace(broker("b", 0.3), draining=True), broker("c", 0.9), broker("d", 0.1)]
    found = wanted.next_record(known, live, 5.0)
    assert found is not None
    assert found.replicas == ("a", "b", "d")
    assert found.leaving == ("b",)
