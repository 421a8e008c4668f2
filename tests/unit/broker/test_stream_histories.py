"""Random histories of one producer's stream: refusals, damage, rollbacks, late answers, missing turns of the loop.

Both ends are the product's own (ProducerStream and Traffic; Producer with its Outgoing), and half_messages.py is the
broker's state; network, disk and application are models that take one step at a time. In the end every half message
must be persisted and decided: a stream that expects a frame which is never sent would wait forever.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from venus.broker.machine import half_messages
from venus.broker.machine.half_messages import HalfAction, HalfMessage, HalfState
from venus.broker.pipeline.producer_commands import HalvesResult, ShippedHalf
from venus.broker.service.in_process import InProcessContext
from venus.broker.service.producer_stream import ProducerStream, StreamServices
from venus.broker.service.traffic import Traffic
from venus.broker.service.unsaved import Intake
from venus.codec.batch import digest
from venus.config import BrokerSettings
from venus.errors import SlowRequest
from venus.flow.admission import AdmissionVerdict as Judgement
from venus.flow.precedence import Precedence
from venus.flow.write_queue import WriteSlot
from venus.model import Verdict
from venus.rpc.event_loop import LoopBridge
from venus.rpc.in_process import InProcessStream
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

HISTORIES = 250
STEPS = 120
CALM_STEPS = 400
BATCHES = 14
BODY_BYTES = 30_000
#: Turns of the event loop after which no further callback is pending.
SETTLED = 12


class Disk:
    """The core: commands in order, each completed when the history says so."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.state = half_messages.raise_epoch(HalfState(), 1, "p")
        self.waiting: deque[tuple[Future[Any], Any, bool]] = deque()

    def take_halves(self, business: str, epoch: int, halves: list[ShippedHalf], *, wakes: bool = True) -> Future[Any]:
        return self._queue(partial(self._take, epoch, halves), can_be_refused=True)

    def carry_out_here(self) -> None:
        """Execute the only command, or leave it to the commit thread if that is busy."""
        if len(self.waiting) == 1 and self.chance.random() < 0.5:
            self.settle(refuse=False)

    def decide(self, business: str, epoch: int, batch_no: int, digest: int, verdict: int) -> Future[Any]:
        return self._queue(partial(self._decide, epoch, batch_no, digest, Verdict(verdict)))

    def count(self, *_: Any) -> None: ...

    def _queue(self, work: Any, *, can_be_refused: bool = False) -> Future[Any]:
        answer: Future[Any] = Future()
        self.waiting.append((answer, work, can_be_refused))
        return answer

    def settle(self, *, refuse: bool) -> None:
        answer, work, can_be_refused = self.waiting.popleft()
        if refuse and can_be_refused:
            answer.set_exception(SlowRequest("too slow", retry_after_s=0.001))
        else:
            answer.set_result(work())

    def _take(self, epoch: int, halves: list[ShippedHalf]) -> HalvesResult:
        for one in halves:
            found = HalfMessage(batch_no=one.batch_no, digest=one.digest, first_sequence=one.batch_no, count=1)
            match half_messages.judge_arrival(self.state, epoch, found):
                case HalfAction.PERSIST:
                    self.state = half_messages.add_half(self.state, found)
                case HalfAction.RESEND:
                    end = self.state.end_batch
                    return HalvesResult(through=end, resend_from=end + 1, reason="a gap")
        return HalvesResult(through=self.state.end_batch)

    def _decide(self, epoch: int, batch_no: int, said: int, verdict: Verdict) -> broker_pb2.Decided:
        match half_messages.judge_decision(self.state, epoch, batch_no, said, verdict):
            case HalfAction.COMMIT:
                self.state, _ = half_messages.commit(self.state, batch_no)
            case HalfAction.ROLL_BACK:
                self.state, _ = half_messages.roll_back(self.state, batch_no)
        answer = half_messages.recorded_answer(self.state, batch_no, said, verdict)
        return broker_pb2.Decided(verdict=broker_pb2.Verdict.ValueType(answer.verdict), batch_no=answer.batch_no)


class RefusingTraffic(Traffic):
    """Refuses frames as the history says."""

    refuses = False

    def admit_halves(self, *arguments: Any) -> Judgement:
        if self.refuses:
            self.refuses = False
            return Judgement(pause_s=0.001, refused=True)
        return super().admit_halves(*arguments)


