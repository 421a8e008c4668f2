"""Small half messages and COMMITs of a client in this process, without the event loop (VENUS 3.3, figure 4).

For a small transaction, waking other threads costs more than the work itself. So the client's thread hands a small
half message, and the COMMIT of half messages that are on disk, directly to the core. The client's thread also writes
the half message if the commit thread rests (`carry_out`), because it would wait for the write anyway; after a COMMIT
it reads the next cut. The writing thread answers the client; the event loop records the answer when another call wakes
the loop. All unusual cases go through frames (producer_stream.py): a limit or a degraded lane, a damaged body, a
missing answer, a refusal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from venus.broker.core import Core
from venus.broker.pipeline.producer_commands import HalvesResult, ShippedHalf
from venus.broker.service.in_process import InProcessContext
from venus.broker.service.traffic import Traffic
from venus.codec.batch import digest
from venus.errors import VenusError
from venus.rpc import limits
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2

#: What the event loop does with a result of the core.
Settle = Callable[[Future[Any], int], None]


class ServedProducer(Protocol):
    """The stream of the client (producer_stream.py). Only the event loop uses it, except for the first four members."""

    business: str
    epoch: int

    @property
    def is_over(self) -> bool:
        """Whether the stream accepts nothing more. Works in any thread."""
        ...

    def hear(self) -> None:
        """Record that the client is alive. Works in any thread."""
        ...

    def begin_flight(self, newest: int = 0) -> int:
        """Count a command for the core; return its number. `newest` is the command's newest half message."""
        ...

    def on_settled(self, done: Future[Any], number: int, settle: Settle) -> None:
        """Process the result of a command that was handed to the core."""
        ...

    def on_halves_done(self, done: Future[HalvesResult], number: int, *, first: int, is_put: bool) -> None:
        """Process the result for half messages from `first` on. `is_put`: the client has the acknowledgement."""
        ...

    def on_decision_done(self, done: Future[broker_pb2.Decided], number: int, *, is_put: bool) -> None:
        """Process the result for a decision. `is_put`: the client has the answer."""
        ...


class DirectIntake:
    """Intake of half messages and COMMITs that the client's thread hands over while it holds the client's lock."""

    def __init__(
        self, stream: ServedProducer, context: InProcessContext, core: Core, bridge: LoopBridge, traffic: Traffic
    ) -> None:
        self._stream, self._context, self._core = stream, context, core
        self._bridge, self._traffic = bridge, traffic
        self._lock = threading.Lock()  # held while something is handed over
        self._is_closed = False

    def close(self) -> None:
        """Refuse everything from now on; commands that were handed over stay in the core's queue."""
        with self._lock:
            self._is_closed = True

    def take_half(self, half: broker_pb2.Half) -> bool:
        """Hand a half message to the core; all earlier ones are on disk. Return False if it needs a frame instead."""
        stream, body, asked_at = self._stream, half.body, self._traffic.monotonic()
        if digest(body) != half.digest or not self._traffic.takes_at_once(len(body)):
            return False
        shipped = ShippedHalf(batch_no=half.batch_no, digest=half.digest, body=body)

        def hand_over() -> Future[HalvesResult]:
            limits.check(half)
            return self._core.producers.take_halves(stream.business, stream.epoch, [shipped], wakes=False)

        settle = partial(stream.on_halves_done, first=half.batch_no)
        note = partial(self._traffic.record_direct, stream.business, len(body), asked_at)
        return self._try_hand_over(hand_over, half.batch_no, _acknowledgement, settle, note)

    def take_commit(self, decision: broker_pb2.Decision) -> bool:
        """Hand a COMMIT of half messages that are on disk to the core. Return False if the COMMIT needs a frame."""
        stream = self._stream

        def hand_over() -> Future[broker_pb2.Decided]:
            limits.check(decision)
            return self._core.producers.decide(
                stream.business, decision.epoch, decision.batch_no, decision.digest, decision.verdict
            )

        return self._try_hand_over(hand_over, 0, _commit_answer, stream.on_decision_done)

    def carry_out(self) -> None:
        """Write the half message that was handed over, or let the commit thread do so.

        The caller must not hold the client's lock. This works for an ended stream too, because the core has the
        command.
        """
        self._core.producers.carry_out_here()

    def _try_hand_over(
        self,
        hand_over: Callable[[], Future[Any]],
        newest: int,
        answer: Callable[[Any], broker_pb2.BrokerFrame | None],
        settle: Callable[..., None],
        note: Callable[[float], None] = lambda done_at: None,
    ) -> bool:
        """Hand a command to the core, which answers the client; the event loop records the result later.

        Return False if the stream has ended or the core refuses the command. The lock keeps the stream from ending
        during the hand-over, because an ended stream has released the business.
        """
        stream, numbers, is_locked = self._stream, list[int](), [threading.get_ident()]
        with self._lock:
            if self._is_closed or stream.is_over:
                return False
            try:
                future = hand_over()
            except VenusError:  # the client then sends a frame, which ends the stream with this error
                return False
            self._bridge.post_idly(lambda: numbers.append(stream.begin_flight(newest)))

        def on_done(done: Future[Any]) -> None:
            """Give the client its answer if possible, and let the event loop record the result."""
            frame = answer(done.result()) if done.exception() is None else None
            # if the commit thread was faster, this is the client's thread, which holds the lock that `put` needs
            holds_lock = threading.get_ident() in is_locked
            is_put = frame is not None and not holds_lock and self._context.put_at_once(frame)
            post = self._bridge.post_idly if is_put else self._bridge.post
            post(record, done, is_put, self._traffic.monotonic())

        def record(done: Future[Any], is_put: bool, done_at: float) -> None:
            """Record the result of the command at the stream."""
            note(done_at)
            stream.on_settled(done, numbers[0], partial(settle, is_put=is_put))

        stream.hear()
        future.add_done_callback(on_done)
        is_locked.clear()
        return True


def _acknowledgement(result: HalvesResult) -> broker_pb2.BrokerFrame | None:
    """Return the acknowledgement of half messages; None if some have to be sent again, which the stream asks for."""
    return broker_pb2.BrokerFrame(halves_through=result.through) if result.resend_from is None else None


def _commit_answer(decided: broker_pb2.Decided) -> broker_pb2.BrokerFrame | None:
    """Return the answer to a COMMIT; None if it was rolled back, which the stream records before the client acts."""
    return broker_pb2.BrokerFrame(decided=decided) if decided.verdict == broker_pb2.COMMIT else None
