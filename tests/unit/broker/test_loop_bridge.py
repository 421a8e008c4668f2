"""Calls into the event loop: in order, complete, and with as few wake-ups as possible."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from venus.rpc.event_loop import LoopBridge


class Loop:
    """Event loop that counts its wake-ups, and runs on request."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def call_soon_threadsafe(self, call: Callable[[], object], *_: Any) -> None:
        """Record a wake-up."""
        self.calls.append(call)

    def run(self) -> None:
        """Run the scheduled callbacks."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def bridge(loop: Loop) -> LoopBridge:
    made: Any = loop
    return LoopBridge(made)


def test_calls_before_the_loop_runs_share_one_wakeup(bridge: LoopBridge, loop: Loop) -> None:
    heard: list[int] = []
    for n in range(3):
        bridge.post(heard.append, n)
    assert len(loop.calls) == 1
    loop.run()
    assert heard == [0, 1, 2]


def test_calls_in_one_block_wake_the_loop_once_at_its_end(bridge: LoopBridge, loop: Loop) -> None:
    heard: list[int] = []
    with bridge.coalesce_posts():
        bridge.post(heard.append, 1)
        assert not loop.calls, "the lock of the interpreter stays with a thread that has more work"
        loop.run()
        bridge.post(heard.append, 2)
    assert len(loop.calls) == 1
    loop.run()
    assert heard == [1, 2]


def test_a_failure_in_a_block_delays_no_call(bridge: LoopBridge, loop: Loop) -> None:
    with suppress(ValueError), bridge.coalesce_posts():
        bridge.post(print)
        raise ValueError("broken")
    assert len(loop.calls) == 1


def test_an_empty_notification_wakes_no_thread(bridge: LoopBridge, loop: Loop) -> None:
    with bridge.coalesce_posts():
        pass
    assert not loop.calls


def test_another_thread_does_not_wait_for_a_block(bridge: LoopBridge, loop: Loop) -> None:
    heard: list[int] = []
    with bridge.coalesce_posts():
        bridge.post(heard.append, 1)
        other = threading.Thread(target=bridge.post, args=(heard.append, 2))
        other.start()
        other.join()
        assert len(loop.calls) == 1
        loop.run()
        assert heard == [1, 2], "and takes along what was said before"


def test_the_bridge_wakes_a_real_loop() -> None:
    async def run() -> list[int]:
        bridge = LoopBridge(asyncio.get_running_loop())
        heard: list[int] = []
        done = asyncio.Event()

        def post() -> None:
            with bridge.coalesce_posts():
                for n in range(3):
                    bridge.post(heard.append, n)
                bridge.post(done.set)

        await asyncio.to_thread(post)
        await asyncio.wait_for(done.wait(), 60.0)
        bridge.close()
        return heard

    assert asyncio.run(run()) == [0, 1, 2]


def test_a_call_that_fails_does_not_block_the_calls_behind_it(
    bridge: LoopBridge, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    def fail() -> None:
        raise ValueError("one call's own")

    bridge.post(heard.append, 1)
    bridge.post(fail)
    bridge.post(heard.append, 2)
    loop.run()
    assert heard == [1, 2]
    assert "one call's own" in caplog.text


def test_an_idle_call_runs_with_the_next_one_that_wakes_the_loop(bridge: LoopBridge, loop: Loop) -> None:
    heard: list[int] = []
    bridge.post_idly(heard.append, 1)
    with bridge.coalesce_posts():
        bridge.post_idly(heard.append, 2)
    assert not loop.calls
    bridge.post(heard.append, 3)
    loop.run()
    assert heard == [1, 2, 3]
