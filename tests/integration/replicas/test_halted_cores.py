"""An entry that one replica cannot apply stops that replica, with a log line about it; all others continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Producer
from tests.support.engines.replicas import Cluster, Node
from tests.support.waiting import eventually
from venus.broker.log.entry import EntryKind, LogEntry, decode, record_entry
from venus.broker.machine import machine
from venus.broker.machine.business import Business
from venus.broker.machine.machine import EntryEffects
from venus.broker.store.rocks import StoreBatch
from venus.errors import StorageError, Unavailable
from venus.model import Verdict
from venus.replication.messages import Answer, Entries

pytestmark = pytest.mark.integration
OTHER = "other"


def undecidable(entry: LogEntry) -> LogEntry:
    """Return a decision that was taken before, which is refused when it is proposed."""
    return record_entry(EntryKind.DECIDE, epoch=entry.epoch, at_us=1, record={"verdict": 1, "batch_no": 1, "digest": 7})


def nameless(entry: LogEntry) -> LogEntry:
    """Return a consumer without a name, which is refused when it is applied."""
    return record_entry(EntryKind.CONSUMER, epoch=entry.epoch, at_us=1, record={"acknowledged": 1})


def mangle_entries(cluster: Cluster, bad: Callable[[LogEntry], LogEntry]) -> None:
    """Change one decision on its way to one follower, with the seal that the leader would have written."""
    done: list[int] = []

    def mangle(answer: Answer) -> Answer:
        if not isinstance(answer, Entries) or done:
            return answer
        found = [decode(value, answer.first + i, where="test") for i, value in enumerate(answer.entries)]
        for i, entry in enumerate(found):
            if entry.kind is EntryKind.DECIDE:
                done.append(answer.first + i)
                value = replace(bad(entry), term=entry.term).encode(answer.first + i)
                return replace(answer, entries=(*answer.entries[:i], value, *answer.entries[i + 1 :]))
        return answer

    cluster.net.mangle = mangle


def find_halted(cluster: Cluster) -> Node:
    """Return the broker whose replica has stopped, once one has."""
    eventually(lambda: any(BUSINESS in node.host.troubles for node in cluster.living()))
    (node,) = [node for node in cluster.living() if BUSINESS in node.host.troubles]
    return node


@pytest.mark.parametrize("bad", [undecidable, nameless])
def test_the_replica_stops_and_the_others_continue(tmp_path: Path, bad: Callable[[LogEntry], LogEntry]) -> None:
    with Cluster(tmp_path) as cluster:
        leader = cluster.create()
        producer, other = Producer(leader.core), Producer(cluster.create(business=OTHER).core, OTHER)
        producer.commit(engines.rows(0, 3))
        cluster.settle()
        mangle_entries(cluster, bad)
        producer.commit(engines.rows(3, 3))
        stopped = find_halted(cluster)
        assert stopped is not leader
        said = stopped.host.troubles[BUSINESS]
        assert "cannot be applied here" in said
        assert "remove its broker.data_dir and start it" in said
        assert said in engines.status(stopped.core).alarms

        for n in range(2, 6):
            producer.commit(engines.rows(3 * n, 3))
            other.commit(engines.rows(3 * n, 3))
        cluster.settle(OTHER)  # the other business continues at the broker of the replica that stopped
        assert stopped.core.catalogue.find(OTHER).committed.next_offset == 12
        assert stopped.core.catalogue.find(BUSINESS).committed.next_offset <= 6
        assert stopped.errors.fatal == []
        assert stopped.ask(lambda host: host.on_ballot_request(BUSINESS, leader.member, 99)) is None

        stopped.kill()
        again = cluster.start(stopped.name, "s2")  # the broker restarts with an empty disk
        eventually(lambda: entries(again) == entries(leader))
        eventually(lambda: engines.full_data(again.core) == engines.full_data(leader.core))  # applied as well
        assert BUSINESS not in again.host.troubles


def entries(node: Node) -> int:
    try:
        return node.core.catalogue.find(BUSINESS).log.applied
    except Unavailable:
        return -1  # it starts over


def test_a_stopped_replica_is_reported_after_a_restart_too(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        leader = cluster.create()
        producer = Producer(leader.core)
        producer.commit(engines.rows(0, 3))
        cluster.settle()
        mangle_entries(cluster, nameless)
        producer.commit(engines.rows(3, 3))
        stopped = find_halted(cluster)
        stopped.kill()
        again = cluster.start(stopped.name)
        eventually(lambda: BUSINESS in again.host.troubles)
        assert "cannot be applied here" in again.host.troubles[BUSINESS]
        assert producer.commit(engines.rows(6, 3)).next_offset == 9
        assert again.errors.fatal == []


def test_a_leader_that_cannot_apply_an_entry_ends_and_another_one_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that only its own memory or disk makes invalid must not stop a business that others can lead."""
    with Cluster(tmp_path) as cluster:
        leader = cluster.create()
        producer = Producer(leader.core)
        producer.commit(engines.rows(0, 3))
        cluster.settle()
        broken, apply_pending = leader.core.catalogue.find(BUSINESS), machine.apply_pending

        def fail_here(business: Business, watermark: int, batch: StoreBatch) -> EntryEffects:
            decided = any(p.entry.kind is EntryKind.DECIDE for p in business.pending if p.index <= watermark)
            if business is broken and decided:
                raise ValueError("a bit has flipped in memory")
            return apply_pending(business, watermark, batch)

        monkeypatch.setattr(machine, "apply_pending", fail_here)
        message = producer.next_half(engines.rows(3, 3))
        assert (
            leader.core.producers.take_halves(BUSINESS, producer.epoch, [message]).result(engines.WAIT_S).through == 2
        )
        decided = leader.core.producers.decide(
            BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT
        )
        eventually(lambda: bool(leader.errors.fatal))
        (error,) = leader.errors.fatal  # a real broker ends its process here, before any caller is answered
        assert isinstance(error, StorageError)
        assert "cannot be applied here (ValueError('a bit has flipped in memory'))" in str(error)
        assert "this broker leads, so it stops and another one takes over" in str(error)
        assert "this replica" not in str(error), "it does not throw its copy away before another one leads"
        assert not decided.done(), "no caller takes it for committed"
        assert broken.committed.next_offset == 3, "nothing of what it cannot apply is shown"

        leader.kill()
        following = cluster.leader()
        again = Producer(following.core)
        assert again.ack.last_batch == 2, "the decision was on two disks"
        assert again.commit(engines.rows(6, 3)).next_offset == 9
        assert [node.host.troubles for node in cluster.living()] == [{}, {}]
