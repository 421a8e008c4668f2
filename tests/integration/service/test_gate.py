"""Admission at a broker of a cluster: before it knows the cluster, while it follows, while it removes a copy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S
from tests.support.engines.memory_coordinator import MemoryCluster, MemoryCoordinator
from venus.broker.core import Core
from venus.broker.replicas import gate as gates
from venus.broker.replicas.gate import ClusterGate, RecordRemoval
from venus.broker.replicas.replicated_logs import ReplicaStanding, ReplicatedLogs
from venus.errors import NotLeader, Refused, Unavailable
from venus.replication.records import Leadership, Member
from venus.rpc.event_loop import LoopBridge

pytestmark = pytest.mark.integration

LEADS = ReplicaStanding(term=1, leads=True, refusal="")
FOLLOWS = ReplicaStanding(term=1, refusal="another broker leads", leader="b:1")


class Host:
    """Fake host of the replicas, with the methods that the gate calls."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.replicas: dict[str, Any] = {}
        self.dropping: set[str] = set()
        self.made: list[str] = []
        self.gone: list[tuple[str, int]] = []
        self.me = SimpleNamespace(member=Member(broker="a", store="s"))
        self.brokers = SimpleNamespace(live={self.me.member: SimpleNamespace(draining=False)})

    def is_dropping(self, business: str) -> bool:
        return business in self.dropping

    def on_forgotten_term(self, business: str, term: int) -> None:
        self.gone.append((business, term))

    def create(self, business: str) -> None:
        self.made.append(business)


class Broker:
    """A gate in front of a real core that has one business."""

    def __init__(self, path: Path) -> None:
        self.shared, self.host = ReplicatedLogs(), Host()
        self.core: Core = engines.make(path, shared=self.shared)
        self.core.catalogue.adopt(BUSINESS)
        nothing: Any = None
        host: Any = self.host
        self.gate = ClusterGate(self.core, self.shared, nothing, nothing, host, nothing)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.core.stop()


def test_no_group_and_no_load_is_admitted_before_the_cluster_state_is_read(broker: Broker) -> None:
    """Another broker may lead: an acknowledgement here would not be logged."""
    with pytest.raises(NotLeader, match="the cluster's records have not been read yet"):
        broker.gate.admit_consumer(BUSINESS)
    with pytest.raises(NotLeader, match="the cluster's records have not been read yet"):
        broker.gate.admit_snapshot(BUSINESS, "main/target")
    broker.gate.admit_snapshot(BUSINESS, "")  # a status request
    broker.gate.admit_reader(BUSINESS)

    broker.host.records[BUSINESS] = broker.host.replicas[BUSINESS] = object()
    broker.shared.publish(BUSINESS, FOLLOWS)
    with pytest.raises(NotLeader, match="another broker leads") as refused:
        broker.gate.admit_consumer(BUSINESS)
    assert refused.value.leader == "b:1"
    broker.shared.publish(BUSINESS, LEADS)
    broker.gate.admit_consumer(BUSINESS)
    broker.gate.admit_snapshot(BUSINESS, "main/target")


def test_the_core_answers_for_an_unknown_name(broker: Broker) -> None:
    broker.gate.admit_consumer("tipo")
    broker.gate.admit_snapshot("tipo", "main/target")


def test_a_load_waits_for_a_leader(broker: Broker) -> None:
    """Without a leader the queue from the load's cut on would not be kept."""
    broker.host.records[BUSINESS] = broker.host.replicas[BUSINESS] = object()
    broker.shared.publish(BUSINESS, ReplicaStanding(term=1, refusal="no broker leads"))

    with pytest.raises(NotLeader, match="no broker leads"):
        broker.gate.admit_snapshot(BUSINESS, "main/target")


