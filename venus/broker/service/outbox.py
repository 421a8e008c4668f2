"""What a producer has to be told, coalesced until the stream takes it: the newest answer stands for the older ones."""

from __future__ import annotations

import asyncio

from venus.wire import broker_pb2

#: What nobody waits for is said after so long, if nothing else was said before.
ANSWER_WITHIN_S = 0.05


class Outbox:
    """Bounded by its fields: numbers are merged, rollbacks and reviews are at most as many as half messages."""

    def __init__(self, init_ack: broker_pb2.InitAck) -> None:
        self.wake = asyncio.Event()
        self._first: broker_pb2.InitAck | None = init_ack
        self._through = 0
        self._decided: list[broker_pb2.Decided] = []
        self._resend: broker_pb2.Resend | None = None
        self._throttle_ms = 0
        self._taken = True
        self._reviews: dict[int, broker_pb2.HalfRef] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._first or self._through or self._decided or self._resend or self._throttle_ms or self._reviews)

    def persisted(self, through: int) -> None:
        """Say that every half message up to this one is on disk."""
        self._through = max(self._through, through)
        self.wake.set()

    def decided(self, answer: broker_pb2.Decided, *, can_wait: bool = False) -> None:
        """Answer a decision; a COMMIT speaks for the one before it.

        One that `can_wait` rides with what is said next, which in a trickle saves every second frame.
        """
        last = self._decided[-1] if self._decided else None
        if last is not None and last.verdict == answer.verdict == broker_pb2.COMMIT:
            if answer.batch_no < last.batch_no:  # what was asked for once more says less
                answer = last
            self._decided.pop()
        self._decided.append(answer)
        if not can_wait:
            self.wake.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN_S, self._late)

    def _late(self) -> None:
        self._timer = None
        if self:
            self.wake.set()

    def resend(self, batch_no: int, reason: str) -> None:
        """Ask for half messages again."""
        if self._resend is None or batch_no < self._resend.batch_no:
            self._resend = broker_pb2.Resend(batch_no=batch_no, reason=reason)
        self.wake.set()

    def throttle(self, retry_after_ms: int, *, taken: bool) -> None:
        """Ask to slow down; and, if not everything was taken, to send the rest again."""
        self._throttle_ms = max(self._throttle_ms, retry_after_ms)
        self._taken = self._taken and taken
        self.wake.set()

    def review(self, halves: list[broker_pb2.HalfRef]) -> None:
        """Ask what became of these half messages."""
        self._reviews.update((half.batch_no, half) for half in halves)
        self.wake.set()

    def take(self) -> list[broker_pb2.BrokerFrame]:
        """Return the frames that say everything, and forget it."""
        self.wake.clear()
        frame = broker_pb2.BrokerFrame(
            init_ack=self._first,
            halves_through=self._through,
            decided=self._decided[0] if self._decided else None,
            resend=self._resend,
            throttle=broker_pb2.Throttle(retry_after_ms=self._throttle_ms, taken=self._taken)
            if self._throttle_ms
            else None,
            review=broker_pb2.Review(halves=self._reviews.values()) if self._reviews else None,
        )
        frames = [frame] if self else []
        frames.extend(broker_pb2.BrokerFrame(decided=answer) for answer in self._decided[1:])
        self._first = self._resend = None
        self._through = self._throttle_ms = 0
        self._taken = True
        self._decided, self._reviews = [], {}
        return frames
