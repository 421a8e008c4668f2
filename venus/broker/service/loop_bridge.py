"""From the commit thread to the service's event loop, and back to a few threads for blocking reads.

A wake-up of the loop costs a system call and a turn of the interpreter lock, so calls are collected: the first one
wakes the loop, those that come until it runs ride along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

READ_THREADS = 4


class Handoff:
    """Calls into the loop from any thread, calls out of it to the pool."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self._pool = ThreadPoolExecutor(READ_THREADS, "venus-read")

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

    async def blocking(self, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """Run a blocking call in the pool; if it answers with a future of the core, wait for that too."""
        answer = await self._loop.run_in_executor(self._pool, call, *args)
        return await asyncio.wrap_future(answer) if isinstance(answer, Future) else answer

    def behind(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a blocking call in the pool without waiting: for the clean-up of streams that were cancelled."""
        self._pool.submit(call, *args, **kwargs)

    def close(self) -> None:
        """Wait for the pool's calls."""
        self._pool.shutdown(wait=True)