class History:
    """One producer, one broker, and the events between them."""

    def __init__(self, seed: int, *, in_process: bool) -> None:
        self.rng = random.Random(seed)
        self.disk = Disk(self.rng)
        core: Any = SimpleNamespace(
            producers=self.disk,
            materialiser=SimpleNamespace(behind_by_business=dict, behind_bytes=0),
            commits=SimpleNamespace(waited_s=0.0),
            precedence=Precedence(0.0),
        )
        self.traffic = RefusingTraffic(core, BrokerSettings(buffer_bytes_max=500_000))
        bridge = LoopBridge(asyncio.get_running_loop())
        status: Any = SimpleNamespace(clear_alarms=lambda _: None, raise_alarm=lambda *_: None)
        self.arriving: asyncio.Queue[Any] = asyncio.Queue()
        self.to_broker: deque[broker_pb2.ProducerFrame] = deque()
        self.to_producer: deque[broker_pb2.BrokerFrame] = deque()
        context: Any = SimpleNamespace(read=self.arriving.get, write=self._write, peer=lambda: "test")
        init, ack = broker_pb2.Init(business="main", producer="p"), broker_pb2.InitAck(epoch=1)
        self.producer = Producer("nowhere", "main", "p", window_bytes_max=1 << 30)
        self.direct: InProcessContext | None = None
        if in_process:
            context = self.direct = self._connect(broker_pb2.ProducerFrame(init=init))
        self.stream = ProducerStream(StreamServices(core, bridge, status, self.traffic), context, init, ack)
        self.serving = asyncio.create_task(self.stream.run(broker_pb2.ProducerFrame(init=init)))
        self.rivals: deque[asyncio.Task[WriteSlot]] = deque()
        self.damages = 2
        self.next, self.use, self.decided = 1, 0, 0
        self.sent: dict[int, int] = {}
        self.rolling_back = 0
        self.has_waited = False  # half messages have waited in line

    def _connect(self, first: broker_pb2.ProducerFrame) -> InProcessContext:
        """Connect the producer in this process; the history decides when the broker wakes."""
        stream = self.producer._stream = InProcessStream(self.producer, 0, first)
        context = InProcessContext(stream)

        def put(frame: broker_pb2.BrokerFrame) -> None:
            if frame.HasField("throttle"):
                frame.throttle.retry_after_ms = 0
            self._hand_over(frame)

        served: Any = SimpleNamespace(
            wake=lambda: None,
            send_half=lambda half: context.on_half(half),
            commit=lambda decision: context.on_commit(decision),
            carry_out=lambda: context.carry_out(),
        )
        stream._first, stream._served = None, served
        setattr(stream, "put", put)  # noqa: B010
        return context

    async def _write(self, frame: broker_pb2.BrokerFrame) -> None:
        self.to_producer.append(broker_pb2.BrokerFrame.FromString(frame.SerializeToString()))

    # -- steps ---------------------------------------------------------------------------------------------------

    def say(self) -> None:
        if self.next <= BATCHES and self.producer._has_room():
            body = b"%d.%d" % (self.next, self.use) + b"x" * self.rng.choice([10, BODY_BYTES])
            self.sent[self.next] = digest(body)
            self.producer.send_half(broker_pb2.Half(batch_no=self.next, digest=digest(body), body=body))
            self.next += 1

    def write(self) -> None:
        if self.direct is not None:
            self.direct.wake()
        elif self.producer._outgoing:
            frame = self.producer._outgoing.take()
            self.to_broker.append(broker_pb2.ProducerFrame.FromString(frame.SerializeToString()))

    def carry(self, *, damaged: bool = False) -> None:
        if not self.to_broker:
            return
        frame = self.to_broker.popleft()
        if damaged and self.damages and frame.halves:
            self.damages -= 1
            if self.rng.random() < 0.5:
                self.arriving.put_nowait(None)  # its seal is wrong
                return
            self.rng.choice(frame.halves).body += b"?"
        self.arriving.put_nowait(frame)

    def settle(self, *, refuse: bool = False) -> None:
        """Let the disk complete its next command in a thread of its own, as the core does."""
        if self.disk.waiting:
            thread = threading.Thread(target=self.disk.settle, kwargs={"refuse": refuse})
            thread.start()
            thread.join()

    def answer(self) -> None:
        if self.to_producer:
            frame = self.to_producer.popleft()
            frame.throttle.retry_after_ms = 0
            self._hand_over(frame)

    def _hand_over(self, frame: broker_pb2.BrokerFrame) -> None:
        self.producer.on_frame(frame)
        if self.rolling_back and not self.producer._outgoing.is_rolling_back:
            self.next, self.rolling_back = self.rolling_back, 0

    def commit(self) -> None:
        through = self.producer.persisted_through
        if through > self.decided and not self.rolling_back:
            self.decided = through
            self.producer.decide(through, self.sent[through], Verdict.COMMIT)

    def roll_back(self) -> None:
        first = self.decided + 1
        if not self.use and first < self.next:  # once only, because answers to rollbacks of one number look alike
            self.rolling_back, self.use = first, 1
            self.producer.decide(first, self.sent[first], Verdict.ROLLBACK)

    def add_rival(self) -> None:
        self.rivals.append(asyncio.create_task(self.traffic.unsaved.wait_for_slot(self.rng.choice([60_000, 300_000]))))

    def cancel_rival(self) -> None:
        if self.rivals and self.rivals[0].done():
            self.traffic.unsaved.release_slot(self.rivals.popleft().result())

    # -- a history -----------------------------------------------------------------------------------------------

    async def run(self) -> bool:
        """Run the history; return whether every half message was persisted and decided."""
        steps: list[Callable[[], object]] = [
            *[self.say, self.write, self.carry, self.settle, self.answer] * 4,
            *[self.commit, self.cancel_rival] * 2,
            *[partial(self.settle, refuse=True)] * 3,
            *[partial(setattr, self.traffic, "refuses", True)] * 2,
            partial(self.carry, damaged=True),
            self.roll_back,
            self.add_rival,
        ]
        await self._settle()
        self.answer()  # the answer to init
        for _ in range(STEPS):
            self.rng.choice(steps)()
            await self._settle()
        self.traffic.refuses = False
        for _ in range(CALM_STEPS):
            if self.is_done():
                break
            for step in (self.say, self.write, self.carry, self.settle, self.answer, self.commit, self.cancel_rival):
                step()
            await self._settle()
        done = self.is_done()
        await self._end()
        return done

    def is_done(self) -> bool:
        return self.disk.state.last_batch == self.producer.decided_through == BATCHES and not self.rivals

    async def _settle(self) -> None:
        for _ in range(SETTLED):
            await asyncio.sleep(0)
        self.has_waited |= self.traffic.admission.write_queue.waiting > sum(not rival.done() for rival in self.rivals)
        if self.serving.done():
            self.serving.result()

    async def _end(self) -> None:
        self.arriving.put_nowait(grpc.aio.EOF)
        if self.direct is not None:
            self.producer._closing = True
            self.direct.wake()
        await self._settle()
        while self.disk.waiting:
            self.settle()
            await self._settle()
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)


async def play(seed: int, *, in_process: bool) -> tuple[bool, History]:
    """Run one history; return whether it was completed."""
    history = History(seed, in_process=in_process)
    return await history.run(), history


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("venus.rpc.duplex.BrokerConnection", lambda *_, **__: None)


@pytest.mark.parametrize("in_process", [False, True])
def test_every_history_ends_with_everything_persisted_and_decided(in_process: bool) -> None:
    waited = 0
    for seed in range(HISTORIES):
        done, history = asyncio.run(play(seed, in_process=in_process))
        assert done, f"history {seed} waits forever"
        admission = history.traffic.admission
        assert admission.unsaved.nbytes == admission.write_queue.nbytes == 0, f"history {seed}"
        waited += history.has_waited
    assert waited > HISTORIES // 20


def test_without_the_rule_against_requesting_durable_messages_again_some_wait_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def repeat(self: Intake, batch_no: int) -> int:
        self.expected, self.newest = batch_no, batch_no - 1
        self._void_through = self._submitted
        return batch_no

    monkeypatch.setattr(Intake, "request_again", repeat)
    assert not all(asyncio.run(play(seed, in_process=False))[0] for seed in range(HISTORIES))
