"""Small messages of a client in the broker's process: the commit thread's answers, and the end of the stream."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.pipeline.producer_commands import HalvesResult
from venus.broker.service.direct_intake import DirectIntake
from venus.codec.batch import digest
from venus.errors import Unavailable
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2


class IntakeSetup:
    """A direct intake with stand-ins for its stream, its client and the broker's core."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.put: list[broker_pb2.BrokerFrame] = []
        self.settled: list[bool] = []
        self.wakes: list[bool] = []
        self.before: Callable[[], None] = lambda: None
        self.loop = asyncio.new_event_loop()
        self.bridge = LoopBridge(self.loop)
        self.stream = SimpleNamespace(
            business="main",
            epoch=1,
            is_over=False,
            hear=lambda: None,
            begin_flight=lambda newest=0: 1,
            on_settled=lambda done, number, settle: settle(done, number),
            on_halves_done=lambda done, number, *, first, is_put: self.settled.append(is_put),
            on_decision_done=lambda done, number, *, is_put: self.settled.append(is_put),
        )
        core: Any = SimpleNamespace(producers=SimpleNamespace(take_halves=self._hand_over, decide=self._hand_over))
        traffic: Any = SimpleNamespace(
            monotonic=lambda: 0.0, takes_at_once=lambda nbytes: True, record_direct=lambda *_: None
        )
        context: Any = SimpleNamespace(put_at_once=self._put)
        self.intake = DirectIntake(self.stream, context, core, self.bridge, traffic)

    def _hand_over(self, *_: Any, wakes: bool = True) -> Future[Any]:
        self.wakes.append(wakes)
        self.before()
        self.futures.append(Future())
        return self.futures[-1]

    def _put(self, frame: broker_pb2.BrokerFrame) -> bool:
        self.put.append(frame)
        return True

    def take_half(self) -> bool:
        return self.intake.take_half(broker_pb2.Half(batch_no=1, digest=digest(b"body"), body=b"body"))

    def take_commit(self) -> bool:
        return self.intake.take_commit(broker_pb2.Decision(epoch=1, batch_no=1, verdict=broker_pb2.COMMIT))

    def run_loop(self) -> None:
        """Let the event loop run all posted callbacks."""
        done = self.loop.create_future()
        self.bridge.post(done.set_result, None)
        self.loop.run_until_complete(done)

    def settle(self, *, result: Any = None, error: Exception | None = None) -> None:
        """Complete the newest command in a thread of its own, as the commit thread does."""
        thread = threading.Thread(target=self.settle_here, kwargs={"result": result, "error": error})
        thread.start()
        thread.join()

    def settle_here(self, *, result: Any = None, error: Exception | None = None) -> None:
        """Complete the newest command in this thread, as the client's thread does."""
        if error is None:
            self.futures[-1].set_result(result)
        else:
            self.futures[-1].set_exception(error)


@pytest.fixture
def place() -> Iterator[IntakeSetup]:
    found = IntakeSetup()
    yield found
    found.bridge.close()
    found.loop.close()


def test_the_commit_thread_acknowledges_durable_half_messages(place: IntakeSetup) -> None:
    assert place.take_half()
    place.settle(result=HalvesResult(through=1))
    assert [frame.halves_through for frame in place.put] == [1]
    assert not place.settled
    place.run_loop()
    assert place.settled == [True]


def test_the_client_waits_for_a_half_message_and_not_for_a_commit(place: IntakeSetup) -> None:
    assert place.take_half()
    assert place.take_commit()
    assert place.wakes == [False, True]


def test_the_clients_own_thread_acknowledges_what_it_has_written(place: IntakeSetup) -> None:
    assert place.take_half()
    place.settle_here(result=HalvesResult(through=1))
    assert [frame.halves_through for frame in place.put] == [1]
    place.run_loop()
    assert place.settled == [True]


def test_a_result_that_exists_at_once_is_sent_by_the_event_loop(place: IntakeSetup) -> None:
    """The client's thread still holds the lock that sending the answer needs."""
    hand_over = place.intake._core.producers.take_halves

    def settle_at_once(*arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = hand_over(*arguments, **named)
        future.set_result(HalvesResult(through=1))
        return future

    place.intake._core.producers.take_halves = settle_at_once  # type: ignore[method-assign]
    assert place.take_half()
    assert not place.put
    place.run_loop()
    assert place.settled == [False]


@pytest.mark.parametrize("error", [None, Unavailable("the broker is stopping")])
def test_a_gap_and_an_error_are_left_to_the_stream(place: IntakeSetup, error: Exception | None) -> None:
    assert place.take_half()
    place.settle(result=HalvesResult(through=0, resend_from=1, reason="a gap"), error=error)
    place.run_loop()
    assert (place.put, place.settled) == ([], [False])


def test_a_commit_is_answered_and_a_rollback_left_to_the_stream(place: IntakeSetup) -> None:
    assert place.take_commit()
    place.settle(result=broker_pb2.Decided(batch_no=1, verdict=broker_pb2.COMMIT))
    assert place.take_commit()
    place.settle(result=broker_pb2.Decided(batch_no=1, verdict=broker_pb2.ROLLBACK))
    place.run_loop()
    assert [frame.decided.verdict for frame in place.put] == [broker_pb2.COMMIT]
    assert place.settled == [True, False]


def test_a_damaged_body_is_sent_in_a_frame(place: IntakeSetup) -> None:
    assert not place.intake.take_half(broker_pb2.Half(batch_no=1, digest=digest(b"body"), body=b"bodY"))
    assert not place.futures


def test_no_message_is_handed_over_once_the_stream_has_ended(place: IntakeSetup) -> None:
    place.stream.is_over = True
    assert not place.take_half()
    place.stream.is_over = False
    place.intake.close()
    assert not place.take_half()
    assert not place.take_commit()
    assert not place.futures


def test_a_stream_ends_after_the_message_that_its_client_is_handing_over(place: IntakeSetup) -> None:
    """An ended stream releases its business, which the core may then drop."""
    begun, may_continue = threading.Event(), threading.Event()
    steps: list[str] = []

    def wait() -> None:
        begun.set()
        may_continue.wait(60)
        steps.append("in the core")

    def end() -> None:
        place.intake.close()
        steps.append("ended")

    place.before = wait
    threads = [threading.Thread(target=place.take_half), threading.Thread(target=end)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    threads[1].join(0.1)
    may_continue.set()
    for thread in threads:
        thread.join(60)
    assert steps == ["in the core", "ended"]
