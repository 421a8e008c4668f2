"""T7: how often a reader that was away has to take the full data again (Tensor's formula 1: rate times mean absence).

The first part simulates a week with the functions by which the broker trims, and its default settings. The second
disconnects an access set, a consumer and a reader without a group from real brokers, with `retain = "bytes"` and
"measured". A further consumer knows only an address of the home; the directory sends it to the nearer access set.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.cables import Cables, lay_cables
from bench.fan_out import Messages
from bench.figures.figure import Figure, FigureResult, at_least, at_most
from bench.network.week import FixedRetention, Followers, KnownReaders, Outcome, Rule, UnknownReaders, simulate_week
from bench.sets import Sets, run_sets
from bench.venus_cluster import wait_for
from bench.venus_transmission import BUSINESS
from tests.support.brokers.networks import has, mirror_of
from tests.support.brokers.servers import business_status, take
from venus.config import BrokerSettings, ClusterSettings
from venus.errors import OffsetTrimmed
from venus.flow.retention import MEASURE_EVERY_S
from venus.rpc.address import CONSUMER, NONE, BrokerAddress, DirectoryLookup, find_by_directory
from venus.rpc.directory import ask_where
from venus.rpc.subscriber import Subscriber

GOAL_PERCENT = 1.0
#: Goal for readers without a group: the formula cannot know how long the next absence is.
STRANGERS_PERCENT = 5.0
DISCONNECTS = 20
RETAIN_BYTES = 1 << 20
PRESENT_S, AWAY_MAX_S = 3.0, 3.0
#: Site of the access set, and of the consumer that the directory sends there; the set may lag after a long outage.
NEAR = "lyon"
GUIDED_PERCENT = 90.0
#: Wait until the broker has trimmed its queue, as it does each second.
TRIM_S = 2.5
MIB = 1 << 20


def rules() -> dict[str, Callable[[], Rule]]:
    """Return for each of the product's rules of retention a function that makes it with its defaults."""
    broker, cluster = BrokerSettings(), ClusterSettings()
    known = partial(KnownReaders, retain_bytes=broker.retain_bytes, ttl_s=broker.consumer_ttl_s)
    known_alone = partial(KnownReaders, retain_bytes=10_000_000, ttl_s=broker.consumer_ttl_s)
    followers = partial(Followers, retain_bytes=broker.retain_bytes, bytes_max=cluster.follower_backlog_bytes)
    return {
        "consumers and sets below": known,
        "the same, 10 MB retained": known_alone,
        f"replicas, {cluster.follower_backlog_bytes // MIB:,} MiB kept at most": followers,
    }


def simulate_strangers(seeds: Sequence[int]) -> FigureResult:
    """Simulate weeks of readers without a consumer group, with both settings of `retain`; return the result line."""
    most = BrokerSettings().retain_bytes_max
    measured = [simulate_week(seed, partial(UnknownReaders, bytes_min=10_000_000, bytes_max=most)) for seed in seeds]
    fixed = [simulate_week(seed, partial(FixedRetention, retain_bytes=10_000_000)) for seed in seeds]

    def percent(weeks: Sequence[Outcome]) -> float:
        """Return in what percentage of the returns a reader had to take the full data again."""
        return 100 * sum(each.resyncs for each in weeks) / sum(each.returns for each in weeks)

    kept = sum(each.kept_mean for each in measured) / len(measured) / MIB
    what = f"the same, readers without a group, retain = measured, 10 MB at least (mean {kept:,.0f} MiB)"
    peer = f"retain = bytes, 10 MB: {percent(fixed):.1f} %"
    return at_most(what, percent(measured), STRANGERS_PERCENT, "%", peer=peer)


def simulate_weeks(quick: bool) -> list[FigureResult]:
    """Simulate weeks of readers that have a consumer group; return the result lines."""
    seeds = range(1 if quick else 8)
    findings: list[FigureResult] = []
    for name, make in rules().items():
        weeks = [simulate_week(seed, make) for seed in seeds]
        returns = sum(each.returns for each in weeks)
        mean, most = sum(e.kept_mean for e in weeks) / len(weeks) / MIB, max(e.kept_max for e in weeks) / MIB
        kept_mib = f"mean {mean:,.0f} MiB, {most:,.0f} at most"
        what = f"full data taken again of {returns:,} returns, simulated: {name} ({kept_mib})"
        found = 100 * sum(each.resyncs for each in weeks) / returns
        findings.append(at_most(what, found, GOAL_PERCENT, "%"))
    return [*findings, simulate_strangers(seeds)]


