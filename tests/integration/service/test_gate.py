"""Whom a broker of a cluster lets in: before it has heard of the cluster, while it follows, while it removes a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import engines
from tests.support.engines import BUSINESS, WAIT_S
from venus.broker.core import Core
from venus.broker.replicas.shared import ReplicatedLogs
from venus.broker.replicas.standing import Standing
from venus.broker.service import replication
from venus.broker.service.replication import Replication
from venus.config import Cluster
from venus.errors import NotLeader, Refused
from venus.rpc.address import NONE

pytestmark = pytest.mark.integration

LEADS = Standing(term=1, leads=True, refusal="")
FOLLOWS = Standing(term=1, refusal="another broker leads", leader="b:1")


class Host:
    """What the gate asks the host of the replicas."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.replicas: dict[str, Any] = {}
        self.dropping: set[str] = set()
        self.made: list[str] = []
        self.me = SimpleNamespace(member="a")
        self.brokers = SimpleNamespace(live={"a": SimpleNamespace(member=SimpleNamespace(broker="a"), draining=False)})
        self.brokers.order = lambda member: member

    def is_dropping(self, business: str) -> bool:
        return business in self.dropping

    def create(self, business: str) -> None:
        self.made.append(business)


class Broker:
    """A gate in front of a real core, which has a business."""

    def __init__(self, path: Path) -> None:
        self.shared, self.host = ReplicatedLogs(), Host()
        self.core: Core = engines.make(path, shared=self.shared)
        self.core.catalogue.adopt(BUSINESS)
        nothing: Any = None
        settings = Cluster(name="c", broker_id="a", etcd=("127.0.0.1:1",))
        self.gate = Replication(self.core, self.shared, nothing, settings, NONE)
        self.gate.host = self.host  # type: ignore[assignment]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.core.stop()


def test_no_group_and_no_load_is_let_in_before_the_cluster_has_been_heard_of(broker: Broker) -> None:
    """Another broker may lead: what a group acknowledged here, nobody would log."""
    with pytest.raises(NotLeader, match="the cluster has not been heard of yet"):
        broker.gate.consumer(BUSINESS)
    with pytest.raises(NotLeader, match="the cluster has not been heard of yet"):
        broker.gate.snapshot(BUSINESS, "main/target")
    broker.gate.snapshot(BUSINESS, "")  # a look
    broker.gate.reader(BUSINESS)

    broker.host.records[BUSINESS] = broker.host.replicas[BUSINESS] = object()
    broker.shared.publish(BUSINESS, FOLLOWS)
    with pytest.raises(NotLeader, match="another broker leads") as refused:
        broker.gate.consumer(BUSINESS)
    assert refused.value.leader == "b:1"
    broker.shared.publish(BUSINESS, LEADS)
    broker.gate.consumer(BUSINESS)
    broker.gate.snapshot(BUSINESS, "main/target")


def test_a_name_that_nobody_has_is_left_to_the_core_which_says_so(broker: Broker) -> None:
    broker.gate.consumer("tipo")
    broker.gate.snapshot("tipo", "main/target")


def test_a_load_waits_for_a_leader(broker: Broker) -> None:
    """While nobody leads, nobody would keep the queue from its cut on."""
    broker.host.records[BUSINESS] = broker.host.replicas[BUSINESS] = object()
    broker.shared.publish(BUSINESS, Standing(term=1, refusal="no broker leads"))

    with pytest.raises(NotLeader, match="no broker leads"):
        broker.gate.snapshot(BUSINESS, "main/target")


def test_a_producer_waits_for_the_end_of_a_business_that_was_forgotten(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, with the advice to forget what had just been forgotten."""
    monkeypatch.setattr(replication, "HINDERED_S", 0.2)

    async def comes() -> None:
        asked = asyncio.ensure_future(broker.gate.producer(BUSINESS))
        await asyncio.sleep(replication.LOOK_EVERY_S)
        broker.host.dropping.add(BUSINESS)  # the coordinator has said that it was forgotten
        await asyncio.sleep(0.4)  # some looks: nothing is made while the old one goes
        assert not asked.done()
        assert not broker.host.made
        broker.core.forget_business(BUSINESS)
        broker.host.dropping.clear()
        while not broker.host.made:
            await asyncio.sleep(0.01)
        broker.core.catalogue.adopt(BUSINESS)
        broker.host.records[BUSINESS] = broker.host.replicas[BUSINESS] = SimpleNamespace(leader=None)
        broker.shared.publish(BUSINESS, Standing(term=0, leads=True, refusal=""))
        await asyncio.wait_for(asked, WAIT_S)

    asyncio.run(comes())


def test_data_that_the_cluster_does_not_know_keeps_a_producer_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "HINDERED_S", 0.1)

    with pytest.raises(Refused, match="that the cluster does not know"):
        asyncio.run(broker.gate.producer(BUSINESS))
