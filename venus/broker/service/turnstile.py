"""Streams of a crowd go one after the other: a few, then whatever else the event loop has to do, then the next few.

A commit makes thousands of streams ready at once. If all of them went in one turn of the loop, a producer's next frame
would be looked at seconds later, and each stream would get the little that was committed before its turn began.
"""

from __future__ import annotations

import asyncio
from collections import deque

#: A frame for one consumer keeps the loop for some 0.2 ms.
AT_ONCE = 32


class Turnstile:
    """In the event loop; whoever has waited longest goes first."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_open = False  # the next few go in the next turn of the loop

    async def enter(self) -> None:
        """Wait for one's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_open:
            self._is_open = True
            loop.call_soon(self._let, loop)
        await turn

    def _let(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self._at_once
        while self._waiting and left:
            turn = self._waiting.popleft()
            if not turn.done():  # it was cancelled: its stream has gone
                turn.set_result(None)
                left -= 1
        self._is_open = bool(self._waiting)
        if self._is_open:
            loop.call_soon(self._let, loop)
