"""An upstream by its own report: its eligibility, the addresses of its set, and how its absence is shown."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from venus.broker.mirrors import topology_position
from venus.broker.mirrors.upstream_monitor import SetMembers, UpstreamMonitor, UpstreamPoller
from venus.broker.mirrors.upstream_selection import (
    AwayFromNearest,
    FitnessKind,
    LocalPosition,
    build_away_alarm,
    explain_absence,
    judge_fitness,
)
from venus.rpc.address import NONE
from venus.wire import broker_pb2

HERE = LocalPosition(end=100, epoch=7, next=102)
Mirror = broker_pb2.MirrorStatus


def entry(mirror: Mirror | None = None, **fields: object) -> broker_pb2.BusinessStatus:
    said = {"business": "main", "next_offset": 100, "log_start": 50, "epoch": 7, "mirror": mirror}
    return broker_pb2.BusinessStatus(**{**said, **fields})  # type: ignore[arg-type]


def following_mirror(**fields: object) -> Mirror:
    return Mirror(**{"state": "following", "epoch_at_end": 7, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "kind", "why"),
    [
        (entry(), FitnessKind.FIT, ""),
        (entry(epoch=9, next_offset=200, log_start=100), FitnessKind.FIT, ""),
        (entry(following_mirror(lag_ms=4000)), FitnessKind.FIT, ""),
        (entry(following_mirror(state="elsewhere")), FitnessKind.FIT, ""),
        (None, FitnessKind.APART, "it does not have main"),
        (entry(next_offset=102, log_start=102), FitnessKind.FIT, ""),
        (
            entry(next_offset=103, log_start=103),
            FitnessKind.APART,
            "its queue begins at offset 103, and this set needs 102 next",
        ),
        (entry(next_offset=99), FitnessKind.LATE, "it is 1 offsets behind this set"),
        (entry(epoch=6), FitnessKind.APART, "it has a history that the home has left"),
        (entry(following_mirror(epoch_at_end=6)), FitnessKind.APART, "it has a history that the home has left"),
        (entry(following_mirror(lag_ms=5500)), FitnessKind.LATE, "it lags behind by 5.5 s"),
        (entry(following_mirror(cut_off="europe")), FitnessKind.CUT_OFF, "it is cut off itself above set europe"),
        (entry(following_mirror(state="cut off")), FitnessKind.CUT_OFF, "it is cut off itself"),
        (entry(following_mirror(state="filling", reason="trimmed")), FitnessKind.APART, "it is filling: trimmed"),
        (entry(following_mirror(state="waiting")), FitnessKind.APART, "it is waiting"),
        (entry(replication=broker_pb2.ReplicationStatus()), FitnessKind.APART, "no broker leads it there"),
        (entry(replication=broker_pb2.ReplicationStatus(leader="b1")), FitnessKind.FIT, ""),
    ],
)
def test_an_upstream_is_as_healthy_as_it_reports(
    said: broker_pb2.BusinessStatus | None, kind: FitnessKind, why: str
) -> None:
    found = judge_fitness(said, "main", HERE)

    assert (found.kind, found.why) == (kind, why)


def test_an_older_upstream_that_answers_is_healthy() -> None:
    assert judge_fitness(entry(Mirror(state="following")), "main", HERE).kind is FitnessKind.FIT


def test_an_empty_set_requests_no_particular_position() -> None:
    assert judge_fitness(entry(log_start=99, epoch=1), "main", LocalPosition()).kind is FitnessKind.FIT


@pytest.mark.parametrize(
    ("kind", "left_s", "why", "do"),
    [
        (FitnessKind.FIT, 41.0, "it serves again; 41 s more without a break are needed", "it moves back by itself"),
        (FitnessKind.SILENT, None, "it does not answer: no", "start its brokers, or repair the line"),
        (FitnessKind.CUT_OFF, None, "no", "repair the line above it"),
        (FitnessKind.LATE, None, "no", "no action is needed if it catches up"),
        (FitnessKind.APART, None, "no", "see its `venus status`, and [cluster] upstream here"),
        (FitnessKind.UNKNOWN, None, "it has not been checked yet", "it moves back by itself"),
    ],
)
def test_an_absent_upstream_is_shown_with_reason_and_remedy(
    kind: FitnessKind, left_s: float | None, why: str, do: str
) -> None:
    away = AwayFromNearest(at="south", nearest="north", since=5.0, kind=kind, why="no", checked_at=80.0, left_s=left_s)

    assert explain_absence(away, 80.4) == why
    assert build_away_alarm(away, "main", 80.4) == (
        f"set north is the nearest above, and has not been used for 75 s: main comes from set south; {why}; {do}"
    )


def test_an_old_observation_is_not_reported_as_current() -> None:
    away = AwayFromNearest(
        at="south", nearest="north", since=5.0, kind=FitnessKind.FIT, why="", checked_at=80.0, left_s=41.0
    )

    assert explain_absence(away, 84.0) == "it served again 4 s ago; 41 s more without a break are needed"


def test_addresses_of_one_set_are_grouped_at_the_first() -> None:
    members = SetMembers(("a:1", "b:1", "a:2", "c:1"))
    assert list(members.sets()) == ["a:1", "b:1", "a:2", "c:1"]
    assert members.learn("a:2", "north")
    assert members.learn("b:1", "south")
    assert not members.learn("b:1", "south")
    assert not members.learn("d:1", "west"), "it was not asked for"
    assert members.learn("a:1", "north")

    assert members.sets() == {"north": ("a:1", "a:2"), "south": ("b:1",), "c:1": ("c:1",)}


def test_a_broker_answers_for_the_others_of_its_cluster() -> None:
    members = SetMembers(("a:1", "b:1", "a:2"))
    replicas = [broker_pb2.ReplicaStatus(address="a:1"), broker_pb2.ReplicaStatus(address="a:2")]
    said = broker_pb2.BrokerStatus(
        network=broker_pb2.NetworkStatus(set="north"),
        businesses=[entry(replication=broker_pb2.ReplicationStatus(replicas=replicas))],
    )

    assert members.learn_from("a:2", said)
    assert members.sets() == {"north": ("a:1", "a:2"), "b:1": ("b:1",)}


class ScriptedPoller(UpstreamPoller):
    """Poller of an upstream whose results the test sets."""

    def start(self) -> None:
        """Do nothing."""

    def see(self, address: str, name: str) -> None:
        self.answered_by, self.has_looked = address, True
        self.record_status(broker_pb2.BrokerStatus(network=broker_pb2.NetworkStatus(set=name)), 1.0)
        self._looked(self)


def test_a_set_keeps_its_poller_when_its_name_becomes_known_and_others_join_it() -> None:
    learned: list[tuple[str, Mapping[str, str]]] = []

    def note(look: UpstreamPoller, names: Mapping[str, str]) -> None:
        learned.append((look.name, names))

    looks = UpstreamMonitor(("a:1", "b:1", "a:2"), NONE, "mirror/x", looked=note, look=ScriptedPoller)
    first, second, third = looks.all
    assert isinstance(first, ScriptedPoller)
    assert isinstance(third, ScriptedPoller)

    third.see("a:2", "north")
    first.see("a:1", "north")

    assert learned == [("north", {"a:2": "north"}), ("north", {"a:1": "north"})]
    assert [(look.name, str(look.reach)) for look in looks.all] == [("north", "a:1,a:2"), ("b:1", "b:1")]
    assert looks.all == (third, second)
    first.see("a:1", "north")
    assert len(learned) == 2, "it is a part of another one now"


def test_a_set_asks_those_above_for_the_tables_that_its_labels_and_predicates_name() -> None:
    labels = {"eu": ("orders", "business:crm", "app.customers"), "us": ("prices",)}
    named = topology_position.needed_tables(labels, ("eu",), {"main": {"items": "a = 1"}, "crm": {"orders": "b = 2"}})
    assert named == ("app.customers", "items", "orders")

    looks = UpstreamMonitor(("a:1", "b:1"), NONE, "mirror/x", looked=lambda *_: None, look=ScriptedPoller, named=named)

    assert {look.named for look in looks.all} == {named}