def test_a_producer_waits_until_a_forgotten_business_is_removed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be refused with the advice to forget the business, which was just forgotten."""
    monkeypatch.setattr(gates, "WAIT_S", WAIT_S)
    monkeypatch.setattr(gates, "HINDERED_S", WAIT_S)

    async def connect_during_removal() -> None:
        asked = asyncio.ensure_future(broker.gate.admit_producer(BUSINESS))
        await asyncio.sleep(gates.LOOK_EVERY_S)
        broker.host.dropping.add(BUSINESS)  # the coordinator has reported that the business was forgotten
        monkeypatch.setattr(gates, "HINDERED_S", 0.0)
        await asyncio.sleep(0.2)  # for several checks nothing is created while the old copy is being removed
        assert not asked.done()
        assert not broker.host.made
        broker.core.forget_business(BUSINESS)
        broker.host.dropping.clear()
        while not broker.host.made:
            await asyncio.sleep(0.01)
        broker.core.catalogue.adopt(BUSINESS)
        broker.host.records[BUSINESS] = broker.host.replicas[BUSINESS] = SimpleNamespace(leader=None)
        broker.shared.publish(BUSINESS, ReplicaStanding(term=0, leads=True, refusal=""))
        await asyncio.wait_for(asked, WAIT_S)

    asyncio.run(connect_during_removal())


def test_data_that_the_cluster_does_not_know_keeps_producers_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "HINDERED_S", 0.1)

    with pytest.raises(Refused, match="that the cluster does not know"):
        asyncio.run(broker.gate.admit_producer(BUSINESS))


class LateCoordinator(MemoryCoordinator):
    """Coordinator whose removal of a record waits for the test, or fails."""

    def __init__(self) -> None:
        super().__init__(MemoryCluster(time.monotonic), lease_s=3.0)
        self.asked, self.may, self.fails = Event(), Event(), False

    def remove(self, leadership: Leadership) -> bool:
        self.asked.set()
        if self.fails:
            raise Unavailable("no answer")
        assert self.may.wait(WAIT_S)
        return super().remove(leadership)


async def wait_until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not done():
            await asyncio.sleep(0.01)


def run_at_removal(broker: Broker, test: Callable[[LateCoordinator], Coroutine[Any, Any, None]]) -> None:
    """Run a test at the leader of a business whose record the coordinator has."""

    async def run() -> None:
        late, gate, bridge = LateCoordinator(), broker.gate, LoopBridge(asyncio.get_running_loop())
        leads = Leadership(business=BUSINESS, term=1, leader=Member(broker="a", store="store"), in_sync=frozenset())
        broker.host.records[BUSINESS] = late.create(leads)
        broker.host.replicas[BUSINESS] = object()
        broker.shared.publish(BUSINESS, LEADS)
        gate._bridge, gate._coordinator = bridge, late
        gate._coordination = SimpleNamespace(read_soon=lambda: None)
        gate._remove = RecordRemoval(broker.core.catalogue, late, bridge, gate._on_removed)
        try:
            await test(late)
        finally:
            gate._remove.stop()
            bridge.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "REPORT_S", 0.1)
        asyncio.run(run())


def test_no_client_begins_to_use_a_business_while_the_coordinator_forgets_it(broker: Broker) -> None:
    """Its acknowledged changes would be removed with the business."""

    async def exercise(late: LateCoordinator) -> None:
        forgets = asyncio.create_task(broker.gate.forget(BUSINESS))
        await wait_until(late.asked.is_set)
        with pytest.raises(Unavailable, match="'main' is being forgotten"):
            broker.core.catalogue.enter(BUSINESS)
        with pytest.raises(Unavailable, match="'main' is being forgotten"):
            broker.core.subscriptions.attach(BUSINESS, "main/target", 0)
        with pytest.raises(Unavailable, match="'main' is being forgotten"):
            await broker.gate.forget(BUSINESS)
        forgets.cancel()  # the caller is gone, but the removal is completed
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable, match="'main' is being forgotten"):
            broker.core.catalogue.enter(BUSINESS)
        late.may.set()
        await wait_until(lambda: broker.host.gone == [(BUSINESS, 1)])
        broker.core.catalogue.enter("other")

    run_at_removal(broker, exercise)


def test_a_deposed_leader_finds_out_before_it_reports_another_history(
    broker: Broker,
) -> None:
    """A suspended machine does not notice that its lease has ended; a new lease begins before it reads the record."""
    read: list[None] = []

    async def exercise(late: LateCoordinator) -> None:
        own = broker.host.records[BUSINESS]
        broker.host.me = SimpleNamespace(member=own.leader)
        broker.gate._coordination = SimpleNamespace(read_soon=lambda: read.append(None))
        assert broker.gate.term(BUSINESS) == 1
        await broker.gate.confirm_leadership(BUSINESS, 1)
        assert not read

        late.away = True
        with pytest.raises(Unavailable):
            await broker.gate.confirm_leadership(BUSINESS, 1)
        late.away = False
        late.swap(own, replace(own, term=2, leader=Member(broker="b", store="other")))
        with pytest.raises(Unavailable, match="another broker leads by now"):
            await broker.gate.confirm_leadership(BUSINESS, 1)
        assert len(read) == 1

    run_at_removal(broker, exercise)


def test_a_business_in_use_is_not_forgotten(broker: Broker) -> None:
    async def exercise(late: LateCoordinator) -> None:
        used = broker.core.catalogue.enter(BUSINESS)
        with pytest.raises(Refused, match="1 producers and consumers of 'main' are connected"):
            await broker.gate.forget(BUSINESS)
        assert not late.asked.is_set()
        broker.core.catalogue.release(used)

    run_at_removal(broker, exercise)


def test_a_business_is_forgotten_although_the_cluster_reports_its_removal_first(broker: Broker) -> None:
    """`venus forget` would end with the error that the broker does not know the business."""

    async def exercise(late: LateCoordinator) -> None:
        forgets = asyncio.create_task(broker.gate.forget(BUSINESS))
        await wait_until(late.asked.is_set)
        del broker.host.records[BUSINESS], broker.host.replicas[BUSINESS]
        broker.core.forget_business(BUSINESS)
        late.may.set()
        assert await forgets

    run_at_removal(broker, exercise)


def test_a_business_that_was_created_again_meanwhile_is_left_alone(broker: Broker) -> None:
    """Between the report of a removal and its answer another broker may have created the business again."""

    async def exercise(late: LateCoordinator) -> None:
        forgets = asyncio.create_task(broker.gate.forget(BUSINESS))
        await wait_until(late.asked.is_set)
        new = broker.host.records[BUSINESS] = replace(broker.host.records[BUSINESS], term=2)
        late.may.set()
        assert await forgets
        assert broker.host.records == {BUSINESS: new}
        assert broker.core.catalogue.has_stored(BUSINESS)

    run_at_removal(broker, exercise)


def test_a_business_is_forgotten_if_only_the_cluster_reports_its_removal(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has removed the record, and its answer is lost."""

    async def exercise(late: LateCoordinator) -> None:
        monkeypatch.setattr(gates, "REPORT_S", WAIT_S)
        late.loses_answer = True
        late.may.set()
        forgets = asyncio.create_task(broker.gate.forget(BUSINESS))
        await wait_until(late.asked.is_set)
        await asyncio.sleep(0.05)
        del broker.host.records[BUSINESS], broker.host.replicas[BUSINESS]
        broker.core.forget_business(BUSINESS)
        assert await forgets

    run_at_removal(broker, exercise)


