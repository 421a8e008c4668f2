"""What streams have received and not saved: who may receive more, and whose turn at the disk it is.

Memory is shared by business (Sharing), the way to the disk by pieces in a line (Turns, flow/turns.py). A frame that
waits for its turn is in memory already, so while as many wait as memory allows, streams of large frames are not read.
In the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Self

from venus.flow.turns import Sharing, Turn, Turns


class Unsaved:
    """The bookkeeping of all streams."""

    def __init__(self, sharing: Sharing, turns: Turns) -> None:
        self._sharing, self._turns = sharing, turns
        self._going: dict[Turn, asyncio.Future[None]] = {}  # who waits for a turn
        self._own: dict[str, asyncio.Event] = {}  # who waits until some of the own is saved, by business
        self._reading: OrderedDict[asyncio.Future[None], None] = OrderedDict()  # who waits for memory

    def receive(self, business: str, nbytes: int) -> Received:
        """Count a frame's half messages that were taken."""
        self._sharing.add(business, nbytes)
        return Received(self, business, nbytes)

    def has_room(self, business: str, *, small: bool) -> bool:
        """Whether more may be received for a business whose frames are `small`, or not."""
        return self._sharing.has_room(business, self._turns.size) and (small or self._sharing.is_below_limit)

    async def room(self, business: str, *, small: bool) -> None:
        """Wait for that: first for the own ones, then, in line, for memory."""
        while not self._sharing.has_room(business, self._turns.size):
            await self._own.setdefault(business, asyncio.Event()).wait()
        if small or self._sharing.is_below_limit:
            return
        reading = asyncio.get_running_loop().create_future()
        self._reading[reading] = None
        try:
            await reading
        except BaseException:
            if self._reading.pop(reading, reading) is reading:  # its turn had come
                self._read_on()
            raise

    async def turn(self, nbytes: int) -> Turn:
        """Wait until so much may go to the disk. Give it back with `done`, or with `unused`."""
        turn = self._turns.ask(nbytes)
        if not turn.granted:
            going = self._going[turn] = asyncio.get_running_loop().create_future()
            try:
                await going
            except BaseException:
                self._wake(self._turns.give_up(turn))
                raise
            finally:
                del self._going[turn]
        return turn

    def unused(self, turn: Turn) -> None:
        """Give a turn back: its piece is not wanted any more."""
        self._wake(self._turns.give_up(turn))

    def done(self, business: str, turn: Turn, took_s: float, waited_s: float) -> None:
        """Count a piece that is saved or was refused `took_s` after its turn, of which it waited for the disk."""
        self._wake(self._turns.saved(turn, waited_s))
        self.forget(business, turn.nbytes, took_s)

    def forget(self, business: str, nbytes: int, took_s: float = 0.0) -> None:
        """Count bytes that are in memory no more; 0 s = that says nothing."""
        self._sharing.remove(business, nbytes, took_s)
        if business in self._own and self._sharing.has_room(business, self._turns.size):
            self._own.pop(business).set()
        self._read_on()

    def _read_on(self) -> None:
        """Let one stream read for each piece that has gone, and all when nothing is left: who reads may get nothing."""
        count = len(self._reading) if not self._sharing.nbytes else int(self._sharing.is_below_limit)
        for _ in range(min(count, len(self._reading))):
            reading, _ = self._reading.popitem(last=False)
            if not reading.done():
                reading.set_result(None)

    def _wake(self, turns: list[Turn]) -> None:
        for turn in turns:
            going = self._going.get(turn)
            if going is not None and not going.done():
                going.set_result(None)


class Received:
    """A frame's half messages; what was not passed on when it ends is forgotten."""

    def __init__(self, unsaved: Unsaved, business: str, nbytes: int) -> None:
        self._unsaved, self._business, self._left = unsaved, business, nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._left:
            self._unsaved.forget(self._business, self._left)

    def passed_on(self, nbytes: int) -> None:
        """Take note that a piece goes to the core: `Unsaved.done` counts it."""
        self._left -= nbytes
