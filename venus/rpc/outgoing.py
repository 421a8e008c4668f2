"""Send queue of a producer: half messages until they are on disk, decisions until they are answered.

Pure bookkeeping without threads, so that resending can be tested alone. All queued messages are sent in one frame, up
to a limit; a single half message therefore leaves at once, and under load frames fill up.

The limit is small at first and after a refusal, and doubles with each acknowledged frame, up to FRAME_BYTES: when many
producers start at once, no producer knows how much the broker can take. Until the limit has grown to FRAME_BYTES, half
messages wait until all earlier frames are on disk, so that they share a frame.
"""

from __future__ import annotations

from collections import deque

from venus.flow.precedence import SMALL_BYTES
from venus.rpc.channel import FRAME_BYTES
from venus.wire import broker_pb2

#: Cost of a message beyond its body, for windows and credit.
OVERHEAD_BYTES = 64


def half_cost(half: broker_pb2.Half) -> int:
    """Return the cost of a half message in a window."""
    return len(half.body) + OVERHEAD_BYTES


class Outgoing:
    """Queues of unsent and of sent, unacknowledged messages."""

    def __init__(self) -> None:
        self._queued: deque[broker_pb2.Half] = deque()
        self._sent: deque[broker_pb2.Half] = deque()
        self._decisions: deque[broker_pb2.Decision] = deque()  # queued
        self._asked: deque[broker_pb2.Decision] = deque()  # sent and not answered
        self._report: broker_pb2.AdapterReport | None = None
        self._committed: broker_pb2.Committed | None = None
        self._said: broker_pb2.Committed | None = None  # the newest position that was sent
        self._frame_bytes = SMALL_BYTES
        self._frames: deque[int] = deque()  # the last batch of each frame that was sent and is not acknowledged
        self.unacknowledged_bytes = 0

    def __bool__(self) -> bool:
        return bool(
            (self._queued and self._can_send_halves)
            or self._decisions
            or self._report is not None
            or self._committed is not None
        )

    @property
    def _can_send_halves(self) -> bool:
        """Whether frames have reached their full size, or all earlier small frames are on disk."""
        return self._frame_bytes >= FRAME_BYTES or not self._frames

    def hurry(self) -> None:
        """Let the queued messages leave without waiting for acknowledgements, because the stream ends."""
        self._frame_bytes = FRAME_BYTES

    @property
    def is_rolling_back(self) -> bool:
        """Whether a rollback is unanswered: until then its batch numbers may not be reused."""
        return any(d.verdict == broker_pb2.ROLLBACK for q in (self._asked, self._decisions) for d in q)

    def add_half(self, half: broker_pb2.Half) -> None:
        """Queue a half message."""
        self._queued.append(half)
        self.unacknowledged_bytes += half_cost(half)

    def add_decision(self, decision: broker_pb2.Decision) -> None:
        """Queue a decision; of two consecutive COMMITs only the one that reaches further is kept."""
        if decision.verdict == broker_pb2.ROLLBACK:
            self._drop_from(decision.batch_no)
        last = self._decisions[-1] if self._decisions else None
        if last is not None and last.verdict == decision.verdict == broker_pb2.COMMIT:
            can_wait = decision.can_wait and last.can_wait
            decision = decision if decision.batch_no >= last.batch_no else last
            decision.can_wait = can_wait
            self._decisions.pop()
        self._decisions.append(decision)

    def set_report(self, report: broker_pb2.AdapterReport) -> None:
        """Queue a report of the adapter; only the newest is sent."""
        self._report = report

    def set_committed(self, committed: broker_pb2.Committed) -> None:
        """Queue the source's committed position; it is sent with the decisions before it, and before any half."""
        assert not self._queued, "half messages follow it"
        self._committed = committed

    def is_urgent(self, through: int) -> bool:
        """Return whether there is something to send while half messages pause.

        A report is urgent, and a decision on half messages up to `through`, which are on the broker's disk.
        """
        return self._report is not None or bool(self._decisions and self._decisions[0].batch_no <= through)

    def take_urgent(self, through: int) -> broker_pb2.ProducerFrame:
        """Return a frame with the urgent messages."""
        decisions = []
        while self._decisions and self._decisions[0].batch_no <= through:
            decisions.append(self._decisions.popleft())
        return self._frame([], decisions)

    def find_commit(self, through: int) -> broker_pb2.Decision | None:
        """Return the only queued decision if it is a COMMIT of halves on the broker's disk, up to `through`."""
        if len(self._decisions) != 1 or self._committed is not None:
            return None
        decision = self._decisions[0]
        return decision if decision.verdict == broker_pb2.COMMIT and decision.batch_no <= through else None

    def find_half(self) -> broker_pb2.Half | None:
        """Return the only queued message if it is a half message, and all earlier ones are on the broker's disk."""
        if len(self._queued) != 1 or self._sent or self._decisions or self._committed is not None:
            return None
        return self._queued[0]

    def record_half(self) -> None:
        """Record that the half message of `find_half` is sent."""
        self._sent.append(half := self._queued.popleft())
        if self._frame_bytes < FRAME_BYTES:
            self._frames.append(half.batch_no)

    def record_commit(self) -> None:
        """Record that the decision of `find_commit` is sent."""
        self._asked.append(self._decisions.popleft())

    def take(self) -> broker_pb2.ProducerFrame:
        """Return the next frame; its messages count as sent."""
        halves: list[broker_pb2.Half] = []
        room = self._frame_bytes
        may_go = self._can_send_halves
        while may_go and self._queued and (not halves or half_cost(self._queued[0]) <= room):
            half = self._queued.popleft()
            room -= half_cost(half)
            halves.append(half)
        self._sent.extend(halves)
        if halves and self._frame_bytes < FRAME_BYTES:
            self._frames.append(halves[-1].batch_no)
        decisions = list(self._decisions)
        self._decisions.clear()
        return self._frame(halves, decisions)

    def _frame(self, halves: list[broker_pb2.Half], decisions: list[broker_pb2.Decision]) -> broker_pb2.ProducerFrame:
        """Return a frame with these messages, and the waiting report and position."""
        self._asked.extend(d for d in decisions if d.verdict != broker_pb2.UNKNOWN)
        report, self._report = self._report, None
        committed, self._committed = self._committed, None
        self._said = committed or self._said
        return broker_pb2.ProducerFrame(halves=halves, decisions=decisions, report=report, committed=committed)

    def on_persisted(self, through: int) -> None:
        """Forget half messages that are on disk."""
        for queue in (self._sent, self._queued):
            while queue and queue[0].batch_no <= through:
                self.unacknowledged_bytes -= half_cost(queue.popleft())
        while self._frames and self._frames[0] <= through:
            self._frames.popleft()
            self._frame_bytes = min(FRAME_BYTES, 2 * self._frame_bytes)

    def on_decided(self, answer: broker_pb2.Decided) -> None:
        """Forget the decisions that the answer covers."""
        if answer.verdict == broker_pb2.COMMIT:
            while (
                self._asked
                and self._asked[0].verdict == broker_pb2.COMMIT
                and self._asked[0].batch_no <= answer.batch_no
            ):
                self._asked.popleft()
        elif answer.verdict == broker_pb2.ROLLBACK:
            while self._asked:
                if self._asked.popleft().verdict == broker_pb2.ROLLBACK:
                    break

    def resend(self, batch_no: int = 0) -> None:
        """Queue again all halves from this batch on, and the unanswered decisions; small frames first."""
        self._frame_bytes = SMALL_BYTES
        self._frames.clear()
        while self._sent and self._sent[-1].batch_no >= batch_no:
            self._queued.appendleft(self._sent.pop())
        self._decisions.extendleft(reversed(self._asked))
        self._asked.clear()
        self._committed = self._said or self._committed  # sending it twice does no harm

    def _drop_from(self, batch_no: int) -> None:
        """Drop the half messages from this batch on: they are rolled back."""
        for queue in (self._queued, self._sent):
            while queue and queue[-1].batch_no >= batch_no:
                self.unacknowledged_bytes -= half_cost(queue.pop())
        while self._frames and self._frames[-1] >= batch_no:
            self._frames.pop()
