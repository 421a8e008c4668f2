"""Random histories of one queue: the broker is the product's half_messages.py, all other parts are models."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from venus.broker.machine import half_messages
from venus.broker.machine.half_messages import HalfAction, HalfMessage, HalfState
from venus.errors import VenusError
from venus.model import Verdict

STEPS = 220
CALM_STEPS = 1500


class ProcessDeath(Exception):
    """Ends a producer process."""


class Network(Enum):
    """The frames of a producer in both directions; they arrive in order or not at all."""

    FIFO = "in order, single frames refused"  # the guarantee of gRPC within a stream
    WILD = "reordered, doubled and lost; a producer that rolled back introduces itself again"
    LATE_DECISIONS = "decisions doubled and late by any time"


@dataclass
class Source:
    """The database: `rows` are numbered, and `consumed` of them were shipped by committed local transactions."""

    rows: int = 0
    consumed: int = 0
    epoch: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    last_batch: int = 0


@dataclass
class Batch:
    """A batch that the producer ships: its number, its first and last row, its digest."""

    no: int
    first: int
    last: int
    digest: int


class Producer:
    """The upper adapter: one cut at a time, of up to three batches; it does not wait for the answer to a commit."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.dead = False
        self.epoch = 0
        self.outgoing: deque[tuple[Any, ...]] = deque()
        self.incoming: deque[tuple[Any, ...]] = deque()
        self._introduce()

    def _introduce(self) -> None:
        """Begin a life of the process, which has no pending decisions or frames."""
        self.steps = self._life()
        self.pending: list[tuple[int, int, Verdict]] = []
        self.through = 0
        self.cut: list[Batch] = []
        self.next_batch = 0
        self.outgoing.clear()
        self.incoming.clear()

    def act(self) -> None:
        """Handle arrived frames, then take the next step."""
        while self.incoming and (self.world.calm or self.world.random.random() < 0.6):
            self._hear(self.incoming.popleft())
        try:
            next(self.steps)
        except (ProcessDeath, StopIteration):
            self.dead = True

    def _life(self) -> Any:
        """Run the process: Init, decisions about undecided half messages, then one cut after the other."""
        source, broker = self.world.source, self.world.broker
        answer = broker.init(f"p{self.number}", source.epoch, source.last_batch)
        yield
        if answer is None:
            raise ProcessDeath
        self.epoch, undecided, last = answer
        yield
        if source.epoch > self.epoch:
            raise ProcessDeath
        source.epoch = self.epoch
        yield
        known = 0
        while known < len(undecided) and source.batches.get(undecided[known].batch_no) == undecided[known].digest:
            known += 1
        if known:
            last = undecided[known - 1].batch_no
            yield from self._settle(last, undecided[known - 1].digest, Verdict.COMMIT)
        if known < len(undecided):
            rest = undecided[known]
            yield from self._settle(rest.batch_no, rest.digest, Verdict.ROLLBACK)
        self.next_batch = last + 1
        self.through = last
        while True:
            yield from self._cut()

    def _settle(self, batch_no: int, digest: int, verdict: Verdict) -> Any:
        """Send a decision until it is answered."""
        self.pending.append((batch_no, digest, verdict))
        while self.pending:
            self._send(("decide", *self.pending[0]))
            yield

    def _cut(self) -> Any:
        """Read a cut, ship its half messages, and commit or roll back the local transaction."""
        source, rng = self.world.source, self.world.random
        while source.consumed >= source.rows:
            self._repeat()
            yield
        self._check_epoch()
        first, rows = source.consumed + 1, source.rows
        self.cut = []
        for _ in range(rng.randrange(1, 4)):
            if first <= rows:
                last = min(rows, first + rng.randrange(3))
                self.world.nonce += 1
                self.cut.append(Batch(self.next_batch + len(self.cut), first, last, self.world.nonce))
                first = last + 1
        while self.through < self.cut[-1].no:
            for batch in self.cut:
                if batch.no > self.through:
                    self._send(("half", batch.no, batch.digest, batch.first, batch.last))
            self._repeat()
            yield
        if rng.random() < 0.12 and not self.world.calm:
            yield from self._roll_back()
            return
        self._check_epoch()
        if source.consumed != self.cut[0].first - 1:
            self._die()
        source.batches.update({batch.no: batch.digest for batch in self.cut})
        source.consumed, source.last_batch = self.cut[-1].last, self.cut[-1].no
        self.next_batch = self.cut[-1].no + 1
        final, self.cut = self.cut[-1], []
        if rng.random() < 0.1 and not self.world.calm:
            self._die()  # the local transaction is done, and its decision is never sent
        self.pending.append((final.no, final.digest, Verdict.COMMIT))
        yield

    def _roll_back(self) -> Any:
        """Roll back the half messages of the current cut."""
        begin, self.cut = self.cut[0], []
        self.pending.append((begin.no, begin.digest, Verdict.ROLLBACK))
        while any(verdict is Verdict.ROLLBACK for _, _, verdict in self.pending):
            self._repeat()
            yield
        if self.world.network is Network.WILD:
            self._introduce()
            self.steps = self._life()
        self.next_batch = begin.no
        self.through = min(self.through, begin.no - 1)

    def _repeat(self) -> None:
        """Send every unanswered decision again."""
        for decision in self.pending:
            self._send(("decide", *decision))

    def _send(self, frame: tuple[Any, ...]) -> None:
        """Send a frame, unless the same frame is still on its way."""
        if (self.epoch, *frame) not in self.outgoing:
            self.outgoing.append((self.epoch, *frame))

    def _check_epoch(self) -> None:
        """Check the epoch of the checkpoint row, as each local transaction does."""
        if self.world.source_fences and self.world.source.epoch != self.epoch:
            self._die()

    def _die(self) -> None:
        raise ProcessDeath

    def _hear(self, frame: tuple[Any, ...]) -> None:
        """Handle a frame of the broker."""
        match frame:
            case ("through", through):
                self.through = max(self.through, through)
            case ("resend", batch_no):
                self.through = min(self.through, batch_no - 1)
            case ("decided", batch_no, verdict):
                if verdict is Verdict.COMMIT:
                    self.pending = [p for p in self.pending if not (p[2] is verdict and p[0] <= batch_no)]
                else:
                    self.pending = [p for p in self.pending if (p[2], p[0]) != (verdict, batch_no)]
            case ("review", batch_no, digest):
                if self.world.source_fences and self.world.source.epoch != self.epoch:
                    self.dead = True
                elif self.world.source.batches.get(batch_no) == digest:
                    self._send(("decide", batch_no, digest, Verdict.COMMIT))
            case ("end",):
                self.dead = True


