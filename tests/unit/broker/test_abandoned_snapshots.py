"""A client that disconnects while a snapshot is made for it: the snapshot is released."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.replicas.gate import StandaloneGate
from venus.broker.service.consumer_stream import ConsumerStream
from venus.broker.service.delivery import DeliveryService
from venus.model import FULL
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2

WAIT_S = 60.0


class SlowSnapshots:
    """Makes a snapshot when the test allows it."""

    def __init__(self) -> None:
        self.began, self.go, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.full_data = self

    def open(self, _: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        self.began.set()
        assert self.go.wait(WAIT_S)
        return broker_pb2.Snapshot(snapshot_id="one")

    def release(self, snapshot: broker_pb2.Snapshot) -> None:
        assert snapshot.snapshot_id == "one"
        self.closed.set()


@pytest.mark.parametrize("subscribes", [False, True])
def test_a_snapshot_without_a_waiting_client_is_closed(subscribes: bool) -> None:
    """Otherwise it would count against [broker.limits] snapshots until its lease ended."""
    slow = SlowSnapshots()
    context: Any = SimpleNamespace(peer=lambda: "test", done=lambda: True)
    traffic: Any = SimpleNamespace(
        check_snapshot=lambda *_: None, admission=SimpleNamespace(limits=SimpleNamespace(slow_consumer_s=5.0))
    )
    core: Any = SimpleNamespace(
        full_data=slow,
        publisher=SimpleNamespace(add_listener=lambda _: None),
        commits=SimpleNamespace(writer=SimpleNamespace()),
        listening=SimpleNamespace(),
        borders={},
    )

    def call(bridge: LoopBridge) -> Any:
        nothing: Any = None
        delivery = DeliveryService(core, bridge, nothing, traffic, StandaloneGate())
        if not subscribes:
            return delivery.OpenSnapshot(broker_pb2.OpenSnapshotRequest(business="main"), context)
        wanted = broker_pb2.Open(business="main", group="orders", offset=FULL, credit_bytes=1 << 20)
        stream = ConsumerStream(core, bridge, nothing, traffic, delivery.frames, context, wanted)
        return stream.run(broker_pb2.ConsumerFrame(open=wanted))

    async def leave_early() -> bool:
        bridge = LoopBridge(asyncio.get_running_loop())
        asked = asyncio.ensure_future(call(bridge))
        await asyncio.to_thread(slow.began.wait, WAIT_S)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        slow.go.set()
        closed = await asyncio.to_thread(slow.closed.wait, WAIT_S)
        await asyncio.to_thread(bridge.close)
        return closed

    assert asyncio.run(leave_early())
