"""How fit a set above is, as it says itself; which addresses belong to one set; and what is said of being away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from venus.broker.mirrors import place
from venus.broker.mirrors.looks import Look, Looks, Members
from venus.broker.mirrors.uppers import Away, Kind
from venus.broker.mirrors.whom import Here, alarm, fitness, why_not_back
from venus.rpc.address import NONE
from venus.wire import broker_pb2

HERE = Here(end=100, epoch=7, next=102)
Mirror = broker_pb2.MirrorStatus


def entry(mirror: Mirror | None = None, **fields: object) -> broker_pb2.BusinessStatus:
    said = {"business": "main", "next_offset": 100, "log_start": 50, "epoch": 7, "mirror": mirror}
    return broker_pb2.BusinessStatus(**{**said, **fields})  # type: ignore[arg-type]


def following(**fields: object) -> Mirror:
    return Mirror(**{"state": "following", "epoch_at_end": 7, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "kind", "why"),
    [
        (entry(), Kind.FIT, ""),
        (entry(epoch=9, next_offset=200, log_start=100), Kind.FIT, ""),
        (entry(following(lag_ms=4000)), Kind.FIT, ""),
        (entry(following(state="elsewhere")), Kind.FIT, ""),
        (None, Kind.APART, "it does not have main"),
        (entry(next_offset=102, log_start=102), Kind.FIT, ""),
        (
            entry(next_offset=103, log_start=103),
            Kind.APART,
            "its queue begins at offset 103, and this set needs 102 next",
        ),
        (entry(next_offset=99), Kind.LATE, "it is 1 offsets behind this set"),
        (entry(epoch=6), Kind.APART, "it has a history that the home has left"),
        (entry(following(epoch_at_end=6)), Kind.APART, "it has a history that the home has left"),
        (entry(following(lag_ms=5500)), Kind.LATE, "it lags behind by 5.5 s"),
        (entry(following(cut_off="europe")), Kind.CUT_OFF, "it is cut off itself above set europe"),
        (entry(following(state="cut off")), Kind.CUT_OFF, "it is cut off itself"),
        (entry(following(state="filling", reason="trimmed")), Kind.APART, "it is filling: trimmed"),
        (entry(following(state="waiting")), Kind.APART, "it is waiting"),
        (entry(replication=broker_pb2.ReplicationStatus()), Kind.APART, "no broker leads it there"),
        (entry(replication=broker_pb2.ReplicationStatus(leader="b1")), Kind.FIT, ""),
    ],
)
def test_a_set_above_is_as_fit_as_it_says(said: broker_pb2.BusinessStatus | None, kind: Kind, why: str) -> None:
    found = fitness(said, "main", HERE)

    assert (found.kind, found.why) == (kind, why)


def test_an_older_set_that_answers_is_fit() -> None:
    assert fitness(entry(Mirror(state="following")), "main", HERE).kind is Kind.FIT


def test_who_has_nothing_yet_asks_for_nothing_in_particular() -> None:
    assert fitness(entry(log_start=99, epoch=1), "main", Here()).kind is Kind.FIT


@pytest.mark.parametrize(
    ("kind", "left_s", "why", "do"),
    [
        (Kind.FIT, 41.0, "it serves again; 41 s more without a break are needed", "it moves back by itself"),
        (Kind.SILENT, None, "it does not answer: no", "start its brokers, or repair the line"),
        (Kind.CUT_OFF, None, "no", "repair the line above it"),
        (Kind.LATE, None, "no", "no action is needed if it catches up"),
        (Kind.APART, None, "no", "see its `venus status`, and [cluster] upstream here"),
        (Kind.UNKNOWN, None, "it has not been checked yet", "it moves back by itself"),
    ],
)
def test_who_is_away_says_why_and_what_to_do(kind: Kind, left_s: float | None, why: str, do: str) -> None:
    away = Away(at="south", nearest="north", since=5.0, kind=kind, why="no", looked_at=80.0, left_s=left_s)

    assert why_not_back(away, 80.4) == why
    assert alarm(away, "main", 80.4) == (
        f"set north is the nearest above, and is not used for 75 s: main comes from set south; {why}; {do}"
    )


def test_what_was_seen_of_a_set_a_while_ago_is_not_said_of_now() -> None:
    away = Away(at="south", nearest="north", since=5.0, kind=Kind.FIT, why="", looked_at=80.0, left_s=41.0)

    assert why_not_back(away, 84.0) == "it served again 4 s ago; 41 s more without a break are needed"


def test_addresses_of_one_set_belong_together_in_the_place_of_the_first() -> None:
    members = Members(("a:1", "b:1", "a:2", "c:1"))
    assert list(members.sets()) == ["a:1", "b:1", "a:2", "c:1"]
    assert members.learn("a:2", "north")
    assert members.learn("b:1", "south")
    assert not members.learn("b:1", "south")
    assert not members.learn("d:1", "west"), "nobody asked for it"
    assert members.learn("a:1", "north")

    assert members.sets() == {"north": ("a:1", "a:2"), "south": ("b:1",), "c:1": ("c:1",)}


def test_a_broker_speaks_for_the_others_of_its_cluster() -> None:
    members = Members(("a:1", "b:1", "a:2"))
    replicas = [broker_pb2.ReplicaStatus(address="a:1"), broker_pb2.ReplicaStatus(address="a:2")]
    said = broker_pb2.BrokerStatus(
        network=broker_pb2.NetworkStatus(set="north"),
        businesses=[entry(replication=broker_pb2.ReplicationStatus(replicas=replicas))],
    )

    assert members.learn_from("a:2", said)
    assert members.sets() == {"north": ("a:1", "a:2"), "b:1": ("b:1",)}


class Answers(Look):
    """A look that is told what to see."""

    def start(self) -> None:
        """Do nothing."""

    def sees(self, address: str, name: str) -> None:
        self.answered_by, self.has_looked = address, True
        self.said(broker_pb2.BrokerStatus(network=broker_pb2.NetworkStatus(set=name)), 1.0)
        self._looked(self)


def test_a_set_keeps_its_look_when_its_name_becomes_known_and_others_join_it() -> None:
    told: list[tuple[str, Mapping[str, str]]] = []
    note: Callable[[Look, Mapping[str, str]], None] = lambda look, renamed: told.append((look.name, renamed))  # noqa: E731
    looks = Looks(("a:1", "b:1", "a:2"), NONE, "mirror/x", looked=note, look=Answers)
    first, second, third = looks.all
    assert isinstance(first, Answers)
    assert isinstance(third, Answers)

    third.sees("a:2", "north")
    first.sees("a:1", "north")

    assert told == [("north", {"a:2": "north"}), ("north", {"a:1": "north"})]
    assert [(look.name, str(look.reach)) for look in looks.all] == [("north", "a:1,a:2"), ("b:1", "b:1")]
    assert looks.all == (third, second)
    first.sees("a:1", "north")
    assert len(told) == 2, "it is a part of another one now"


def test_a_set_asks_those_above_for_the_tables_that_its_labels_and_predicates_name() -> None:
    labels = {"eu": ("orders", "business:crm", "app.customers"), "us": ("prices",)}
    named = place.named(labels, ("eu",), {"main": {"items": "a = 1"}, "crm": {"orders": "b = 2"}})
    assert named == ("app.customers", "items", "orders")

    looks = Looks(("a:1", "b:1"), NONE, "mirror/x", looked=lambda *_: None, look=Answers, named=named)

    assert {look.named for look in looks.all} == {named}
