"""Frames that many consumers share: which ones are kept, for how long, and how often the store is read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from venus.broker.machine.business import Business
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.queue.reader import ReadResult
from venus.broker.service.shared_frames import FrameKey, SharedFrame, SharedFrames, bytes_max_for, encode_frame
from venus.errors import Unavailable
from venus.rpc.compression import LARGE_BYTES, cost
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import unseal
from venus.wire import broker_pb2

T = TypeVar("T")


def build_frame_key(position: int = 0, *, bytes_max: int = 1 << 20, tables: tuple[int, ...] = ()) -> FrameKey:
    return FrameKey("main", position, tables, (), bytes_max)


def increments(first: int, count: int, nbytes: int = 100) -> list[broker_pb2.Increment]:
    return [broker_pb2.Increment(base_offset=n, count=1, body=b"x" * nbytes) for n in range(first, first + count)]


def result(first: int, count: int, nbytes: int = 100) -> ReadResult:
    return ReadResult(increments=increments(first, count, nbytes), next_offset=first + count)


class SharedBusiness:
    """Frames of one business with a thread pool; it counts the reads."""

    def __init__(self, **options: Any) -> None:
        self.bridge = LoopBridge(asyncio.get_running_loop())
        self.frames = SharedFrames(self.bridge, **options)
        self.business = Business(1, "main", ReviewSchedule(first_s=1.0))
        self.reads = 0
        for _ in range(2):
            self.frames.add_stream("main")

    async def take(self, position: int = 0, count: int = 1, *, nbytes: int = 100, memory: bool = True) -> SharedFrame:
        def read() -> ReadResult:
            self.reads += 1
            return result(position, count, nbytes)

        return await self.frames.take(self.business, build_frame_key(position), read, from_memory=memory)


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(test)


def test_a_frame_fits_into_the_room_and_the_first_message_is_always_sent() -> None:
    each = cost(increments(0, 1)[0])
    made = encode_frame(build_frame_key(bytes_max=3 * each + each // 2), result(0, 5), tail=5)
    assert (made.increments, made.price, made.end, made.next_offset, made.full) == (3, 3 * each, 3, 3, True)
    alone = encode_frame(build_frame_key(bytes_max=1), result(0, 5), tail=5)
    assert (alone.increments, alone.next_offset) == (1, 1)
    assert not encode_frame(build_frame_key(), result(0, 5), tail=5).full


def test_a_frame_names_the_skipped_offsets() -> None:
    made = encode_frame(build_frame_key(tables=(1,)), ReadResult(increments=increments(0, 2), next_offset=9), tail=9)
    assert made.frame is not None
    frame = unseal(broker_pb2.DeliveryFrame, made.frame.content, "a frame")
    assert (frame.progress, made.end, made.next_offset) == (9, 2, 9)


def test_frames_compressed_for_each_connection_share_no_bytes() -> None:
    assert encode_frame(build_frame_key(), result(0, 1, LARGE_BYTES), tail=1).frame is None


@pytest.mark.parametrize(("room", "found"), [(1, 1), (1 << 20, 1 << 20), ((1 << 20) - 1, 1 << 19), (700, 512)])
def test_similar_amounts_of_room_are_rounded_to_one(room: int, found: int) -> None:
    assert bytes_max_for(room) == found


def test_a_frame_at_the_tail_is_kept_until_the_tail_moves() -> None:
    async def exercise() -> None:
        shared = SharedBusiness()
        first = await shared.take()
        assert await shared.take() is first
        shared.frames.on_tail_moved("main", 1)
        assert await shared.take() is first
        assert (shared.reads, shared.frames.encoded) == (1, 1)
        shared.frames.on_tail_moved("main", 2)
        assert shared.frames.nbytes == 0
        await shared.take()
        assert shared.reads == 2

    run(exercise())


def test_a_full_frame_is_kept_after_the_tail_moves_until_newer_ones_replace_it() -> None:
    async def exercise() -> None:
        shared = SharedBusiness(bytes_max=100_000)
        shared.business.visible_offset = 1000
        await shared.take(0, nbytes=30_000)
        shared.frames.on_tail_moved("main", 2000)
        await shared.take(0, nbytes=30_000)
        assert shared.reads == 1
        for position in range(1, 20):
            await shared.take(position, nbytes=30_000)
            assert shared.frames.nbytes <= 100_000
        await shared.take(19, nbytes=30_000)
        assert shared.reads == 20
        await shared.take(0, nbytes=30_000)
        assert shared.reads == 21

    run(exercise())


def test_consumers_that_arrive_during_a_read_share_it_also_if_the_first_one_leaves() -> None:
    async def exercise() -> None:
        shared = SharedBusiness()
        tasks = [asyncio.create_task(shared.take(memory=False)) for _ in range(10)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        found = await asyncio.gather(*tasks[1:])
        assert shared.reads == 1
        assert all(each is found[0] for each in found)

    run(exercise())


def test_a_failed_read_fails_for_all_waiting_consumers_and_is_not_kept() -> None:
    async def exercise() -> None:
        shared = SharedBusiness()

        def raise_error() -> ReadResult:
            raise Unavailable("not now")

        reads = [
            shared.frames.take(shared.business, build_frame_key(), raise_error, from_memory=False) for _ in range(3)
        ]
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in found)
        assert (await shared.take()).increments == 1

    run(exercise())


def test_a_business_that_was_replaced_shares_no_frame_with_its_predecessor() -> None:
    async def exercise() -> None:
        shared = SharedBusiness()
        await shared.take()
        shared.business = Business(2, "main", ReviewSchedule(first_s=1.0))
        await shared.take()
        assert shared.reads == 2

    run(exercise())


def test_the_frames_are_dropped_when_only_one_consumer_is_left() -> None:
    async def exercise() -> None:
        shared = SharedBusiness()
        await shared.take()
        assert shared.frames.nbytes
        shared.frames.remove_stream("main")
        assert not shared.frames.nbytes
        assert not shared.frames.can_share("main")
        await shared.take()
        assert not shared.frames.nbytes
        shared.frames.remove_stream("main")
        assert not shared.frames.streams

    run(exercise())


def test_few_consumers_are_not_paced_and_many_wait_for_the_same_moment() -> None:
    async def exercise() -> None:
        frames = SharedBusiness().frames
        assert frames.pause_s("main", 7.3) == 0
        for _ in range(998):
            frames.add_stream("main")
        assert frames.pause_s("main", 7.03) == pytest.approx(0.07)
        assert frames.pause_s("main", 7.09) == pytest.approx(0.01)
        for _ in range(99_000):
            frames.add_stream("main")
        assert frames.pause_s("main", 7.0) <= 0.25

    run(exercise())
