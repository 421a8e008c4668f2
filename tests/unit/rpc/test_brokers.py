"""The order in which brokers are asked, and which address of a leader is accepted."""

from __future__ import annotations

from typing import cast

import grpc
import pytest

from tests.unit.rpc.test_errors import Failure
from venus.errors import NotLeader, Unavailable
from venus.network.directory import BACK_AFTER_S, LOOK_EVERY_S
from venus.rpc.broker_selection import AWAY_S, PROBE_EVERY_S, PROBE_TIMEOUT_S, BrokerSelector, shared_selector
from venus.rpc.errors import LEADER_KEY, from_rpc_error, to_status


def test_the_leader_comes_first_and_the_lost_broker_last() -> None:
    found = BrokerSelector(("a:1", "b:1", "c:1"))
    assert found.in_order("main") == ["a:1", "b:1", "c:1"]

    found.record_lost("c:1")
    assert found.in_order("main") == ["a:1", "b:1", "c:1"], "it was not the first anyway"
    found.record_lost("a:1")
    found.record_leader("main", "c:1")
    assert found.in_order("main") == ["c:1", "b:1", "a:1"]
    assert found.in_order("other") == ["b:1", "c:1", "a:1"]

    found.record_lost("c:1")
    assert found.in_order("main") == ["b:1", "c:1", "a:1"]
    found.record_lost("b:1")
    assert found.in_order("main") == ["c:1", "a:1", "b:1"]


def test_a_leader_outside_the_list_is_asked_and_then_forgotten() -> None:
    found = BrokerSelector(("a:1",))
    found.record_leader("main", "new:1")
    assert found.in_order("main") == ["new:1", "a:1"]
    found.record_leader("main", "")
    assert found.in_order("main") == ["a:1"]
    found.record_lost("a:1")
    assert found.in_order("main") == ["a:1"]


def test_the_known_leader_is_shared_within_a_process() -> None:
    assert shared_selector("x:1,y:1") is shared_selector("x:1,y:1")
    assert shared_selector("x:1,y:1").addresses == ("x:1", "y:1")


def test_the_leaders_address_is_sent_with_the_error() -> None:
    back = from_rpc_error(cast("grpc.RpcError", Failure(*to_status(NotLeader("no", hint="h", leader="[::1]:7400")))))

    assert isinstance(back, NotLeader)
    assert isinstance(back, Unavailable)
    assert (str(back), back.hint, back.leader, back.retryable) == ("no", "h", "[::1]:7400", True)


@pytest.mark.parametrize(
    "given", ["", "here", "a:1,b:2", "http://a:1", "ä:1", "a:123456", "x" * 400 + ":1", b"a:1", "a:1\n"]
)
def test_an_invalid_address_is_not_accepted(given: str | bytes) -> None:
    code, details, metadata = to_status(NotLeader("no"))
    back = from_rpc_error(cast("grpc.RpcError", Failure(code, details, (*metadata, (LEADER_KEY, given)))))

    assert isinstance(back, NotLeader)
    assert back.leader == ""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_failed_broker_is_asked_last_then_probed_and_used_again() -> None:
    clock = Clock()
    found = BrokerSelector(("a:1", "b:1"), monotonic=clock)
    found.record_lost("a:1", "refused")
    assert found.isolated_brokers() == {"a:1": "refused"}
    assert found.in_order("main") == ["b:1", "a:1"]
    assert found.patience_s("a:1") is None, "asked now, it is the last resort and has its time"
    clock.now = PROBE_EVERY_S
    assert found.isolated_brokers() == {}
    assert found.patience_s("a:1") == PROBE_TIMEOUT_S
    assert found.isolated_brokers() == {"a:1": "refused"}, "a second one does not probe at the same time"
    found.record_success("a:1", 0.01)
    assert found.isolated_brokers() == {}
    assert found.patience_s("a:1") is None


def test_a_slow_answer_isolates_and_a_fast_one_of_the_same_broker_ends_it() -> None:
    clock = Clock()
    found = BrokerSelector(("a:1", "b:1"), monotonic=clock)
    found.record_success("a:1", 0.5)
    assert found.isolated_brokers() == {}
    found.record_success("a:1", 2.0)
    assert found.isolated_brokers() == {"a:1": "answered after 2.0 s"}
    assert found.in_order("main") == ["b:1", "a:1"]
    found.record_success("a:1", 0.1)
    assert found.isolated_brokers() == {}


def test_an_isolated_broker_is_asked_first_once_another_names_it_as_leader() -> None:
    found = BrokerSelector(("a:1", "b:1", "c:1"), monotonic=Clock())
    found.record_success("a:1", 2.0)
    found.record_leader("main", "a:1")
    assert found.in_order("main") == ["a:1", "b:1", "c:1"]
    assert found.in_order("other") == ["b:1", "c:1", "a:1"]


def test_an_isolated_broker_is_asked_before_one_that_just_said_it_does_not_lead() -> None:
    found = BrokerSelector(("a:1", "b:1"), monotonic=Clock())
    found.record_success("a:1", 2.0)
    found.try_last("b:1")
    assert found.in_order("main", "b:1") == ["a:1", "b:1"]
    assert found.in_order("main") == ["b:1", "a:1"]


