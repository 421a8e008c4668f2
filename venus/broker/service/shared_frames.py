"""Shared frames: consumers at the same position with the same filters get one frame, read, encoded and sealed once.

A frame that ends at the tail is kept until the tail moves past it, a full one until newer frames need its room. Frames
are shared only while a business has several consumers, so a single consumer pays nothing.

A commit makes thousands of streams ready at once. `Turnstile` lets a few of them run in each turn of the loop.
Otherwise a producer's next frame would wait for seconds, and streams would send many tiny frames.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from venus.broker.machine.business import Business
from venus.broker.queue.reader import ReadResult
from venus.flow.degradation import Lane
from venus.network.row_filters import RowFilter
from venus.rpc.compression import cost, is_large
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import SealedMessage, seal
from venus.wire import broker_pb2

#: Streams in one turn of the loop. A frame for one consumer keeps the loop busy for about 0.2 ms.
AT_ONCE = 32


class Turnstile:
    """Queue that lets a few streams run in each turn of the event loop, those that waited longest first."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_open = False  # whether the next turn of the loop lets some streams run

    async def enter(self) -> None:
        """Wait until the stream may run."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_open:
            self._is_open = True
            loop.call_soon(self._let_through, loop)
        await turn

    def _let_through(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next streams run; do so again in the next turn of the loop while others wait."""
        left = self._at_once
        while self._waiting and left:
            turn = self._waiting.popleft()
            if not turn.done():  # a cancelled one belongs to a stream that has ended
                turn.set_result(None)
                left -= 1
        self._is_open = bool(self._waiting)
        if self._is_open:
            loop.call_soon(self._let_through, loop)


#: Limit of kept bytes, for all businesses together.
BYTES_MAX = 16 << 20
#: Overhead of a kept frame in addition to its bytes.
ENTRY_BYTES = 512
#: Cost of a frame for broker and network, however small it is. It sets the pace of many consumers.
PACE_S = 0.0001
#: Fewer consumers than this are not paced; the pause is at most this long.
PACED_MIN = 50
PACE_MAX_S = 0.25


@dataclass(frozen=True, slots=True)
class FrameKey:
    """Key of a shared frame: position and filters of a consumer. Consumers with equal keys get the same bytes."""

    business: str
    position: int
    tables: tuple[int, ...]
    only: tuple[str, ...]
    #: Credit that the frame may use; a single message may use more.
    bytes_max: int
    where: tuple[RowFilter, ...] = ()
    #: Number of the business, and at a mirror its full data: in other full data, an offset holds something else.
    fill: tuple[int, int] = (0, 0)
    #: Whether its columns are masked, for a set below.
    is_masked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFrame:
    """A sealed frame. Without `frame` it is too large to share: each connection compresses its own."""

    frame: SealedMessage | None
    #: Credit that it uses, and the number of increments.
    price: int
    increments: int
    #: End of the last increment (`position` if there is none), and the offset to continue from.
    end: int
    next_offset: int
    #: Whether the queue had more. Otherwise the frame is valid until the tail moves.
    full: bool


def bytes_max_for(room: int) -> int:
    """Return the largest power of two within the room, so that consumers with similar room share frames."""
    return 1 << (room.bit_length() - 1)


def encode_frame(wanted: FrameKey, result: ReadResult, tail: int) -> SharedFrame:
    """Build a frame within `wanted.bytes_max`. `tail` is the queue's end before the read."""
    going: list[broker_pb2.Increment] = []
    price = 0
    for increment in result.increments:
        if going and price + cost(increment) > wanted.bytes_max:
            break
        going.append(increment)
        price += cost(increment)
    end = going[-1].base_offset + going[-1].count if going else wanted.position
    complete = len(going) == len(result.increments)
    next_offset = max(end, result.next_offset) if complete else end
    beyond = next_offset > end
    message = broker_pb2.DeliveryFrame(increments=going, progress=next_offset if beyond else 0)
    return SharedFrame(
        frame=None if is_large(message) else SealedMessage(seal(message)),
        price=price,
        increments=len(going),
        end=end,
        next_offset=next_offset,
        full=next_offset < tail,
    )


