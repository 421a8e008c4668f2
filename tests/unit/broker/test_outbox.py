"""Coalescing of the frames to a producer."""

from __future__ import annotations

import asyncio

from venus.broker.service.producer_stream import ProducerOutbox
from venus.wire import broker_pb2


def test_of_two_commits_the_one_with_the_later_batch_is_reported_in_either_order() -> None:
    """A cut is committed, and at the same time one of its first half messages is decided again for a review."""

    async def notify(*batch_nos: int) -> list[int]:
        outbox = ProducerOutbox(broker_pb2.InitAck())
        outbox.take_frames()
        for n in batch_nos:
            outbox.add_decision(broker_pb2.Decided(verdict=broker_pb2.COMMIT, batch_no=n))
        return [frame.decided.batch_no for frame in outbox.take_frames()]

    assert asyncio.run(notify(9, 7)) == [9]
    assert asyncio.run(notify(7, 9)) == [9]
