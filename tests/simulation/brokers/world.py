"""Whole brokers, a source, producers and consumers; one history from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.simulation.brokers import faults
from tests.simulation.brokers.consumer import Consumer
from tests.simulation.brokers.host import BrokerHost
from tests.simulation.brokers.judge import BrokerJudge
from tests.simulation.brokers.producer import Producer
from tests.simulation.brokers.source import Source
from tests.simulation.coordinator import describe
from tests.simulation.judge import Violation
from tests.simulation.world import CONVERGED_WITHIN_S, World
from venus.broker.replicas import installation
from venus.replication.records import Policy


class BrokerWorld(World):
    """Whole brokers under the policy `consistency`; only the log model tests losses under `availability`."""

    hosts: dict[str, BrokerHost]  # type: ignore[assignment]
    judge: BrokerJudge
    host_class = BrokerHost
    judge_class = BrokerJudge
    policies = (Policy.CONSISTENCY,)
    faults = faults.KINDS

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.damaged = ""  # the store in which a bit was flipped
        super().__init__(seed, say)
        random = self.loop.random
        self.flipping = random.choice((0.0, 0.0, 0.02))  # probability that a bit of a message flips
        self.producers_fail = random.choice((0.0, 0.3, 0.8))
        self.source = Source(random)
        self.producers: list[Producer] = []
        self.consumers = [
            Consumer(self, self.source, "groups", transient=False),
            Consumer(self, self.source, "readers", transient=True),
        ]
        self.loop.at(0.5, self._work)
        self.loop.at(0.3, self._ensure_producer)

    def script_of(self, seed: int) -> None:
        """Return None: these histories have no scripts."""

    @property
    def leading(self) -> BrokerHost:
        """Return the leading broker, which must exist."""
        found = self.leader
        assert isinstance(found, BrokerHost)
        return found

    def propose(self, host: Any) -> None:
        """Do nothing: the producers write."""

    def transmit(self, body: bytes) -> bytes:
        """Return a half message as it arrives, perhaps with a flipped bit."""
        random = self.loop.random
        if random.random() >= self.flipping:
            return body
        flipped = bytearray(body)
        flipped[random.randrange(len(body))] ^= 1 << random.randrange(8)
        return bytes(flipped)

    def _work(self) -> None:
        """Commit a transaction of the application."""
        if self.rate:
            self.source.work()
        self.loop.after(0.6 * self.loop.random.random() / max(self.rate, 0.5), self._work)

    def _ensure_producer(self) -> None:
        """Start an upper adapter if none runs, and sometimes a second one."""
        random = self.loop.random
        alive = [producer for producer in self.producers if producer.alive]
        if not alive or (len(alive) < 3 and self.loop.now < self.cruel_until and random.random() < 0.02):
            self.loop.counts["two producers at a time"] += bool(alive)
            self.producers = [*alive, Producer(self, self.source)]
        self.loop.after(0.5 * random.random(), self._ensure_producer)

    def run(self) -> None:
        with self._virtual_time():
            super().run()

    @contextmanager
    def _virtual_time(self) -> Iterator[None]:
        """Run the installer's sleeps in virtual time."""
        virtual = SimpleNamespace(monotonic=lambda: self.loop.now, sleep=self._sleep)
        with patch.object(installation, "time", virtual):
            yield

    def _sleep(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now + seconds)

    def _wait_until_written(self) -> None:
        self.producers_fail, self.rate = 0.0, 1.0
        before = self.judge.decided_through
        if not self.loop.run_until(self.loop.now + CONVERGED_WITHIN_S, lambda: self.judge.decided_through > before):
            raise Violation("a write is acknowledged within 40 s", describe(self.coordinator.record))
