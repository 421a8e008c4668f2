"""Shared frames of a mirror's consumers are dropped when its full data is replaced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from venus.broker.machine.business import Business
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.queue.reader import ReadResult
from venus.broker.service.consumer_stream import ConsumerStream
from venus.broker.service.shared_frames import SharedFrames
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import unseal
from venus.wire import broker_pb2

ROOM = 1 << 10


class Mirror:
    """A business that is filled again with another history; consumers read after the same cut."""

    def __init__(self) -> None:
        self.business = Business(1, "main", ReviewSchedule(first_s=1.0))
        self.business.visible_offset = 1000  # the read returns only a part
        self.fill, self.history = (1, 7), b"lost"
        self.subscriptions = self
        self.borders: dict[str, Any] = {}

    def fill_of(self, _: str) -> tuple[int, int]:
        return self.fill

    def serving_business(self, *_: object) -> Business:
        return self.business

    def read(self, _: str, offset: int, *__: object) -> ReadResult:
        increment = broker_pb2.Increment(base_offset=offset, count=1, body=self.history)
        return ReadResult(increments=[increment], next_offset=offset + 1)


async def first_body(mirror: Mirror, frames: SharedFrames, bridge: LoopBridge) -> bytes:
    """Return the body that a new consumer gets first."""
    traffic: Any = SimpleNamespace(
        admission=SimpleNamespace(limits=SimpleNamespace(slow_consumer_s=5.0)), monotonic=lambda: 0.0
    )
    core: Any = mirror
    context: Any = SimpleNamespace(peer=lambda: "test")
    nothing: Any = None
    wanted = broker_pb2.Open(business="main", group="orders", offset=5, credit_bytes=1 << 20)
    stream = ConsumerStream(core, bridge, nothing, traffic, frames, context, wanted)
    stream._fill = mirror.fill_of("main")
    found = await stream._shared_frame(ROOM)
    assert found is not None
    return unseal(broker_pb2.DeliveryFrame, found.content, "a frame").increments[0].body


def test_no_frame_of_the_old_history_is_sent_after_the_cut_of_another() -> None:
    """While consumers leave and return all the time, the frames of a business are never dropped."""

    async def exercise() -> list[bytes]:
        bridge, mirror = LoopBridge(asyncio.get_running_loop()), Mirror()
        frames = SharedFrames(bridge)
        for _ in range(2):
            frames.add_stream("main")
        before = [await first_body(mirror, frames, bridge), await first_body(mirror, frames, bridge)]
        assert frames.encoded == 1, "they share it"
        mirror.fill, mirror.history = (1, 99), b"kept"
        after = await first_body(mirror, frames, bridge)
        bridge.close()
        return [*before, after]

    assert asyncio.run(exercise()) == [b"lost", b"lost", b"kept"]
