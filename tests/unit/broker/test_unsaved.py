"""Memory for half messages that are not on disk yet: its limit, and the order of waiting streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.pipeline.producer_commands import ShippedHalf
from venus.broker.service.traffic import Traffic
from venus.broker.service.unsaved import Intake, UnsavedBytes
from venus.config import BrokerSettings
from venus.flow.precedence import Precedence
from venus.flow.write_queue import MemoryShares, WriteQueue

MIB = 1 << 20


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def build_unsaved(limit: int = 8 * MIB, window: int = 4 * MIB) -> tuple[UnsavedBytes, MemoryShares, WriteQueue]:
    sharing, turns = MemoryShares(limit, 0.1), WriteQueue(most=window, least=MIB, target_s=0.1)
    return UnsavedBytes(sharing, turns), sharing, turns


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def run_bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(run_bounded())


def test_a_stream_that_ends_while_it_waits_leaves_nothing_behind() -> None:
    async def exercise() -> None:
        unsaved, sharing, turns = build_unsaved()

        async def stream(business: str) -> None:
            with unsaved.count_received(business, 3 * MIB):
                await unsaved.wait_for_slot(3 * MIB)

        first = await unsaved.wait_for_slot(3 * MIB)
        waiting = [asyncio.create_task(stream(name)) for name in "abc"]
        await settle()
        assert (sharing.nbytes, turns.waiting) == (9 * MIB, 3)
        waiting[0].cancel()
        await settle()
        unsaved.release_slot(first)
        waiting[1].cancel()  # its turn has come, but it has not run yet
        await settle()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert (turns.waiting, turns.nbytes) == (0, 3 * MIB), "the third has its turn"
        assert sharing.nbytes == 0

    run(exercise)


def test_while_memory_is_full_large_frames_are_not_read_and_small_ones_are() -> None:
    async def exercise() -> None:
        unsaved, sharing, _ = build_unsaved(limit=4 * MIB)
        unsaved.count_received("a", 4 * MIB)
        await unsaved.wait_for_room("small", small=True)
        late = [asyncio.create_task(unsaved.wait_for_room(name, small=False)) for name in "bcd"]
        await settle()
        assert not any(task.done() for task in late)
        unsaved.remove_bytes("a", MIB)
        await settle()
        assert [task.done() for task in late] == [True, False, False], "in line, one for each piece"
        unsaved.remove_bytes("a", 3 * MIB)
        await settle()
        assert all(task.done() for task in late), "nothing is left: who was let in may have nothing to read"
        assert sharing.nbytes == 0

    run(exercise)


def test_a_business_reads_again_when_its_own_messages_are_saved() -> None:
    async def exercise() -> None:
        unsaved, sharing, turns = build_unsaved()
        unsaved.count_received("a", 4 * MIB).record_passed_on(4 * MIB)
        turn = await unsaved.wait_for_slot(4 * MIB)
        assert not unsaved.has_room("a", small=True), "the window is full"
        waiting = [
            asyncio.create_task(unsaved.wait_for_room("a", small=True)) for _ in range(2)
        ]  # one message is being replaced
        await settle()
        assert not any(task.done() for task in waiting)
        unsaved.record_saved("a", turn, 0.01, 0.01)
        await asyncio.gather(*waiting)
        assert (sharing.nbytes, turns.nbytes) == (0, 0)

    run(exercise)


@pytest.mark.parametrize("window", [0.3, 1, 100])
def test_a_frame_that_is_larger_than_the_window_is_split_in_one_pass(window: float) -> None:
    async def exercise() -> None:
        core: Any = SimpleNamespace(materialiser=SimpleNamespace(behind_bytes=0), precedence=Precedence(goal_s=0.05))
        traffic = Traffic(core, BrokerSettings(buffer_bytes_max=64 * MIB))
        traffic.admission.write_queue._size = window * MIB
        body = b"x" * (MIB // 10)
        halves = [ShippedHalf(batch_no=n, digest=0, body=body) for n in range(1, 36)]
        pieces = list(traffic.split_halves(halves))
        assert [half for piece in pieces for half in piece] == halves
        assert max(len(piece) for piece in pieces) == min(35, int(window * 10))
        large = [ShippedHalf(batch_no=n, digest=0, body=b"x" * 2 * int(window * MIB)) for n in (1, 2)]
        assert [len(piece) for piece in traffic.split_halves(large)] == [1, 1], "one that is too large goes alone"

    run(exercise)


def test_a_durable_message_is_never_expected_again() -> None:
    intake = Intake(2)
    assert intake.record_submission(newest=5) == 1
    assert intake.request_again(3) == 3
    assert [intake.can_take(n) for n in (2, 3, 4)] == [True, True, False]
    assert intake.is_void(1)
    intake.record_persisted(5)
    assert [intake.can_take(n) for n in (6, 7)] == [True, False]
    number = intake.record_submission(newest=6)
    assert not intake.is_void(number)
    assert intake.request_again(3) == 6, "3 to 5 are on disk and are not sent again"
    intake.record_arrival(6)
    assert intake.can_take(100)
    intake.record_rollback(4)
    assert (intake.through, intake.newest) == (3, 3)