def test_a_broker_that_knows_no_leader_is_skipped_and_not_isolated() -> None:
    found = BrokerSelector(("a:1", "b:1"), monotonic=Clock())
    found.try_last("a:1")
    assert found.in_order("main") == ["b:1", "a:1"]
    assert found.isolated_brokers() == {}


def test_an_answer_is_slow_only_compared_with_fast_ones() -> None:
    found = BrokerSelector(("a:1", "b:1"), monotonic=Clock())
    found.record_success("b:1", 0.5)
    found.record_success("a:1", 1.9)
    assert found.isolated_brokers() == {}, "this process is slow, not one of the brokers"
    found.record_success("b:1", 0.01)
    found.record_success("a:1", 2.0)
    assert set(found.isolated_brokers()) == {"a:1"}


# -- several sets ------------------------------------------------------------------------------------------------------


def look_for(found: BrokerSelector, clock: Clock, seconds: float, serving: set[str]) -> None:
    end = clock.now + seconds
    while clock.now < end:
        clock.now += LOOK_EVERY_S
        found.probe_nearer(lambda address: address in serving)


def test_the_sets_are_asked_in_order_and_a_set_is_lost_with_its_last_broker() -> None:
    found = BrokerSelector(("a1:1", "a2:1"), ("b1:1", "b2:1"), ("c1:1",), monotonic=Clock())
    assert found.in_order("main") == ["a1:1", "a2:1", "b1:1", "b2:1", "c1:1"]
    found.record_lost("a1:1")
    assert found.in_order("main") == ["a2:1", "a1:1", "b1:1", "b2:1", "c1:1"]
    assert found.place == 0
    found.record_leader("main", "a2:1")
    found.record_lost("a2:1")
    assert found.in_order("main") == ["b1:1", "b2:1", "c1:1", "a1:1", "a2:1"]
    assert found.place == 1
    found.record_lost("b1:1")
    found.record_lost("b2:1")
    assert found.in_order("main") == ["c1:1", "a1:1", "a2:1", "b1:1", "b2:1"]
    found.record_lost("c1:1")
    assert (found.in_order("main")[0], found.place) == ("a1:1", 0), "none is left: from the beginning"


def test_a_slow_broker_of_the_nearest_set_is_asked_before_those_of_the_next() -> None:
    found = BrokerSelector(("a1:1", "a2:1"), ("b1:1",), monotonic=Clock())
    found.record_success("a1:1", 2.0)
    assert found.in_order("main") == ["a2:1", "a1:1", "b1:1"]
    assert found.in_order("main", "a2:1") == ["a1:1", "a2:1", "b1:1"]


def test_a_broker_that_was_lost_long_ago_is_asked_before_the_next_set() -> None:
    clock = Clock()
    found = BrokerSelector(("a1:1", "a2:1"), ("b1:1",), monotonic=clock)
    found.record_lost("a1:1")
    clock.now = AWAY_S
    found.record_lost("a2:1")
    assert (found.in_order("main")[0], found.place) == ("a1:1", 0)
    found.record_lost("a1:1")
    assert (found.in_order("main")[0], found.place) == ("b1:1", 1)


def test_the_nearer_set_is_used_again_after_a_healthy_minute() -> None:
    clock = Clock()
    found = BrokerSelector(("a1:1", "a2:1"), ("b1:1",), monotonic=clock)
    found.record_lost("a1:1")
    found.record_lost("a2:1")
    found.record_leader("main", "b1:1")
    look_for(found, clock, 300, serving=set())
    assert found.place == 1
    look_for(found, clock, BACK_AFTER_S, serving={"a2:1"})
    assert found.place == 1, "the first look at which it served was the beginning of the minute"
    look_for(found, clock, LOOK_EVERY_S, serving={"a2:1"})
    assert found.place == 0
    assert found.in_order("main") == ["a1:1", "a2:1", "b1:1"], "who leads elsewhere is forgotten"


def test_an_absence_of_the_nearer_set_restarts_its_minute() -> None:
    clock = Clock()
    found = BrokerSelector(("a:1",), ("b:1",), monotonic=clock)
    found.record_lost("a:1")
    look_for(found, clock, BACK_AFTER_S - LOOK_EVERY_S, serving={"a:1"})
    look_for(found, clock, LOOK_EVERY_S, serving=set())
    look_for(found, clock, BACK_AFTER_S, serving={"a:1"})
    assert found.place == 1
    look_for(found, clock, LOOK_EVERY_S, serving={"a:1"})
    assert found.place == 0


def test_a_set_without_a_leader_is_left() -> None:
    found = BrokerSelector(("a1:1", "a2:1"), ("b1:1",), monotonic=Clock())
    found.record_lost_set("a2:1")
    assert found.in_order("main") == ["b1:1", "a1:1", "a2:1"]
    found.record_lost_set("unknown:1")
    assert found.place == 1


def test_sets_are_parsed_from_one_text() -> None:
    assert shared_selector("x:1,y:1;z:1").in_order("main") == ["x:1", "y:1", "z:1"]
    shared_selector("x:1,y:1;z:1").record_lost_set("y:1")
    assert shared_selector("x:1,y:1;z:1").in_order("main") == ["z:1", "x:1", "y:1"]
