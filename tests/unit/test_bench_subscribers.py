"""The subscribers of the benchmarks return credit to a waiting window, and report a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench import subscribers
from bench.subscribers import _OwedCredit, _Progress, _return_overdue_credit
from venus.wire import broker_pb2


class Call:
    """A stream that keeps the written frames."""

    def __init__(self) -> None:
        self.frames: list[broker_pb2.ConsumerFrame] = []

    async def write(self, frame: broker_pb2.ConsumerFrame) -> None:
        self.frames.append(frame)


def test_credit_is_returned_without_another_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "SAY_EVERY_S", 0.02)

    async def credit_frames() -> list[broker_pb2.ConsumerFrame]:
        call: Any = Call()
        seen = _Progress([70], [[70]], [[0.0]])
        seen.owed.append(_OwedCredit(call, 0, taken=5000))
        task = asyncio.create_task(_return_overdue_credit(seen))
        async with asyncio.timeout(60):
            while not call.frames:
                await asyncio.sleep(0.01)
        task.cancel()
        return list(call.frames)

    (frame,) = asyncio.run(credit_frames())
    assert (frame.credit_bytes, frame.acknowledge) == (5000, 70)


def test_a_subscriber_that_ends_reports_the_reason() -> None:
    ours, theirs = subscribers.spawn.Pipe()

    async def fail() -> None:
        raise ConnectionError("the stream has ended")

    with pytest.raises(ConnectionError):
        asyncio.run(subscribers._report_failure(fail(), theirs))
    assert ours.recv() == "ConnectionError: the stream has ended"
