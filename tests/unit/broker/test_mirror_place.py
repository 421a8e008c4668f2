"""The position of a set in the topology, the tables it mirrors there, and its lag, tested without a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.mirrors.topology_position import (
    SetPosition,
    UpstreamLag,
    explain_late_cut,
    explain_refusal,
    find_absent_labels,
    find_missing_labels,
    path_of,
    select_tables,
)
from venus.broker.queue.reduced_batches import OpenBatch, ReducedBatchCache, WantedPart
from venus.network.topology import is_labelled
from venus.wire import broker_pb2, change_pb2

HERE = SetPosition(set="eu", tier="access", level=2)


def upstream_status(**fields: object) -> broker_pb2.NetworkStatus:
    said = {"set": "t", "tier": "tandem", "level": 1, "path": ["home", "t"], "networks": ["n"]}
    return broker_pb2.NetworkStatus(**{**said, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("network", "known", "says"),
    [
        (upstream_status(), (), ""),
        (upstream_status(), ("n", "m"), ""),
        (upstream_status(networks=[]), ("n",), ""),
        (upstream_status(path=["home", "eu", "t"]), (), "the sets are in a loop: home -> eu -> t -> eu;"),
        (upstream_status(path=[], set="eu"), (), "in a loop: eu -> eu"),
        (
            upstream_status(level=0),
            (),
            "set t is at level 0, and access set eu at level 2 needs one of level 1 above it",
        ),
        (upstream_status(level=2), (), "needs one of level 1 above it"),
        (upstream_status(networks=["x"]), ("n",), r"set t belongs to another network (id x), this broker's data to n"),
        (upstream_status(refused="no"), (), "set t above is refused itself: no"),
        (
            upstream_status(tier="access"),
            (),
            "set eu pulls from t, an access set: those serve consumers; make it a tandem set;",
        ),
        (upstream_status(tier="of a later version"), (), ""),
    ],
)
def test_a_set_is_below_the_level_above(network: broker_pb2.NetworkStatus, known: tuple[str, ...], says: str) -> None:
    found = explain_refusal(HERE, network, known)

    assert says in found
    assert bool(found) == bool(says)


def test_core_sets_mirror_core_sets() -> None:
    here = SetPosition(set="core-b", tier="core", level=0)

    assert explain_refusal(here, upstream_status(set="core-a", tier="core", level=0, path=["core-a"]), ()) == ""
    assert explain_refusal(here, upstream_status(level=1), ()) != ""


def test_labels_that_the_set_above_lacks_are_refused() -> None:
    wanting = replace(HERE, labels=frozenset({"eu", "us"}))

    assert find_missing_labels(wanting, upstream_status()) == []
    assert find_missing_labels(wanting, upstream_status(labels=["eu", "us", "asia"])) == []
    assert find_missing_labels(wanting, upstream_status(labels=["eu"])) == [
        "set eu pulls the label us, and t above does not get it: add it there"
    ]
    assert find_missing_labels(HERE, upstream_status(labels=["eu"])) == [
        "set eu pulls everything, and t above gets some labels only: name them, or let it get all"
    ]
    assert find_missing_labels(wanting, upstream_status(tier="of a later version", labels=["eu"])) == []


def test_the_path_grows_by_one() -> None:
    assert path_of(HERE, None) == ["eu"]
    assert path_of(HERE, upstream_status()) == ["home", "t", "eu"]
    assert path_of(HERE, upstream_status(path=[])) == ["t", "eu"]


def test_labels_select_tables() -> None:
    labels = {"eu": ["orders", "business:crm"], "us": ["app.orders", "Items"], "crm": ["business:crm"]}

    assert select_tables(labels, [], "main") == ()
    assert select_tables(labels, ["eu", "us"], "main") == ("Items", "app.orders", "orders")
    assert select_tables(labels, ["eu"], "crm") == ()
    assert select_tables(labels, ["crm"], "main") is None
    assert select_tables({"nothing": ()}, ["nothing"], "main") is None, "a label that names nothing is not everything"
    assert find_absent_labels(labels, ["eu", "us"], ["main"], ["orders", "app.orders", "items"]) == [
        "label eu names business:crm, which the set above does not have"
    ]


def test_tables_are_found_by_name() -> None:
    assert is_labelled(["orders"], "APP", "ORDERS")
    assert is_labelled(["app.Orders"], "APP", "ORDERS")
    assert not is_labelled(["b.orders"], "app", "orders")
    assert is_labelled([], "venus", "heartbeat")
    assert not is_labelled([], "app", "orders")


def body(*tables: tuple[int, int, int]) -> bytes:
    message = change_pb2.BatchBody(batch_no=7, first_sequence=3, count=sum(t[2] for t in tables), cut=7, cut_end=True)
    for table_id, kind, count in tables:
        message.tables.add(
            table_id=table_id,
            schema_version=1,
            kind=change_pb2.TableChanges.Kind.ValueType(kind),
            count=count,
            rows=b"r" * (count if table_id else 0),
        )
        if table_id:
            message.schemas.add(table_id=table_id, version=1)
    return message.SerializeToString()


def test_a_batch_is_reduced_to_some_tables_with_the_same_sequences() -> None:
    whole = body((1, 0, 2), (2, 0, 3), (3, 1, 1), (1, 0, 4), (2, 0, 5))

    found = change_pb2.BatchBody.FromString(OpenBatch(whole).reduce(WantedPart(frozenset({1}))).body)

    assert [(t.table_id, t.kind, t.count) for t in found.tables] == [(1, 0, 2), (0, 4, 4), (1, 0, 4), (0, 4, 5)]
    assert [s.table_id for s in found.schemas] == [1, 1]
    assert (found.batch_no, found.first_sequence, found.count, found.cut_end) == (7, 3, 15, True)
    assert not any(t.rows for t in found.tables if t.kind == 4)


def test_a_batch_without_other_tables_keeps_its_bytes() -> None:
    whole = body((1, 0, 2), (2, 0, 3))

    assert OpenBatch(whole).reduce(WantedPart(frozenset({1, 2, 3}))).body is whole
    once = OpenBatch(whole).reduce(WantedPart(frozenset({1}))).body
    assert OpenBatch(once).reduce(WantedPart(frozenset({1}))).body is once
    assert change_pb2.BatchBody.FromString(OpenBatch(once).reduce(WantedPart(frozenset({9}))).body).tables[0].count == 5


@pytest.mark.parametrize(
    ("changed", "cut", "groups", "waits"),
    [
        ("the labels have changed", (3, 10), ("main/eu",), True),
        ("the labels have changed", (3, 9), ("main/eu",), True),
        ("the labels have changed", (3, 11), ("main/eu",), False),  # every reader is below the cut
        ("the labels have changed", (4, 2), ("main/eu",), False),  # another history: the readers have diverged
        ("the labels have changed", (3, 10), (), False),
        ("", (3, 10), ("main/eu",), False),
    ],
)
def test_changed_options_wait_for_a_cut_after_every_consumer(
    changed: str, cut: tuple[int, int], groups: tuple[str, ...], waits: bool
) -> None:
    assert bool(explain_late_cut(changed, cut, (3, 10), groups)) is waits


def test_lag_is_measured_from_the_sight_of_an_offset_above() -> None:
    lag = UpstreamLag()
    lag.record_end(10, 1.0)
    lag.record_end(20, 2.0)
    lag.record_end(20, 3.0)

    assert (lag.milliseconds(5, 4.0), lag.offsets(5)) == (3000, 15)
    assert (lag.milliseconds(10, 4.0), lag.offsets(10)) == (2000, 10)
    assert (lag.milliseconds(20, 4.0), lag.offsets(20)) == (0, 0)


def test_an_offset_that_vanished_above_is_no_lag() -> None:
    lag = UpstreamLag()
    lag.record_end(10, 1.0)
    lag.record_end(80, 2.0)
    lag.record_end(65, 9.0)  # the home was restored from a backup, or another set is the upstream

    assert lag.milliseconds(60, 10.0) == 1000
    assert (lag.milliseconds(65, 100.0), lag.offsets(65)) == (0, 0)


def test_a_batch_that_replaced_another_is_not_taken_as_the_same() -> None:
    cut, business, ids = (
        ReducedBatchCache(),
        Business(1, "main", ReviewSchedule(first_s=1.0)),
        WantedPart(frozenset({2})),
    )

    def body(count: int) -> bytes:
        return change_pb2.BatchBody(
            batch_no=1, tables=[change_pb2.TableChanges(table_id=3, count=count)]
        ).SerializeToString()

    def make_batch(digest: int) -> QueuedBatch:
        return QueuedBatch(
            base_offset=0,
            index=7,
            count=1,
            epoch=1,
            batch_no=1,
            cut=1,
            first_sequence=1,
            last_sequence=1,
            committed_at_us=0,
            captured_at_us=0,
            digest=digest,
            nbytes=0,
            before=0,
            cut_end=True,
            tables=(3,),
        )

    before = cut.body(business, make_batch(1), body(1), ids)

    assert cut.body(business, make_batch(1), b"not looked at", ids) == before
    assert cut.body(business, make_batch(2), body(2), ids) != before