class SimulatedReader:
    """A consumer that comes and goes, with a group unless `transient`. `reached` counts its connections by broker."""

    def __init__(self, address: str, position: int, name: str, *, transient: bool = False) -> None:
        self._address, self.position, self._name, self._transient = address, position, name, transient
        self.trimmed = 0
        self.reached = Counter[str]()
        self._stream: Subscriber | None = None

    def catch_up(self, end: int) -> None:
        """Connect and read everything from the last position to `end`; if that was trimmed, continue at `end`."""
        self._stream = self._connect()
        self.reached[self._stream.address] += 1
        try:
            self._stream.open(self.position, 0)
        except OffsetTrimmed:
            self.trimmed += 1
            self._stream.close()
            self._stream = self._connect()
            self._stream.open(end, 0)
            self.position = end
        else:
            self.follow(end)

    def _connect(self) -> Subscriber:
        """Make a subscriber for this reader."""
        return Subscriber(self._address, BUSINESS, self._name, credit_bytes=4 << 20, transient=self._transient)

    def follow(self, end: int) -> None:
        """Read everything below an offset from the open stream."""
        assert self._stream is not None
        take(self._stream, end)
        self.position = end
        self._stream.acknowledge(end)

    def leave(self) -> None:
        """Close the stream."""
        assert self._stream is not None
        self._stream.close()


def write(sender: Messages, seconds: float) -> None:
    """Commit a megabyte a second for a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sender.commit_many(1)
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Readers:
    """Three readers: a consumer of the home, one that uses the directory, and one without a group."""

    known: SimulatedReader
    guided: SimulatedReader
    stranger: SimulatedReader

    @classmethod
    def of(cls, home: str, position: int) -> Readers:
        """Return three readers at a position: two read at the home, the directory sends one to a set at Lyon."""
        guide = find_by_directory([home], CONSUMER, BUSINESS, NEAR, NONE)
        return cls(
            known=SimulatedReader(home, position, "reader"),
            guided=SimulatedReader(guide, position, "guided"),
            stranger=SimulatedReader(home, position, "stranger", transient=True),
        )

    @property
    def all(self) -> tuple[SimulatedReader, ...]:
        """All three readers."""
        return self.known, self.guided, self.stranger


def disconnect(started: Sets, cables: Cables, sender: Messages, readers: Readers, away_s: float) -> None:
    """Let all readers read, stay away and return; the one without a group returns last, after the queue was trimmed."""
    write(sender, PRESENT_S)
    for one in readers.all:
        one.follow(sender.end)
        one.leave()
    cables.disconnect_all(["below"])
    write(sender, away_s)
    cables.reconnect_all(["below"])
    readers.known.catch_up(sender.end)
    has(started.at("below"), sender.end, BUSINESS)
    readers.guided.catch_up(sender.end)
    write(sender, TRIM_S)
    readers.known.follow(sender.end)
    readers.stranger.catch_up(sender.end)


def measure_disconnects(times: int, retain: str) -> list[FigureResult]:
    """Repeatedly disconnect an access set, a consumer and a reader without a group; return the lines."""
    chance = random.Random(7)
    with run_sets() as started:
        home = started.start("home", retain=retain, retain_bytes=RETAIN_BYTES, retain_bytes_min=RETAIN_BYTES)
        with lay_cables(below=home) as cables:
            started.start("below", [cables.at["below"]], site=NEAR)
            sender = Messages(home, rows=1000)
            sender.commit_one()
            has(started.at("below"), sender.end, BUSINESS)
            wait_for(lambda: nearest_set(home) == "below", every_s=0.2)
            readers = Readers.of(home, sender.end)  # the access set has nothing older in its queue
            for one in readers.all:
                one.catch_up(sender.end)
            warm_at, left = time.monotonic() + 2 * MEASURE_EVERY_S, times
            while left:
                disconnect(started, cables, sender, readers, min(AWAY_MAX_S, chance.lognormvariate(0.0, 0.8)))
                if time.monotonic() < warm_at:
                    readers.stranger.trimmed = 0
                else:
                    left -= 1
            mirror = mirror_of(started.at("below"), BUSINESS)
            fills = mirror.fills if mirror is not None else times
            kept = business_status(home, BUSINESS).retention.bytes or RETAIN_BYTES
            found, visits = readers.guided.reached[started.at("below")], readers.guided.reached.total()
            for one in readers.all:
                one.leave()
            sender.close()
    where = f"{times} disconnects, retain = {retain}, {RETAIN_BYTES // MIB} MiB at least: full data taken again"
    lost = times if retain == "bytes" else times // 2
    what = f"{where} by a reader without a group ({kept / MIB:.1f} MiB kept at the end)"
    guided = f"{where} by a consumer that knows the home and that the directory guides to the access set"
    return [
        at_most(f"{where} by an access set and a consumer", fills - 1 + readers.known.trimmed, 0, ""),
        at_most(guided, readers.guided.trimmed, 0, ""),
        at_least("the same: connections at the access set", 100 * found / visits, GUIDED_PERCENT, "%"),
        at_most(what, readers.stranger.trimmed, lost, ""),
    ]


def nearest_set(address: str) -> str:
    """Return the set that the directory recommends to a consumer at Lyon; empty if it recommends none."""
    lookup = DirectoryLookup((), CONSUMER, BUSINESS, NEAR)
    return next((one.set for one in ask_where(BrokerAddress(address), lookup).sets), "")


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure T7 and return its lines."""
    times = 6 if quick else DISCONNECTS
    return [*simulate_weeks(quick), *measure_disconnects(times, "bytes"), *measure_disconnects(times, "measured")]


FIGURE = Figure(id="T7", title="readers that were away", measure=run)
