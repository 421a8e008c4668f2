"""Early delivery: half messages of a large cut are sent to a consumer before they are decided.

A cut becomes visible only as a whole, so the time to read it at the source and the time to write it at the target
would add up. A consumer that requests early delivery gets the half messages as soon as they are on disk, writes them
in its open transaction, and commits on the decision. No reader of the target sees an undecided half message; a
rollback withdraws it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from venus.broker.machine.business import Ahead, Business
from venus.broker.machine.records import read_body
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.store.rocks import Store
from venus.errors import Corruption
from venus.wire import broker_pb2

#: A smaller cut is not sent early: it is decided before the consumer could use it.
WORTH_BYTES = 1 << 20
#: How many half messages of a cut are sent early; the rest follows its decision.
HALVES_MAX = 4096


class EarlyDelivery:
    """Tracks the undecided batches sent to one consumer; `position` is the end of the decided batches sent."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._waiting: deque[tuple[int, int]] = deque()  # base offset, digest

    def decision_messages(self, increment: broker_pb2.Increment) -> list[broker_pb2.Increment]:
        """Return the messages for a committed batch: without its body if the consumer already has the body."""
        if not self._waiting:
            return [increment]
        if self._waiting[0] == (increment.base_offset, increment.digest):
            increment.state = broker_pb2.DECIDED
            increment.ClearField("body")
            return [increment]
        return [self.withdrawal(), increment]

    @property
    def is_waiting(self) -> bool:
        """Whether a batch sent early has no decision yet."""
        return bool(self._waiting)

    @property
    def waiting(self) -> tuple[tuple[int, int], ...]:
        """Base offsets and digests of the batches sent early and still undecided; their decisions need no body."""
        return tuple(self._waiting)

    def record_sent(self, word: broker_pb2.Increment) -> None:
        """Record a message that is sent to the consumer: a batch, a decision or a withdrawal."""
        match word.state:
            case broker_pb2.AHEAD:
                self._waiting.append((word.base_offset, word.digest))
            case broker_pb2.WITHDRAWN:
                self._waiting.clear()
            case broker_pb2.DECIDED:
                self._waiting.popleft()
                self.position = word.base_offset + word.count
            case _:
                self.position = word.base_offset + word.count

    def is_valid(self, undecided: Ahead) -> bool:
        """Whether every batch sent early is still undecided and not withdrawn."""
        return len(undecided) >= len(self._waiting) and all(
            (offset, found.digest) == waiting
            for (offset, found), waiting in zip(undecided, self._waiting, strict=False)
        )

    def unsent(self, undecided: Ahead) -> Ahead:
        """Return the undecided batches that are not sent yet."""
        return undecided[len(self._waiting) :]

    def withdrawal(self) -> broker_pb2.Increment:
        """Return the message that withdraws the batches sent early."""
        return broker_pb2.Increment(base_offset=self.position, state=broker_pb2.WITHDRAWN)


class EarlyBatches:
    """Compares the batches sent early to a consumer with the queue, in order, up to the first difference."""

    def __init__(self, waiting: Iterable[tuple[int, int]]) -> None:
        self._left = iter(waiting)

    def has_next(self, base_offset: int, digest: int) -> bool:
        """Whether the consumer already has this batch, the next one of the queue. Call it once for each batch."""
        if next(self._left, None) == (base_offset, digest):
            return True
        self._left = iter(())
        return False


def early_batches(business: Business) -> Ahead:
    """Return the undecided half messages to send early, with the offsets that they get if they are committed."""
    state, known = business.committed, business.undecided
    if not known and sum(found.nbytes for found in state.halves) < WORTH_BYTES:
        return ()
    if known and state.halves and known[0][1] is state.halves[0] and known[-1][1] in state.halves[len(known) - 1 :][:1]:
        offset, placed = known[-1][0] + known[-1][1].offsets, list(known)
    else:
        offset, placed = state.next_offset, []
    for found in state.halves[len(placed) : HALVES_MAX]:
        placed.append((offset, found))
        offset += found.offsets
    return tuple(placed)


def read_early(
    store: Store, buffer: BodyBuffer, business: Business, sent: EarlyDelivery, max_bytes: int
) -> list[broker_pb2.Increment]:
    """Return undecided batches to send (one, and more up to `max_bytes`), or the withdrawal of sent ones, or []."""
    # In this order: what a commit removes from `undecided` is visible before it is removed.
    undecided, visible = business.undecided, business.visible_offset
    if not undecided and not sent.is_waiting:
        return []
    if visible != sent.position:
        return []  # a commit is sent first
    if not sent.is_valid(undecided):
        return [sent.withdrawal()]
    increments: list[broker_pb2.Increment] = []
    nbytes = 0
    for offset, found in sent.unsent(undecided):
        if increments and nbytes + found.nbytes > max_bytes:
            break
        body = buffer.get((business.number, found.index)) or _read_stored_body(store, business, found.index)
        if body is None:
            break  # it has just been decided or withdrawn, and trimmed: the next call shows which
        increments.append(
            broker_pb2.Increment(
                base_offset=offset, count=found.offsets, digest=found.digest, body=body, state=broker_pb2.AHEAD
            )
        )
        nbytes += found.nbytes
    return increments


def _read_stored_body(store: Store, business: Business, index: int) -> bytes | None:
    """Return a body from the log, None if it has been trimmed."""
    try:
        return read_body(store, business, index)
    except Corruption:
        if business.log.start > index:
            return None
        raise