class Broker:
    """half_messages.py with the state of its log. A crash loses no state, which is written before any answer."""

    def __init__(self) -> None:
        self.state = HalfState()
        self.bodies: dict[tuple[int, int], tuple[int, int]] = {}
        self.queue: list[int] = []
        self.offsets: list[int] = []
        self.diverged = False

    def init(
        self, producer: str, source_epoch: int, source_last_batch: int
    ) -> tuple[int, list[HalfMessage], int] | None:
        """Admit a producer in a new epoch; None if it is diverged."""
        try:
            half_messages.check_producer(self.state, source_last_batch)
        except VenusError:
            self.diverged = True
            return None
        self.state = half_messages.raise_epoch(
            self.state, half_messages.next_epoch(self.state, source_epoch, 0), producer
        )
        return self.state.epoch, list(self.state.halves), self.state.last_batch

    def take(self, frame: tuple[Any, ...]) -> tuple[Any, ...]:
        """Handle a frame of a producer; return the answer."""
        try:
            match frame:
                case (epoch, "half", batch_no, digest, first, last):
                    return self._half(epoch, batch_no, digest, first, last)
                case (epoch, "decide", batch_no, digest, verdict):
                    return self._decide(epoch, batch_no, digest, verdict)
        except VenusError:
            return ("end",)
        raise AssertionError(frame)

    def _half(self, epoch: int, batch_no: int, digest: int, first: int, last: int) -> tuple[Any, ...]:
        arriving = HalfMessage(batch_no=batch_no, digest=digest, first_sequence=first, count=last - first + 1)
        match half_messages.judge_arrival(self.state, epoch, arriving):
            case HalfAction.PERSIST:
                self.state = half_messages.add_half(self.state, arriving)
                self.bodies[batch_no, digest] = (first, last)
            case HalfAction.RESEND:
                return ("resend", self.state.end_batch + 1)
        return ("through", self.state.end_batch)

    def _decide(self, epoch: int, batch_no: int, digest: int, verdict: Verdict) -> tuple[Any, ...]:
        match half_messages.judge_decision(self.state, epoch, batch_no, digest, verdict):
            case HalfAction.COMMIT:
                self.state, placed = half_messages.commit(self.state, batch_no)
                for offset, found in placed:
                    self.offsets.append(offset)
                    first, last = self.bodies[found.batch_no, found.digest]
                    self.queue += range(first, last + 1)
            case HalfAction.ROLL_BACK:
                self.state, _ = half_messages.roll_back(self.state, batch_no)
        return ("decided", batch_no, verdict)