def test_data_that_remains_after_the_removal_of_its_record_is_left_to_the_caller(broker: Broker) -> None:
    async def exercise(late: LateCoordinator) -> None:
        del broker.host.replicas[BUSINESS]
        late.may.set()
        assert not await broker.gate.forget(BUSINESS), "the broker has no replica that it would remove"

    run_at_removal(broker, exercise)


def test_a_refused_client_is_admitted_when_the_record_has_changed(broker: Broker) -> None:
    async def exercise(late: LateCoordinator) -> None:
        late.may.set()
        before = broker.host.records[BUSINESS]
        broker.host.records[BUSINESS] = late.swap(before, before)
        stale = await broker.gate._remove(before)
        assert not stale
        broker.core.catalogue.enter(BUSINESS)

    run_at_removal(broker, exercise)


def test_no_client_is_admitted_before_the_outcome_of_a_removal_is_known(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal may still be on its way: the record must change, so that the removal no longer matches it."""
    monkeypatch.setattr(gates, "LOOK_AGAIN_S", 0.02)

    def is_open() -> bool:
        try:
            broker.core.catalogue.release(broker.core.catalogue.enter(BUSINESS))
        except Unavailable:
            return False
        return True

    async def exercise(late: LateCoordinator) -> None:
        late.fails = late.away = True
        before = broker.host.records[BUSINESS]
        with pytest.raises(Unavailable, match="no answer"):
            await broker.gate.forget(BUSINESS)
        await asyncio.sleep(0.1)
        assert not is_open()
        late.away = False
        await wait_until(is_open)
        assert not super(LateCoordinator, late).remove(before)

    run_at_removal(broker, exercise)


def test_a_removal_whose_answer_was_lost_keeps_all_clients_out_until_the_data_is_gone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "LOOK_AGAIN_S", 0.02)

    async def exercise(late: LateCoordinator) -> None:
        late.loses_answer = True
        late.may.set()
        with pytest.raises(Unavailable):
            await broker.gate.forget(BUSINESS)
        await asyncio.sleep(0.1)
        with pytest.raises(Unavailable, match="'main' is being forgotten"):
            broker.core.catalogue.enter(BUSINESS)
        broker.core.forget_business(BUSINESS)
        await wait_until(lambda: not broker.core.catalogue._closed)

    run_at_removal(broker, exercise)
