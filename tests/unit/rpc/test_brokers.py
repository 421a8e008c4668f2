"""In which order brokers are asked, and which address of a leader is believed."""

from __future__ import annotations

from typing import cast

import grpc
import pytest

from tests.unit.rpc.test_errors import Failure
from venus.errors import NotLeader, Unavailable
from venus.rpc.brokers import PROBE_EVERY_S, PROBE_TIMEOUT_S, Brokers, known
from venus.rpc.errors import LEADER_KEY, from_rpc_error, to_status


def test_the_leader_comes_first_and_whoever_was_lost_last() -> None:
    found = Brokers(("a:1", "b:1", "c:1"))
    assert found.in_order("main") == ["a:1", "b:1", "c:1"]

    found.lost("c:1")
    assert found.in_order("main") == ["a:1", "b:1", "c:1"], "it was not the first anyway"
    found.lost("a:1")
    found.leads("main", "c:1")
    assert found.in_order("main") == ["c:1", "b:1", "a:1"]
    assert found.in_order("other") == ["b:1", "c:1", "a:1"]

    found.lost("c:1")
    assert found.in_order("main") == ["b:1", "c:1", "a:1"]
    found.lost("b:1")
    assert found.in_order("main") == ["c:1", "a:1", "b:1"]


def test_a_leader_that_is_not_in_the_list_is_asked_and_forgotten() -> None:
    found = Brokers(("a:1",))
    found.leads("main", "new:1")
    assert found.in_order("main") == ["new:1", "a:1"]
    found.leads("main", "")
    assert found.in_order("main") == ["a:1"]
    found.lost("a:1")
    assert found.in_order("main") == ["a:1"]


def test_what_is_known_is_shared_by_a_process() -> None:
    assert known("x:1,y:1") is known("x:1,y:1")
    assert known("x:1,y:1").addresses == ("x:1", "y:1")


def test_the_leaders_address_travels() -> None:
    back = from_rpc_error(cast("grpc.RpcError", Failure(*to_status(NotLeader("no", hint="h", leader="[::1]:7400")))))

    assert isinstance(back, NotLeader)
    assert isinstance(back, Unavailable)
    assert (str(back), back.hint, back.leader, back.retryable) == ("no", "h", "[::1]:7400", True)


@pytest.mark.parametrize(
    "told", ["", "here", "a:1,b:2", "http://a:1", "ä:1", "a:123456", "x" * 400 + ":1", b"a:1", "a:1\n"]
)
def test_what_is_no_address_is_not_believed(told: str | bytes) -> None:
    code, details, metadata = to_status(NotLeader("no"))
    back = from_rpc_error(cast("grpc.RpcError", Failure(code, details, (*metadata, (LEADER_KEY, told)))))

    assert isinstance(back, NotLeader)
    assert back.leader == ""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_fails_once_is_asked_last_then_probed_shortly_and_comes_back_by_himself() -> None:
    clock = Clock()
    found = Brokers(("a:1", "b:1"), clock)
    found.lost("a:1", "refused")
    assert found.isolated() == {"a:1": "refused"}
    assert found.in_order("main") == ["b:1", "a:1"]
    assert found.patience_s("a:1") is None, "asked now, it is the last resort and has its time"
    clock.now = PROBE_EVERY_S
    assert found.isolated() == {}
    assert found.patience_s("a:1") == PROBE_TIMEOUT_S
    assert found.isolated() == {"a:1": "refused"}, "a second one does not probe at the same time"
    found.answered("a:1", 0.01)
    assert found.isolated() == {}
    assert found.patience_s("a:1") is None


def test_a_slow_answer_isolates_and_a_quick_one_of_the_same_broker_ends_it() -> None:
    clock = Clock()
    found = Brokers(("a:1", "b:1"), clock)
    found.answered("a:1", 0.5)
    assert found.isolated() == {}
    found.answered("a:1", 2.0)
    assert found.isolated() == {"a:1": "answered after 2.0 s"}
    assert found.in_order("main") == ["b:1", "a:1"]
    found.answered("a:1", 0.1)
    assert found.isolated() == {}


def test_for_what_it_leads_an_isolated_broker_is_asked_first_as_soon_as_another_names_it() -> None:
    found = Brokers(("a:1", "b:1", "c:1"), Clock())
    found.answered("a:1", 2.0)
    found.leads("main", "a:1")
    assert found.in_order("main") == ["a:1", "b:1", "c:1"]
    assert found.in_order("other") == ["b:1", "c:1", "a:1"]


def test_an_isolated_one_is_asked_before_one_that_has_just_said_that_it_does_not_lead() -> None:
    found = Brokers(("a:1", "b:1"), Clock())
    found.answered("a:1", 2.0)
    found.passed_over("b:1")
    assert found.in_order("main", "b:1") == ["a:1", "b:1"]
    assert found.in_order("main") == ["b:1", "a:1"]


def test_one_that_knows_no_leader_is_passed_over_and_not_isolated() -> None:
    found = Brokers(("a:1", "b:1"), Clock())
    found.passed_over("a:1")
    assert found.in_order("main") == ["b:1", "a:1"]
    assert found.isolated() == {}


def test_an_answer_is_slow_only_beside_others_that_are_quick() -> None:
    found = Brokers(("a:1", "b:1"), Clock())
    found.answered("b:1", 0.5)
    found.answered("a:1", 1.9)
    assert found.isolated() == {}, "this process is slow, not one of the brokers"
    found.answered("b:1", 0.01)
    found.answered("a:1", 2.0)
    assert set(found.isolated()) == {"a:1"}
