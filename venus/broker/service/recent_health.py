"""What /health answers: the newest look at the broker while it is fresh, so that no probe waits for a long turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

#: Why the broker cannot work, or nothing, and the alarms with which it can.
Look = tuple[str, list[str]]

#: What was seen so long ago is not answered any more; whoever finds it half as old has it looked at again meanwhile.
FRESH_S = 1.0


class RecentHealth:
    """The newest look, in the event loop. Whoever asks seldom has the broker looked at each time."""

    def __init__(self, look: Callable[[], Awaitable[Look]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._look, self._monotonic = look, monotonic
        self._newest: Look | None = None
        self._began = 0.0  # the look that `_newest` is from
        self._again: asyncio.Task[Look] | None = None

    async def answer(self) -> Look:
        """Return it. Raises what the look raises, unless it was made beforehand."""
        age_s = self._monotonic() - self._began
        if self._newest is None or age_s >= FRESH_S:
            return await self._look_now()
        if age_s >= FRESH_S / 2 and (self._again is None or self._again.done()):
            self._again = asyncio.create_task(self._look_now())
            self._again.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._newest

    async def _look_now(self) -> Look:
        began = self._monotonic()
        found = await self._look()
        if began >= self._began:
            self._newest, self._began = found, began
        return found
