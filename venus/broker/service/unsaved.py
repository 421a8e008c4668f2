"""Received half messages: which one a producer's stream takes next, and which are in memory or wait for the disk.

`Intake` is the state machine of one stream: it takes half messages in order, or asks for some again.

Businesses share memory (`MemoryShares`); pieces queue for the disk (`WriteQueue`, flow/write_queue.py). A frame that
waits for its slot already uses memory, so streams of large frames are not read while waiting frames fill the allowed
memory. Used in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Self

from venus.flow.write_queue import MemoryShares, WriteQueue, WriteSlot


class Intake:
    """State of one stream's half messages: the numbers persisted, handed to the core, and expected next."""

    def __init__(self, through: int) -> None:
        self.through = through  # on disk and acknowledged
        self.newest = through  # handed to the core
        self.expected: int | None = None  # the stream takes nothing above it
        self._submitted = 0
        self._void_through = 0  # submissions up to here came before the newest request to send again

    def can_take(self, batch_no: int) -> bool:
        """Return whether the stream takes a half message now. A later one than expected will be sent again."""
        return self.expected is None or batch_no <= self.expected

    def record_arrival(self, batch_no: int) -> None:
        """Record that a half message arrived undamaged."""
        if batch_no == self.expected:
            self.expected = None

    def record_submission(self, newest: int = 0) -> int:
        """Record a submission to the core with half messages up to `newest`; return its number."""
        self.newest = max(self.newest, newest)
        self._submitted += 1
        return self._submitted

    def is_void(self, number: int) -> bool:
        """Return whether a submission no longer counts, because its half messages were requested again."""
        return number <= self._void_through

    def request_again(self, batch_no: int) -> int:
        """Expect half messages from this one on; return the first one to send again: it is not on disk yet."""
        self.expected = max(batch_no, self.through + 1)
        self.newest = self.expected - 1
        self._void_through = self._submitted
        return self.expected

    def record_persisted(self, through: int) -> None:
        """Record that half messages up to `through` are on disk."""
        self.through = max(self.through, through)
        self.newest = max(self.newest, self.through)
        if self.expected is not None:
            self.expected = max(self.expected, self.through + 1)

    def record_rollback(self, batch_no: int) -> None:
        """Record that every half message from this one on was rolled back; the number may be used again."""
        self.expected = None
        self.through = min(self.through, batch_no - 1)
        self.newest = min(self.newest, batch_no - 1)


class UnsavedBytes:
    """Accounting of the received bytes that are not on disk yet, of all producers' streams."""

    def __init__(self, sharing: MemoryShares, turns: WriteQueue) -> None:
        self._sharing, self._turns = sharing, turns
        self._going: dict[WriteSlot, asyncio.Future[None]] = {}  # waiting for a slot
        self._own: dict[str, asyncio.Event] = {}  # waiting until bytes of the same business are saved
        self._reading: OrderedDict[asyncio.Future[None], None] = OrderedDict()  # waiting for memory

    def count_received(self, business: str, nbytes: int) -> ReceivedFrame:
        """Count the accepted half messages of a frame."""
        self._sharing.add(business, nbytes)
        return ReceivedFrame(self, business, nbytes)

    def has_room(self, business: str, *, small: bool) -> bool:
        """Return whether more may be received for a business with `small` or large frames."""
        return self._sharing.has_room(business, self._turns.size) and (small or self._sharing.is_below_limit)

    async def wait_for_room(self, business: str, *, small: bool) -> None:
        """Wait until more may be received: first for bytes of the same business, then in line for memory."""
        while not self._sharing.has_room(business, self._turns.size):
            await self._own.setdefault(business, asyncio.Event()).wait()
        if small or self._sharing.is_below_limit:
            return
        reading = asyncio.get_running_loop().create_future()
        self._reading[reading] = None
        try:
            await reading
        except BaseException:
            if self._reading.pop(reading, reading) is reading:  # it had been chosen: another stream gets its place
                self._wake_readers()
            raise

    async def wait_for_slot(self, nbytes: int) -> WriteSlot:
        """Wait for a disk slot of this size. The caller returns it with `record_saved` or `release_slot`."""
        turn = self._turns.request_slot(nbytes)
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

    def release_slot(self, turn: WriteSlot) -> None:
        """Give back the disk slot of a piece that will not be written."""
        self._wake(self._turns.give_up(turn))

    def record_saved(self, business: str, turn: WriteSlot, took_s: float, waited_s: float) -> None:
        """Count a piece as saved or refused `took_s` after its slot began; it waited `waited_s` for the disk."""
        self._wake(self._turns.on_saved(turn, waited_s))
        self.remove_bytes(business, turn.nbytes, took_s)

    def remove_bytes(self, business: str, nbytes: int, took_s: float = 0.0) -> None:
        """Stop counting bytes that left memory. With `took_s` 0 they do not affect the measured rate."""
        self._sharing.remove(business, nbytes, took_s)
        if business in self._own and self._sharing.has_room(business, self._turns.size):
            self._own.pop(business).set()
        self._wake_readers()

    def _wake_readers(self) -> None:
        """Wake one waiting stream for each saved piece, and all of them when memory is empty.

        A woken stream may receive nothing.
        """
        count = len(self._reading) if not self._sharing.nbytes else int(self._sharing.is_below_limit)
        for _ in range(min(count, len(self._reading))):
            reading, _ = self._reading.popitem(last=False)
            if not reading.done():
                reading.set_result(None)

    def _wake(self, turns: list[WriteSlot]) -> None:
        """Wake the frames whose slots were granted."""
        for turn in turns:
            going = self._going.get(turn)
            if going is not None and not going.done():
                going.set_result(None)


class ReceivedFrame:
    """Accounting of one frame. At its end, the bytes that were not passed on are subtracted."""

    def __init__(self, unsaved: UnsavedBytes, business: str, nbytes: int) -> None:
        self._unsaved, self._business, self._left = unsaved, business, nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._left:
            self._unsaved.remove_bytes(self._business, self._left)

    def record_passed_on(self, nbytes: int) -> None:
        """Record that a piece goes to the core; `UnsavedBytes.record_saved` subtracts its bytes."""
        self._left -= nbytes