class World:
    """One history: source, broker, producers, network."""

    def __init__(self, seed: int, network: Network, *, source_fences: bool = True) -> None:
        self.random = random.Random(seed)
        self.network = network
        self.source_fences = source_fences
        self.source = Source()
        self.broker = Broker()
        self.producers: list[Producer] = []
        self.late: list[tuple[Producer, tuple[Any, ...]]] = []
        self.nonce = 0
        self.calm = False

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
        self.calm = True
        for _ in range(CALM_STEPS):
            self._calm_step()
            if self._is_quiet():
                return

    def verdict(self) -> str:
        """Return the outcome: exact, doubled, lost, stuck or out of order."""
        queue, rows = self.broker.queue, self.source.rows
        if len(set(queue)) != len(queue):
            return "doubled"
        if self.broker.diverged or self.broker.state.halves or not self._is_quiet():
            return "lost" if self.source.consumed > len(set(queue)) else "stuck"
        if set(queue) != set(range(1, rows + 1)):
            return "lost"
        return "exact" if queue == sorted(queue) else "out of order"

    def _is_quiet(self) -> bool:
        """Return whether the broker has every row of the source, and nothing is undecided."""
        return self.source.consumed == self.source.rows == len(self.broker.queue) and not self.broker.state.halves

    def _living_producers(self) -> list[Producer]:
        """Return the producers that live; start one if there is none."""
        live = [p for p in self.producers if not p.dead]
        if not live:
            live = [Producer(self, len(self.producers))]
            self.producers += live
        return live

    def _step(self) -> None:
        x = self.random.random()
        if x < 0.15:
            self.source.rows += self.random.randrange(3)
        elif x < 0.55:
            self.random.choice(self._living_producers()).act()
        elif x < 0.93:
            self._deliver(self.random.choice(self._living_producers()))
        elif x < 0.955:
            self._review()
        elif x < 0.97:
            self.random.choice(self._living_producers()).dead = True
        elif x < 0.98:
            self._crash_of_the_broker()
        elif sum(not p.dead for p in self.producers) < 3:
            self.producers.append(Producer(self, len(self.producers)))  # the older producers become zombies

    def _calm_step(self) -> None:
        """Let the newest producer work; zombies of older ones and late frames still interfere."""
        live = self._living_producers()
        for producer in live[:-1]:
            producer.act()
            self._deliver(producer)
        live[-1].act()
        self._deliver(live[-1])
        if self.random.random() < 0.1:
            self._review()

    def _crash_of_the_broker(self) -> None:
        for producer in self.producers:
            producer.outgoing.clear()
            producer.incoming.clear()
            producer.dead = producer.dead or self.random.random() < 0.7  # the others reconnect late, and are fenced

    def _deliver(self, producer: Producer) -> None:
        """Deliver a frame of a producer; the network may delay, repeat or lose it."""
        frames, rng = producer.outgoing, self.random
        if self.late and rng.random() < 0.2:
            self._take(*self.late.pop(rng.randrange(len(self.late))))
        if not frames:
            return
        if self.network is Network.WILD:
            frames.rotate(-rng.randrange(len(frames)))
        frame = frames.popleft()
        if self.network is Network.WILD and rng.random() < 0.1:
            frames.append(frame)
        if self.network is Network.LATE_DECISIONS and frame[1] == "decide" and rng.random() < 0.5:
            self.late.append((producer, frame))
        if rng.random() < 0.1 and not self.calm:
            return
        self._take(producer, frame)

    def _take(self, producer: Producer, frame: tuple[Any, ...]) -> None:
        """Let the broker take a frame, whose answer may be lost."""
        answer = self.broker.take(frame)
        if self.random.random() < 0.9 or self.calm:
            producer.incoming.append(answer)

    def _review(self) -> None:
        """Ask the current producer for the outcome of the oldest half message."""
        live = [p for p in self.producers if not p.dead and p.epoch == self.broker.state.epoch]
        if live and self.broker.state.halves:
            oldest = self.broker.state.halves[0]
            live[-1].incoming.append(("review", oldest.batch_no, oldest.digest))


def run_histories(network: Network, n: int, **options: Any) -> dict[str, int]:
    """Run histories; return the outcome of each. A failed assertion of half_messages.py counts as an outcome too."""
    ends: dict[str, int] = {}
    for seed in range(n):
        world = World(seed, network, **options)
        try:
            world.run()
            end = world.verdict()
        except (AssertionError, IndexError):
            end = "broken"
        ends[end] = ends.get(end, 0) + 1
    return ends