class SharedFrames:
    """Cache of shared frames. Used in the event loop."""

    def __init__(self, bridge: LoopBridge, bytes_max: int = BYTES_MAX) -> None:
        self._bridge, self._bytes_max = bridge, bytes_max
        self._kept: OrderedDict[FrameKey, tuple[Business, SharedFrame]] = OrderedDict()
        self._at_tail: dict[str, set[FrameKey]] = {}
        self._reading: dict[FrameKey, asyncio.Task[SharedFrame]] = {}
        self._nbytes = 0
        #: Consumers' streams by business.
        self.streams: Counter[str] = Counter()
        #: Streams of a crowd pass it before each frame.
        self.turnstile = Turnstile()
        #: Frames that were encoded to be shared, and how often their bytes were sent.
        self.encoded = self.sent = 0

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        return self._nbytes

    def add_stream(self, business: str) -> None:
        """Count a consumer's stream."""
        self.streams[business] += 1

    def remove_stream(self, business: str) -> None:
        """Uncount a consumer's stream. Drop the frames of the business if at most one stream is left."""
        self.streams[business] -= 1
        if self.streams[business] < 2:
            self.drop(business)
        if not self.streams[business]:
            del self.streams[business]

    def can_share(self, business: str) -> bool:
        """Return whether several consumers may need the same frame."""
        return self.streams[business] > 1

    def has_many_readers(self, business: str) -> bool:
        """Return whether a business has so many readers that they must take turns."""
        return self.streams[business] >= PACED_MIN

    def pause_s(self, business: str, now: float) -> float:
        """Return how long a consumer waits after a frame, so that many consumers do not get tiny frames.

        All of them wait for the same moments, so that they share frames. A commit after a pause is sent at once.
        """
        if not self.has_many_readers(business):
            return 0.0
        every = min(PACE_MAX_S, self.streams[business] * PACE_S)
        return every - now % every

    def on_tail_moved(self, business: str, tail: int) -> None:
        """Drop the frames that ended at an earlier tail."""
        for wanted in list(self._at_tail.get(business, ())):
            if self._kept[wanted][1].next_offset < tail:
                self._forget(wanted)

    def drop(self, business: str) -> None:
        """Drop the frames of a business."""
        for wanted in [wanted for wanted in self._kept if wanted.business == business]:
            self._forget(wanted)

    async def take(
        self, business: Business, wanted: FrameKey, read: Callable[[], ReadResult], *, from_memory: bool
    ) -> SharedFrame:
        """Return a frame: kept, already being read, or read now. `from_memory` reads it in the event loop."""
        found = self._kept.get(wanted)
        if found is not None and found[0] is business:
            self._kept.move_to_end(wanted)
            return found[1]
        reading = self._reading.get(wanted)
        if reading is None:
            if from_memory:
                return self._keep(business, wanted, self._read_frame(business, wanted, read))
            reading = asyncio.create_task(self._read(business, wanted, read))
            self._reading[wanted] = reading
            reading.add_done_callback(lambda done: self._on_read(wanted, done))
        return await asyncio.shield(reading)  # others may still wait for it if this one is cancelled

    async def _read(self, business: Business, wanted: FrameKey, read: Callable[[], ReadResult]) -> SharedFrame:
        """Read a frame in a thread of the lane, and keep the frame."""
        made = await self._bridge.run_blocking(Lane.INCREMENTS, self._read_frame, business, wanted, read)
        return self._keep(business, wanted, made)

    def _on_read(self, wanted: FrameKey, done: asyncio.Task[SharedFrame]) -> None:
        """Remove a finished read from the running ones."""
        del self._reading[wanted]
        if not done.cancelled():
            done.exception()  # marks its error as seen; the waiting callers raise it

    def _read_frame(self, business: Business, wanted: FrameKey, read: Callable[[], ReadResult]) -> SharedFrame:
        """Read increments from the queue and encode them as a frame."""
        tail = business.visible_offset
        self.encoded += 1
        return encode_frame(wanted, read(), tail)

    def _keep(self, business: Business, wanted: FrameKey, made: SharedFrame) -> SharedFrame:
        """Keep a frame if other consumers may need it; drop the oldest frames beyond the limit."""
        self._forget(wanted)
        if self.can_share(wanted.business) and made.next_offset > wanted.position:
            self._kept[wanted] = business, made
            self._nbytes += _nbytes(made)
            if not made.full:
                self._at_tail.setdefault(wanted.business, set()).add(wanted)
            while self._nbytes > self._bytes_max:
                self._forget(next(iter(self._kept)))
        return made

    def _forget(self, wanted: FrameKey) -> None:
        """Drop a kept frame."""
        found = self._kept.pop(wanted, None)
        if found is None:
            return
        self._nbytes -= _nbytes(found[1])
        at_tail = self._at_tail.get(wanted.business, set())
        at_tail.discard(wanted)
        if not at_tail:
            self._at_tail.pop(wanted.business, None)


def _nbytes(made: SharedFrame) -> int:
    """Return how much memory a kept frame uses."""
    return ENTRY_BYTES + (len(made.frame.content) if made.frame is not None else 0)
