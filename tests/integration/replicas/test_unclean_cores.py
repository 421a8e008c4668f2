"""Unclean elections among broker cores in one process: exactly the missing offsets are named and skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Producer
from tests.support.engines.replicas import Cluster, Node
from tests.support.waiting import eventually
from venus.broker.machine.loss import Loss, record_losses
from venus.errors import Diverged, Unavailable
from venus.replication.records import Leadership, Policy
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


def record_of(node: Node) -> Leadership:
    known = node.host.replicas[BUSINESS].known
    assert known is not None
    return known


def start_lagging_replica(cluster: Cluster, lost: int, *, undecided: int = 0) -> tuple[Node, Producer]:
    """Commit 10 rows everywhere and `lost` batches of 5 at the leader alone; kill it; return the next leader.

    The next leader was cut off before the lost batches, and before the decision of `undecided` half messages.
    """
    leader = cluster.create()
    producer = Producer(leader.core)
    producer.commit(engines.rows(0, 10))
    cluster.settle()
    cluster.nodes["c"].kill()
    eventually(lambda: len(record_of(leader).in_sync) == 2)
    halves = [producer.next_half(engines.rows(10 + 5 * n, 5)) for n in range(undecided)]
    if halves:
        producer.send(*halves)
        cluster.settle()
    follower = cluster.nodes["b"]
    cluster.net.cut = {("b", "a"), ("a", "b")}
    eventually(lambda: len(record_of(leader).in_sync) == 1)
    if halves:
        producer.decide(halves[-1])
    for n in range(undecided, undecided + lost):
        producer.commit(engines.rows(10 + 5 * n, 5))
    leader.kill()
    eventually(follower.leads)
    return follower, producer


def connect_over_loss(node: Node, last_batch: int, next_sequence: int) -> tuple[Producer, broker_pb2.Decided]:
    """Connect as the upper adapter does, to a broker that may have lost batches."""
    producer = Producer(node.core, source_last_batch=last_batch)
    assert producer.ack.in_doubt
    return producer, decide_from_source(node, producer, last_batch, next_sequence)


def decide_from_source(node: Node, producer: Producer, last_batch: int, next_sequence: int) -> broker_pb2.Decided:
    """Report what the source has committed, and continue after that."""
    committed = broker_pb2.Committed(epoch=producer.epoch, last_batch=last_batch, next_sequence=next_sequence)
    answer = node.core.producers.skip_lost(BUSINESS, committed).result(engines.WAIT_S)
    producer.batch_no, producer.sequence = max(last_batch, producer.batch_no), next_sequence - 1
    return answer


def test_missing_offsets_are_named_and_skipped(tmp_path: Path) -> None:
    with Cluster(tmp_path, policy=Policy.AVAILABILITY) as cluster:
        node, before = start_lagging_replica(cluster, 3)
        business = node.core.catalogue.find(BUSINESS)
        term = record_of(node).term
        eventually(lambda: bool(business.committed.losses))
        assert business.committed.losses == (Loss(term=term, first_offset=10, first_batch=2),)
        with pytest.raises(Unavailable, match="offset 25 may be lost, 10 is the next one here"):
            node.core.subscriptions.check_position(BUSINESS, 25, before.epoch)

        producer, answer = connect_over_loss(node, before.batch_no, before.sequence + 1)
        assert (answer.batch_no, answer.next_offset) == (4, 10 + 15 + 3)  # one more for each batch, which may be empty
        measured = Loss(term=term, first_offset=10, end_offset=28, first_batch=2, last_batch=4, rows=15)
        assert business.committed.losses == (measured,)
        assert node.core.subscriptions.check_position(BUSINESS, 25, before.epoch).next_offset == 28
        with pytest.raises(Diverged, match="offset 29 is beyond the queue's end 28"):
            node.core.subscriptions.check_position(BUSINESS, 29, before.epoch)
        assert producer.commit(engines.rows(100, 2)).next_offset == 30
        assert len(engines.full_data(node.core)) == 12

        record = record_losses(record_of(node), business.committed.losses)
        assert record is not None
        assert str(record.losses[0]) == "offsets 10 to 27 (15 changes in batches 2 to 4)"
        for name in "ac":
            cluster.net.cut = set()
            cluster.start(name)
        found = [engines.full_data(each.core) for each in find_settled(cluster)]
        assert [len(rows) for rows in found] == [12] * 3
        assert [each.core.catalogue.find(BUSINESS).committed.losses for each in cluster.living()] == [(measured,)] * 3


def find_settled(cluster: Cluster) -> list[Node]:
    cluster.settle()
    return cluster.living()
