"""A home, tandem sets and access sets, a source and targets; the seed determines the history."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from unittest.mock import patch

from tests.simulation.brokers.memory_store import Families, MemoryDisk
from tests.simulation.brokers.producer import Producer
from tests.simulation.judge import Violation
from tests.simulation.loop import Loop
from tests.simulation.network import Network
from tests.simulation.tiers import faults
from tests.simulation.tiers.consumer import Consumer
from tests.simulation.tiers.host import TierHost
from tests.simulation.tiers.judge import TierJudge, Timeline
from tests.simulation.tiers.rows import random_where
from tests.simulation.tiers.source import ColumnedSource, TieredSource
from venus.broker.snapshot import reading

CONVERGED_WITHIN_S = 60.0
#: A chunk has one or two rows, so that a fill takes several steps.
CHUNK_BYTES = 60


class HomeView:
    """View of the world for producers, which know only the home set."""

    def __init__(self, world: TierWorld) -> None:
        self.loop, self.network, self.judge, self.hosts = world.loop, world.network, world.judge, {"home": world.home}
        self.producers_fail = world.producers_fail

    def transmit(self, body: bytes) -> bytes:
        """Return a half message as it arrives."""
        return body


class TierWorld:
    """A network with one or two levels of sets below the home."""

    slowest_s = 0.0

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.loop = Loop(seed, say)
        random = self.loop.random
        self.network = Network(self.loop)
        self.judge = TierJudge(self)
        self.rate = random.choice((0.5, 1.0, 3.0))
        self.producers_fail = random.choice((0.0, 0.3))
        #: Whether sets have predicates: three histories in seven, independent of all other choices.
        self.has_predicates, self.chooser = seed % 7 > 3, Random(f"predicates {seed}")
        self.loses_disks = seed % 10 == 8
        #: Whether there is a target of an older version, and sets are filled at the offset of those below: one history
        #: in seven.
        self.has_older = seed % 7 == 6
        self.quiet_until = 0.0  # time before which no application writes
        self.timeline = self.new_timeline()
        self.timelines = [self.timeline]
        self.backup: tuple[Families, TieredSource, Timeline] | None = None
        self.foreign: MemoryDisk | None = None  # the home's disk, while another network is at its address
        self.interruptions: list[int] = []  # chunks before each interruption of a fill; the last item is the next one
        self.is_healed = False
        self.put_back: Callable[[], None] = lambda: None
        self.producers: list[Producer] = []
        self.hosts: dict[str, TierHost] = {}
        self._add("home", "core", 0)
        self._build()
        self.home = self.hosts["home"]
        self.consumers = [
            Consumer(self, "one", ("a", "b"), frozenset({1, 2})),
            Consumer(self, "two", ("b", "a"), frozenset({1, 2})),
        ]
        if "c" in self.hosts:
            self.consumers.append(Consumer(self, "three", ("c",), frozenset({1})))
        if self.has_older:
            keeps_to = self.chooser.choice("ab")
            self.consumers.append(Consumer(self, "older", (keeps_to,), frozenset({1, 2}), is_older=True))

    def _build(self) -> None:
        """Make the sets, their labels and predicates, and the targets."""
        random = self.loop.random
        tandems = random.choice(((), ("t",), ("t", "u"), ("t", "u")))
        for name in tandems:
            self._add(name, "tandem", 1, "home")
        upper = tandems or ("home",)
        self._add("a", "access", len(tandems[:1]) + 1, *upper)
        self._add("b", "access", len(tandems[:1]) + 1, *reversed(upper))
        if random.random() < 0.5:
            self._add("c", "access", len(tandems[:1]) + 1, *upper)
            self.hosts["c"].labels = ("one",)
        for host in self.hosts.values() if self.has_predicates else ():
            if host.upstream and self.chooser.random() < 0.6:
                host.where = random_where(self.chooser)
        if "u" in self.hosts and self.chooser.random() < 0.5:
            self.hosts["u"].where = dict(self.hosts["t"].where)

    def _add(self, name: str, tier: str, level: int, *upstream: str) -> None:
        self.hosts[name] = TierHost(self, name, tier, level, upstream)

    # -- the source ------------------------------------------------------------------------------------------------

    @property
    def source(self) -> TieredSource:
        """Return the current source."""
        return self.timeline.source

    def new_timeline(self) -> Timeline:
        """Return the history of a source that has just begun."""
        kind = ColumnedSource if self.has_predicates else TieredSource
        return Timeline(kind(self.loop.random))

    def begin_timeline(self, timeline: Timeline) -> None:
        """Begin another history."""
        self.end_producers()
        self.timeline = timeline
        self.timelines.append(timeline)
        self.judge.on_fork(timeline)
        for consumer in self.consumers:
            consumer.on_fork(timeline)

    def end_producers(self) -> None:
        """Kill every upper adapter process."""
        for producer in self.producers:
            producer.end()

    def _work(self) -> None:
        if self.rate and self.loop.now >= self.quiet_until:
            self.source.work()
        self.loop.after(0.6 * self.loop.random.random() / max(self.rate, 0.5), self._work)

    def _ensure_producer(self) -> None:
        alive = [producer for producer in self.producers if producer.alive]
        self.producers = alive or [Producer(HomeView(self), self.source)]  # type: ignore[arg-type]
        self.loop.after(0.5 * self.loop.random.random(), self._ensure_producer)

    # -- a history -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the history: faults, their end, a wait until all sets have everything, and a check of the result."""
        with patch.object(reading, "_CHUNK_BYTES", CHUNK_BYTES), patch.object(reading, "_CHUNK_BYTES_MIN", 1):
            self._run()

    def _run(self) -> None:
        for host in self.hosts.values():
            host.start()
        self.loop.after(0.1, self._work)
        self.loop.after(0.2, self._ensure_producer)
        self.loop.run_until(3.0)
        end = 3.0 + self.loop.random.choice((10.0, 20.0))
        faults.plan(self, end)
        self.loop.run_until(end)
        self.loop.say("everything is whole again")
        faults.heal(self)
        self.producers_fail = 0.0
        self.end_producers()
        self.loop.run_until(self.loop.now + 2.0)
        self.rate = 3.0  # a set ahead of the home notices this once the home reaches its offset
        self.loop.run_until(self.loop.now + CONVERGED_WITHIN_S, self.judge.has_home_overtaken)
        self.rate = 0.0
        if not self.loop.run_until(self.loop.now + CONVERGED_WITHIN_S, self.judge.has_converged):
            raise Violation("all sets are complete within 60 s", self._standing())
        if not self.loop.run_until(self.loop.now + CONVERGED_WITHIN_S, self.judge.have_consumers_all_rows):
            raise Violation("all targets are complete within 60 s", self._standing())
        if not self.loop.run_until(self.loop.now + CONVERGED_WITHIN_S, self.judge.are_at_nearest):
            raise Violation("every set returns to the nearest upstream set", self._standing())
        self.judge.check_final_state()

    def _standing(self) -> str:
        """Return the state of every set and target, for the text of a violation."""
        found = []
        for host in self.hosts.values():
            business = host.business
            end = business.committed.next_offset if business is not None else None
            statuses = [pull.status for pull in host.network._pulls.all]
            found.append(f"{host.name} {end} {[(t.state.value, t.reason) for t in statuses]}")
            found += [f"{pull.in_use} {pull.absence()}" for pull in host.network._pulls.all]
        found += [f"{consumer.group} {consumer.offset}" for consumer in self.consumers]
        return "; ".join(found)
