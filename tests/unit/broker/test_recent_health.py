"""A health probe is answered at once from the result of a recent check, never from that of an old one."""

from __future__ import annotations

import asyncio

import pytest

from venus.broker.service.http import FRESH_S, HealthCache, HealthResult


class ScriptedHealth:
    """Health check that counts its calls; each blocks until the test releases it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 0
        self.quick = asyncio.Event()
        self.quick.set()
        self.fails = False
        self.recent = HealthCache(self.look, lambda: self.now)

    async def look(self) -> HealthResult:
        self.looks += 1
        number = self.looks
        await self.quick.wait()
        if self.fails:
            raise RuntimeError
        return "", [str(number)]

    async def ask(self) -> str:
        return (await asyncio.wait_for(self.recent.current(), 60))[1][0]


def test_a_recent_result_is_answered_without_a_check() -> None:
    async def work() -> None:
        broker = ScriptedHealth()
        assert await broker.ask() == "1"
        broker.now += FRESH_S / 4
        assert await broker.ask() == "1"
        assert broker.looks == 1

    asyncio.run(work())


def test_a_long_check_does_not_delay_frequent_requests() -> None:
    async def work() -> None:
        broker = ScriptedHealth()
        await broker.ask()
        broker.quick.clear()
        broker.now += FRESH_S / 2
        for _ in range(3):
            assert await broker.ask() == "1", "the second look is under way"
            await asyncio.sleep(0)
        assert broker.looks == 2, "one at a time"
        broker.quick.set()
        while await broker.ask() == "1":
            await asyncio.sleep(0)
        assert await broker.ask() == "2"

    asyncio.run(work())


def test_an_old_result_is_not_answered() -> None:
    async def work() -> None:
        broker = ScriptedHealth()
        await broker.ask()
        broker.now += FRESH_S
        assert await broker.ask() == "2"
        broker.now += FRESH_S
        broker.fails = True
        with pytest.raises(RuntimeError):
            await broker.ask()

    asyncio.run(work())


def test_a_check_that_failed_in_advance_is_repeated() -> None:
    async def work() -> None:
        broker = ScriptedHealth()
        await broker.ask()
        broker.now += FRESH_S / 2
        broker.fails = True
        assert await broker.ask() == "1"
        for _ in range(5):
            await asyncio.sleep(0)
        broker.fails = False
        broker.now += FRESH_S / 2
        assert await broker.ask() == "3"

    asyncio.run(work())


def test_an_old_check_that_ends_late_does_not_replace_a_newer_one() -> None:
    async def work() -> None:
        broker = ScriptedHealth()
        slow = broker.quick = asyncio.Event()
        first = asyncio.create_task(broker.ask())
        while not broker.looks:
            await asyncio.sleep(0)
        broker.quick = asyncio.Event()
        broker.quick.set()
        broker.now += FRESH_S
        assert await broker.ask() == "2"
        slow.set()
        assert await first == "1"
        assert await broker.ask() == "2"

    asyncio.run(work())
