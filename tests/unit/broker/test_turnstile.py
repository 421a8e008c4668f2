"""Many waiting tasks run over several iterations of the event loop, and its other work runs in between."""

from __future__ import annotations

import asyncio
import itertools

from venus.broker.service.shared_frames import Turnstile

CROWD, AT_ONCE = 100, 10


def test_other_work_runs_between_a_few_waiting_tasks_which_keep_their_order() -> None:
    gone: list[int] = []
    seen: list[int] = []  # how many tasks had passed at each iteration of the loop

    async def pass_one(turnstile: Turnstile, number: int) -> None:
        await turnstile.enter()
        gone.append(number)

    async def pass_crowd() -> None:
        turnstile = Turnstile(AT_ONCE)
        tasks = [asyncio.create_task(pass_one(turnstile, n)) for n in range(CROWD)]
        async with asyncio.timeout(60):
            while len(gone) < CROWD:
                await asyncio.sleep(0)
                seen.append(len(gone))
        await asyncio.gather(*tasks)

    asyncio.run(pass_crowd())
    assert gone == list(range(CROWD))
    assert max(after - before for before, after in itertools.pairwise(seen)) <= AT_ONCE


def test_a_waiting_client_that_leaves_delays_no_other() -> None:
    async def pass_crowd() -> int:
        turnstile = Turnstile(at_once=1)
        tasks = [asyncio.create_task(turnstile.enter()) for _ in range(CROWD)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        async with asyncio.timeout(60):
            found = await asyncio.gather(*tasks, return_exceptions=True)
            await turnstile.enter()  # and it is open for later tasks
        return sum(isinstance(each, asyncio.CancelledError) for each in found)

    assert asyncio.run(pass_crowd()) == CROWD // 2
