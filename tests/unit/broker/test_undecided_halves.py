"""Half messages that are sent before their decision: a consumer sees only what the queue has, whatever is decided."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from venus.broker.machine import half_messages
from venus.broker.machine.business import Business
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.queue import early_delivery
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.queue.early_delivery import EarlyBatches, EarlyDelivery
from venus.broker.store.rocks import Store
from venus.wire import broker_pb2


class NoStore:
    """A store without bodies, because every body is in the buffer."""

    def get(self, *_: object, **__: object) -> bytes:
        raise AssertionError("a body was looked for on the disk")


class ChangingBusiness:
    """A business that the commit thread changes between a reader's two reads of it."""

    def __init__(self, business: Business, act: Callable[[], None]) -> None:
        self._business, self._act = business, act

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._business, name)
        if name in ("undecided", "visible_offset"):
            act, self._act = self._act, lambda: None
            act()
        return value


@dataclass
class ConsumerModel:
    """A business of a broker, and the batches that one consumer has accepted."""

    rng: random.Random
    business: Business = field(default_factory=lambda: Business(1, "main", ReviewSchedule(first_s=1)))
    buffer: BodyBuffer = field(default_factory=lambda: BodyBuffer(1 << 30))
    queue: list[tuple[int, int]] = field(default_factory=list)
    sent: EarlyDelivery = field(default_factory=lambda: EarlyDelivery(0))
    believed: list[tuple[int, int]] = field(default_factory=list)
    undecided: list[tuple[int, int]] = field(default_factory=list)
    before: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    index: int = 0
    went_ahead: int = 0
    withdrawals: int = 0

    def persist(self) -> None:
        state, self.index = self.business.committed, self.index + 1
        number, sequence = state.end_batch + 1, state.end_sequence + 1
        digest, count = self.rng.getrandbits(60), self.rng.choice([0, 1, 5])
        if self.rng.random() < 0.5:  # after a rollback the same batch may be sent again
            digest, count = self.before.get((number, sequence), (digest, count))
        self.before[number, sequence] = digest, count
        found = half_messages.HalfMessage(
            batch_no=number,
            digest=digest,
            first_sequence=sequence,
            count=count,
            nbytes=self.rng.choice([1000, 400_000]),
            index=self.index,
        )
        self.buffer.save((1, found.index), b"%d" % found.digest)
        self.business.committed = half_messages.add_half(state, found)

    def commit(self) -> None:
        state = self.business.committed
        if state.halves:
            self.business.committed, placed = half_messages.commit(state, self.rng.choice(state.halves).batch_no)
            self.queue += [(offset, found.digest) for offset, found in placed]

    def commit_meanwhile(self) -> None:
        if self.rng.random() < 0.1:
            self.commit()
            self.business.visible_offset = self.business.committed.next_offset
            self.business.undecided = early_delivery.early_batches(self.business)

    def roll_back(self) -> None:
        state = self.business.committed
        if state.halves:
            self.business.committed, _ = half_messages.roll_back(state, self.rng.choice(state.halves).batch_no)

    def publish(self) -> None:
        """Publish as the commit thread does after its fsync; a reader may run in between."""
        self.business.visible_offset = self.business.committed.next_offset
        if self.rng.random() < 0.5:
            self.deliver()
        self.business.undecided = early_delivery.early_batches(self.business)

    def deliver(self) -> None:
        decided = self.sent.position < self.business.visible_offset
        for word in self.deliver_queue() if decided else self.read_ahead():
            self.take(word)

    def deliver_queue(self) -> list[broker_pb2.Increment]:
        """Deliver as the consumer's stream does: several increments at once, without the bodies that it has already."""
        words: list[broker_pb2.Increment] = []
        at = next(n for n, (offset, _) in enumerate(self.queue) if offset == self.sent.position)
        there = EarlyBatches(self.sent.waiting)
        for n, (offset, digest) in enumerate(self.queue[at : at + self.rng.choice([1, 3])], start=at + 1):
            if offset >= self.business.visible_offset:
                break
            end = self.queue[n][0] if n < len(self.queue) else self.business.committed.next_offset
            body = b"" if there.has_next(offset, digest) else b"%d" % digest
            said = broker_pb2.Increment(base_offset=offset, count=end - offset, digest=digest, body=body)
            for word in self.sent.decision_messages(said):
                self.sent.record_sent(word)
                words.append(word)
        return words

    def read_ahead(self) -> list[broker_pb2.Increment]:
        store = cast("Store", NoStore())
        between = cast("Business", ChangingBusiness(self.business, self.commit_meanwhile))
        words = early_delivery.read_early(store, self.buffer, between, self.sent, self.rng.choice([1, 1 << 20]))
        for word in words:
            self.sent.record_sent(word)
        return words

    def take(self, word: Any) -> None:
        match word.state:
            case broker_pb2.AHEAD:
                assert word.body == b"%d" % word.digest
                self.undecided.append((word.base_offset, word.digest))
                self.went_ahead += 1
            case broker_pb2.WITHDRAWN:
                self.undecided.clear()
                self.withdrawals += 1
            case broker_pb2.DECIDED:
                assert self.undecided.pop(0) == (word.base_offset, word.digest)
                self.believed.append((word.base_offset, word.digest))
            case _:
                assert not self.undecided, "a commit that was not sent ahead, with undecided words before it"
                assert word.body == b"%d" % word.digest, "it came without its rows, which were never here"
                self.believed.append((word.base_offset, word.digest))


def live_world(seed: int, steps: int = 120) -> ConsumerModel:
    world = ConsumerModel(random.Random(seed))
    acts = [world.persist] * 5 + [world.commit] + [world.roll_back] + [world.deliver] * 4
    for _ in range(steps):
        act = world.rng.choice(acts)
        act()
        if act != world.deliver:
            world.publish()
    for _ in range(10 * steps):
        world.deliver()
    return world


@pytest.mark.parametrize("seeds", range(10))
def test_a_consumer_accepts_only_what_the_queue_has(seeds: int) -> None:
    went_ahead = withdrawals = 0
    for seed in range(40 * seeds, 40 * seeds + 40):
        world = live_world(seed)
        assert world.believed == world.queue
        assert world.undecided == [(o, h.digest) for o, h in world.business.undecided]
        went_ahead, withdrawals = went_ahead + world.went_ahead, withdrawals + world.withdrawals
    assert went_ahead > 400
    assert withdrawals > 8


def test_a_small_cut_waits_for_its_decision() -> None:
    world = ConsumerModel(random.Random(0))
    world.rng.choice = lambda options: options[0]  # type: ignore[assignment,method-assign]
    for _ in range(5):
        world.persist()
        world.publish()
    assert world.business.undecided == ()
