"""T7: how often a reader that was away has to take the full data again (Tensor's formula 1: rate times mean absence).

A simulated week with the functions that the broker trims by and its default settings, beside the formula; then
disconnects of an access set and of a consumer at real brokers which keep next to nothing for strangers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.cables import Cables, lay_cables
from bench.fan_out import Messages
from bench.figures.figure import Figure, FigureResult, at_most
from bench.network.week import Followers, Formula, KnownReaders, Rule, week
from bench.sets import Sets, sets
from bench.venus_transmission import BUSINESS
from tests.support.brokers.networks import has, mirror_of
from tests.support.brokers.servers import business_status, take
from tests.support.waiting import eventually
from venus.config import BrokerSettings, ClusterSettings
from venus.errors import OffsetTrimmed
from venus.rpc.subscriber import Subscriber

GOAL_PERCENT = 1.0
DISCONNECTS = 20
RETAIN_BYTES = 1 << 20
AWAY_BATCHES = 40  # of 100 KB: four times what is kept for strangers
AWAY_MAX_S = 3.0
MIB = 1 << 20


def rules() -> dict[str, Callable[[], Rule]]:
    """Return the product's, with its defaults."""
    broker, cluster = BrokerSettings(), ClusterSettings()
    known = partial(KnownReaders, retain_bytes=broker.retain_bytes, ttl_s=broker.consumer_ttl_s)
    known_alone = partial(KnownReaders, retain_bytes=10_000_000, ttl_s=broker.consumer_ttl_s)
    followers = partial(Followers, retain_bytes=broker.retain_bytes, bytes_max=cluster.follower_backlog_bytes)
    return {
        "consumers and sets below": known,
        "the same, 10 MB retained": known_alone,
        f"replicas, {cluster.follower_backlog_bytes // MIB:,} MiB kept at most": followers,
    }


def simulate_weeks(quick: bool) -> list[FigureResult]:
    """Let weeks pass."""
    seeds = range(1 if quick else 8)
    findings: list[FigureResult] = []
    formula = [week(seed, partial(Formula, tau_s=3600.0)) for seed in seeds]
    percent = 100 * sum(each.resyncs for each in formula) / sum(each.returns for each in formula)
    kept = sum(each.kept_mean for each in formula) / len(formula) / MIB
    for name, make in rules().items():
        weeks = [week(seed, make) for seed in seeds]
        returns = sum(each.returns for each in weeks)
        mean, most = sum(e.kept_mean for e in weeks) / len(weeks) / MIB, max(e.kept_max for e in weeks) / MIB
        kept_mib = f"mean {mean:,.0f} MiB, {most:,.0f} at most"
        what = f"full data taken again of {returns:,} returns, simulated: {name} ({kept_mib})"
        found = 100 * sum(each.resyncs for each in weeks) / returns
        peer = "" if findings else f"the formula, halved each hour: {percent:.1f} %, mean {kept:,.0f} MiB"
        findings.append(at_most(what, found, GOAL_PERCENT, "%", peer=peer))
    return findings


class SimulatedReader:
    """A consumer that comes and goes."""

    def __init__(self, address: str, position: int) -> None:
        self._address, self.position = address, position
        self.trimmed = 0
        self._stream: Subscriber | None = None

    def come(self, end: int) -> None:
        """Continue at the last position, and take everything."""
        self._stream = Subscriber(self._address, BUSINESS, "reader", credit_bytes=4 << 20)
        try:
            self._stream.open(self.position, 0)
        except OffsetTrimmed:
            self.trimmed += 1
            self._stream.close()
            self._stream = Subscriber(self._address, BUSINESS, "reader", credit_bytes=4 << 20)
            self._stream.open(end, 0)
        self.follow(end)

    def follow(self, end: int) -> None:
        """Take what is there."""
        assert self._stream is not None
        take(self._stream, end)
        self.position = end
        self._stream.acknowledge(end)

    def leave(self) -> None:
        """Close the stream."""
        assert self._stream is not None
        self._stream.close()


def is_gone(address: str, offset: int) -> bool:
    """Whether a stranger who asks for this offset is refused."""
    with Subscriber(address, BUSINESS, "stranger", credit_bytes=1 << 20, transient=True) as stranger:
        try:
            stranger.open(offset, 0)
        except OffsetTrimmed:
            return True
    return False


def disconnect(started: Sets, cables: Cables, sender: Messages, reader: SimulatedReader, away_s: float) -> bool:
    """Let both be away while much is written; return whether a stranger would have found it trimmed afterwards."""
    home, left_at = started.at("home"), reader.position
    reader.leave()
    cables.out(["below"])
    sender.many(AWAY_BATCHES)
    time.sleep(away_s)
    cables.back(["below"])
    reader.come(sender.end)
    has(started.at("below"), sender.end, BUSINESS)
    eventually(lambda: business_status(home, BUSINESS).log_start > left_at, timeout_s=20.0)
    return is_gone(home, left_at)


def live(times: int) -> list[FigureResult]:
    """Disconnect an access set and a consumer so many times."""
    chance = random.Random(7)
    with sets() as started:
        home = started.start("home", retain_bytes=RETAIN_BYTES)
        with lay_cables(below=home) as cables:
            started.start("below", [cables.at["below"]])
            sender = Messages(home, rows=1000)
            sender.one()
            has(started.at("below"), sender.end, BUSINESS)
            reader = SimulatedReader(home, 0)
            reader.come(sender.end)
            lengths = [min(AWAY_MAX_S, chance.lognormvariate(0.0, 0.8)) for _ in range(times)]
            gone = sum(disconnect(started, cables, sender, reader, length) for length in lengths)
            mirror = mirror_of(started.at("below"), BUSINESS)
            fills = mirror.fills if mirror is not None else times
            reader.leave()
            sender.close()
    where = (
        f"{times} disconnects with {AWAY_BATCHES * 100 // 1000} MB written in each, {RETAIN_BYTES // MIB} MiB retained"
    )
    again = fills - 1 + reader.trimmed
    what = f"{where}: full data taken again by an access set and a consumer (a stranger would have: {gone})"
    return [at_most(what, again, 0, "")]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure."""
    return [*simulate_weeks(quick), *live(6 if quick else DISCONNECTS)]


FIGURE = Figure(id="T7", title="readers that were away", measure=run)
