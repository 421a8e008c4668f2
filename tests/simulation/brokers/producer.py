"""The upper adapter: half messages, local transaction, decision; it may be killed between any two of these steps."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from tests.simulation.brokers.source import Cut, Source
from tests.simulation.brokers.streams import Stream
from tests.simulation.judge import Violation
from venus.adapters.upper.ingest import judge_halves
from venus.errors import Diverged, Fenced, NotLeader, VenusError
from venus.model import Verdict
from venus.wire import broker_pb2

if TYPE_CHECKING:
    from tests.simulation.brokers.world import BrokerWorld

TICK_S = 0.1
#: Longest silence of a broker while the producer waits for its answer.
SILENCE_S = 4.0


class ProducerAction(Enum):
    """Current action of a producer."""

    CONNECTING = auto()
    NOTHING = auto()
    SHIPPING = auto()


class Producer:
    """One process of the upper adapter; with probability `cruelty` a fault follows each step."""

    def __init__(self, world: BrokerWorld, source: Source) -> None:
        self._world, self._source = world, source
        self._loop, self._random = world.loop, world.loop.random
        self.alive = True
        self._stream: Stream | None = None
        self._does = ProducerAction.NOTHING
        self._epoch = 0
        self._claimed: int | None = None  # the newest epoch that a broker assigned to this process
        self._next_batch, self._next_sequence = 1, 1
        self._described = False
        self._cut: Cut | None = None
        self._heard_at = 0.0
        self._later_at = 0.0
        self._hint = ""
        self._tick()

    def end(self) -> None:
        """End the process; its stream closes."""
        self.alive = False
        if self._stream is not None:
            self._stream.close()

    def _tick(self) -> None:
        """Connect if there is no stream; begin again if the broker has been silent for too long."""
        if not self.alive:
            return
        self._loop.after(TICK_S * (0.5 + self._random.random()), self._tick)
        now = self._loop.now
        if self._stream is None:
            if now >= self._later_at:
                self._connect()
        elif self._does is not ProducerAction.NOTHING and now - self._heard_at > SILENCE_S:
            self._again()
        elif self._does is ProducerAction.NOTHING and now >= self._later_at:
            if now - self._heard_at > SILENCE_S:
                self._stream.keep_alive()
            self._ship()

    def _again(self) -> None:
        """Drop the stream and the current cut, and connect again later."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._cut, self._does = None, None, ProducerAction.NOTHING
        self._later_at = self._loop.now + 0.3 * self._random.random()

    def _connect(self) -> None:
        hosts = self._world.hosts
        host = hosts[self._hint] if self._hint in hosts else self._random.choice(list(hosts.values()))
        self._hint = ""
        if not host.up:
            self._later_at = self._loop.now + 0.1
            return
        if self._claimed is not None and self._source.epoch > self._claimed:
            self.end()  # another producer has taken over
            return
        stream = self._stream = Stream(host, self._on_message, lambda error: self._on_end(stream, error))
        self._does, self._heard_at = ProducerAction.CONNECTING, self._loop.now
        stream.up(host.clients.init, stream, self._source.epoch, self._source.last_batch)

    def _on_end(self, stream: Stream, error: VenusError) -> None:
        """Handle the end of a stream: end the process if it is fenced, otherwise connect again."""
        if stream is not self._stream or not self.alive:
            return
        if isinstance(error, Diverged):
            raise Violation("the broker has what the source has committed", str(error))
        if isinstance(error, Fenced) or not error.retryable:
            self._loop.counts[f"producer ended: {type(error).__name__}"] += 1
            self.end()
            return
        self._loop.counts["producer lost its broker"] += 1
        self._hint = error.leader if isinstance(error, NotLeader) else ""
        self._again()

    def _on_message(self, word: str, what: Any) -> None:
        if not self.alive or self._stream is None:
            return
        self._heard_at = self._loop.now
        match word:
            case "ack":
                self._begin(what)
            case "halves":
                self._on_persisted(what)
            case "decided":
                if what.verdict == broker_pb2.COMMIT:
                    self._world.judge.on_decision(what.batch_no)
            case "review":
                self._on_review(what)

    # -- a session -------------------------------------------------------------------------------------------------

    def _begin(self, ack: broker_pb2.InitAck) -> None:
        """Begin a session: raise the source's epoch and decide the undecided half messages."""
        source = self._source
        self._epoch = self._claimed = ack.epoch
        try:
            source.raise_epoch(ack.epoch)
        except Fenced:
            self.end()
            return
        committed = ack.last_batch
        for half, verdict in judge_halves(list(ack.undecided), source.batches):
            self._decide(half.batch_no, half.digest, verdict)
            self._loop.counts[f"left undecided: {verdict.name}"] += 1
            committed = half.batch_no if verdict is Verdict.COMMIT else committed
        if source.last_batch > committed:
            raise Violation("the broker has what the source has committed", f"{source.last_batch}, not {committed}")
        if source.last_batch < committed:
            raise Violation("nothing is visible that the source has not committed", f"batch {committed}")
        self._next_batch = committed + 1
        self._next_sequence = max(source.next_sequence, ack.last_sequence + 1)
        self._described, self._does = False, ProducerAction.NOTHING

    def _decide(self, batch_no: int, digest: int, verdict: Verdict) -> None:
        """Send a decision."""
        stream = self._stream
        if stream is not None:
            stream.up(stream.host.clients.decide, stream, self._epoch, batch_no, digest, int(verdict))

    def _ship(self) -> None:
        """Read a cut and send its half messages."""
        cut = self._source.cut(self._epoch, self._next_batch, self._next_sequence, described=not self._described)
        stream = self._stream
        if cut is None or stream is None:
            return
        self._cut, self._does, self._heard_at = cut, ProducerAction.SHIPPING, self._loop.now
        halves = [
            broker_pb2.Half(batch_no=record.batch_no, digest=record.digest, body=self._world.transmit(body))
            for body, record in zip(cut.bodies, cut.records, strict=True)
        ]
        for part in [halves] if self._random.random() < 0.5 else [[half] for half in halves]:
            stream.up(stream.host.clients.halves, stream, self._epoch, part)

    def _on_persisted(self, result: Any) -> None:
        """Commit the cut once its half messages are on the broker's disk, or begin again on a gap."""
        cut = self._cut
        if cut is None or self._does is not ProducerAction.SHIPPING:
            return
        if result.resend_from is not None:
            self._again()
        elif result.through >= cut.records[-1].batch_no:
            self._commit(cut)

    def _commit(self, cut: Cut) -> None:
        """Run the local transaction and send its decision; a fault may come before, in between or after."""
        fate = self._random.random() / self._world.producers_fail if self._world.producers_fail else 1.0
        first, last = cut.records[0], cut.records[-1]
        self._cut, self._does = None, ProducerAction.NOTHING
        if fate < 0.2:
            self._die("died before its local transaction")
            return
        if fate < 0.4:
            self._loop.counts["local transaction failed"] += 1
            self._decide(first.batch_no, first.digest, Verdict.ROLLBACK)
            return
        try:
            self._source.commit(self._epoch, cut)
        except Fenced:
            self._loop.counts["a fenced producer could not commit"] += 1
            self.end()
            return
        self._world.judge.on_commit(cut)
        self._next_batch, self._next_sequence = last.batch_no + 1, last.last_sequence + 1
        self._described = True
        if fate < 0.7:
            self._die("died between its local transaction and the decision")
        elif fate < 1.0:
            self._loop.counts["forgot to decide"] += 1
            self._later_at = self._loop.now + 2.0 * self._random.random()
        else:
            self._decide(last.batch_no, last.digest, Verdict.COMMIT)

    def _die(self, how: str) -> None:
        """Count how this process ends, and end it."""
        self._loop.counts[f"a producer {how}"] += 1
        self.end()

    def _on_review(self, halves: Sequence[broker_pb2.HalfRef]) -> None:
        """Answer a review from the source's batch table."""
        if self._does is ProducerAction.CONNECTING:
            return
        in_flight = self._cut.records[0].batch_no if self._cut is not None else None
        records = self._source.batches
        asked = [h for h in halves if (r := records.get(h.batch_no)) is None or r.digest == h.digest]  # type: ignore[call-overload]
        for half, verdict in judge_halves(asked, records, in_flight_from=in_flight):
            self._loop.counts[f"reviewed: {verdict.name}"] += 1
            self._decide(half.batch_no, half.digest, verdict)
