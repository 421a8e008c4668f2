"""Half messages of a large cut, sent to a consumer before they are decided.

A cut is visible only as a whole, so the time to read it at the source and the time to write it at the target would add
up. A consumer that asks for it gets the halves as soon as they are on disk, brings them into its open transaction, and
commits on the decision. Nothing of a half that is not decided may be seen by anybody; a rollback withdraws it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from venus.broker.machine.business import Ahead, Business
from venus.broker.machine.records import read_body
from venus.broker.queue.buffer import Buffer
from venus.broker.store.rocks import Store
from venus.errors import Corruption
from venus.wire import broker_pb2

#: A cut below this size is not worth it: it is decided before the consumer could do anything with it.
WORTH_BYTES = 1 << 20
#: What of a larger cut is sent ahead; the rest follows its decision.
HALVES_MAX = 4096


class Sent:
    """What one consumer was sent ahead of its decision, in order; `position` is the end of what it was sent decided."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._waiting: deque[tuple[int, int]] = deque()  # base offset, digest

    def decided(self, increment: broker_pb2.Increment) -> list[broker_pb2.Increment]:
        """Return what has to be sent for a committed increment: without its body if that is there already."""
        if not self._waiting:
            return [increment]
        if self._waiting[0] == (increment.base_offset, increment.digest):
            increment.state = broker_pb2.DECIDED
            increment.ClearField("body")
            return [increment]
        return [self.withdrawal(), increment]

    @property
    def waits(self) -> bool:
        """Whether anything of it is not decided yet."""
        return bool(self._waiting)

    @property
    def waiting(self) -> tuple[tuple[int, int], ...]:
        """What is not decided yet, in order: base offsets and digests. It needs no body when it is decided."""
        return tuple(self._waiting)

    def went(self, word: broker_pb2.Increment) -> None:
        """Note what is on its way."""
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

    def stands(self, undecided: Ahead) -> bool:
        """Whether everything that was sent ahead is still there, none of it decided."""
        return len(undecided) >= len(self._waiting) and all(
            (offset, found.digest) == waiting
            for (offset, found), waiting in zip(undecided, self._waiting, strict=False)
        )

    def rest(self, undecided: Ahead) -> Ahead:
        """Return what has not been sent yet."""
        return undecided[len(self._waiting) :]

    def withdrawal(self) -> broker_pb2.Increment:
        """Return the word that takes back what was sent ahead."""
        return broker_pb2.Increment(base_offset=self.position, state=broker_pb2.WITHDRAWN)


class There:
    """What a consumer was sent ahead, compared with the queue in order: behind the first difference it has nothing."""

    def __init__(self, waiting: Iterable[tuple[int, int]]) -> None:
        self._left = iter(waiting)

    def has(self, base_offset: int, digest: int) -> bool:
        """Whether the batch that comes next in the queue is there."""
        if next(self._left, None) == (base_offset, digest):
            return True
        self._left = iter(())
        return False


def published(business: Business) -> Ahead:
    """Return the undecided halves with the offsets that they get if they are committed, as far as they are worth it."""
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


def read(store: Store, buffer: Buffer, business: Business, sent: Sent, max_bytes: int) -> list[broker_pb2.Increment]:
    """Return what comes next, at least one and no more than `max_bytes` of further ones; [] = no news."""
    # In this order: what a commit takes from `undecided` is visible before it is gone from there.
    undecided, visible = business.undecided, business.visible_offset
    if not undecided and not sent.waits:
        return []
    if visible != sent.position:
        return []  # a commit comes first
    if not sent.stands(undecided):
        return [sent.withdrawal()]
    increments: list[broker_pb2.Increment] = []
    nbytes = 0
    for offset, found in sent.rest(undecided):
        if increments and nbytes + found.nbytes > max_bytes:
            break
        body = buffer.get((business.number, found.index)) or _stored(store, business, found.index)
        if body is None:
            break  # decided or withdrawn this moment, and trimmed: the next look says which
        increments.append(
            broker_pb2.Increment(
                base_offset=offset, count=found.offsets, digest=found.digest, body=body, state=broker_pb2.AHEAD
            )
        )
        nbytes += found.nbytes
    return increments


def _stored(store: Store, business: Business, index: int) -> bytes | None:
    try:
        return read_body(store, business, index)
    except Corruption:
        if business.log.start > index:
            return None
        raise
