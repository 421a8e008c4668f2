"""From the commit thread to the service's event loop, and back to threads for blocking calls.

A wake-up of the loop costs a system call and a turn of the interpreter lock, so calls are collected: the first one
wakes the loop, those that come until it runs ride along. Blocking calls have lanes with threads of their own, so that
what keeps the system alive never waits behind what is merely large: four reads of full data that took 3 s each held
/health for 2.9 s when all calls shared four threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lane(Enum):
    """What a blocking call is for; the value is how many threads the lane has."""

    CONTROL = "control", 2  # health, status, reviews, decisions, leases
    INCREMENTS = "increments", 2
    FULL_DATA = "full-data", 4
    DETAILS = "details", 1  # the page and metrics

    @property
    def threads(self) -> int:
        """How many calls of this lane run at once."""
        return self.value[1]


class LoopBridge:
    """Calls into the loop from any thread, calls out of it to the lanes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self._pools = {lane: ThreadPoolExecutor(lane.threads, f"venus-{lane.value[0]}") for lane in Lane}

    def post(self, call: Callable[P, object], *args: P.args, **_: P.kwargs) -> None:
        """Run `call` in the loop, in the order of posting; from any thread."""
        self._calls.append((call, args))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop has ended: nobody is left to tell
                self._calls.clear()

    def _run(self) -> None:
        self._woken = False
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)

    def when_done(self, future: Future[T], call: Callable[[Future[T]], object]) -> None:
        """Run `call` in the loop when the core has resolved the future."""
        future.add_done_callback(lambda done: self.post(call, done))

    async def blocking(self, lane: Lane, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """Run a blocking call in its lane; if it answers with a future of the core, wait for that too."""
        answer = await self._loop.run_in_executor(self._pools[lane], call, *args)
        return await asyncio.wrap_future(answer) if isinstance(answer, Future) else answer

    def behind(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a call of the control lane without waiting: for the clean-up of streams that were cancelled."""
        self._pools[Lane.CONTROL].submit(call, *args, **kwargs)

    def close(self) -> None:
        """Wait for the calls of every lane."""
        for pool in self._pools.values():
            pool.shutdown(wait=True)
