"""M4: how even 64 producers of 1,000 rows of 100 bytes end up on the brokers (Minos figure 7).

Eight real brokers form one cluster with etcd. The producers connect in parallel, each to any broker first. The records
in etcd and the brokers show which broker leads a business and which data it has. Then a broker is killed with kill -9
while producers write, comes back, and `venus cluster balance` runs. At the end every batch of each business is read
from its leader.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.figures.figure import Figure, FigureResult, at_most
from bench.venus_cluster import wait_for
from tests.support.brokers.broker_clusters import BrokerCluster, bodies
from tests.support.brokers.etcd import running_etcd
from tests.support.brokers.servers import business_status, commit, take
from tests.support.engines.batches import half
from venus.coordination.etcd import EtcdCoordinator
from venus.errors import VenusError
from venus.model import Verdict
from venus.network.scheduling import rank_brokers
from venus.replication.records import Leadership
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

NAMES = "abcdefgh"
BUSINESSES = 64
ROWS = 1000
PRODUCERS = 8
LEASE_S = 6.0  # nine processes share the cores of one machine
EVEN, AFTER_DEATH = 1.3, 1.5
PAPER = "Kafka: 0 to 6,352 rows a broker, 882 lost; Minos: even, 0 lost"


class BusinessSet:
    """The businesses of a measured cluster, one per producer."""

    def __init__(self, cluster: BrokerCluster, count: int) -> None:
        self.cluster = cluster
        self.names = [f"x{n:02}" for n in range(count)]
        self._batches = 0

    def records(self) -> list[Leadership]:
        """Read the leadership records of all businesses from etcd."""
        with contextlib.closing(EtcdCoordinator(self.cluster.etcd.addresses, self.cluster.name)) as coordinator:
            return list(coordinator.leaderships())

    def write(self, during: Callable[[], None] = lambda: None) -> None:
        """Commit a batch in each business, several at a time, while `during` runs."""
        self._batches += 1
        first = self._batches
        addresses = [broker.address for broker in self.cluster.brokers.values()]

        def write_one(business: str) -> None:
            shuffled = random.Random(f"{business}/{first}").sample(addresses, len(addresses))
            commit_batch(self.cluster.reach(shuffled), business, first)

        with ThreadPoolExecutor(PRODUCERS) as pool:
            started = [pool.submit(write_one, business) for business in self.names]
            during()
            for each in started:
                each.result()

    def imbalance(self) -> tuple[float, float]:
        """Return the ratio max/mean over the brokers, of the businesses led and of the bytes in their logs."""
        led, nbytes = Counter[str](), Counter[str]()
        for known in self.records():
            if known.leader is None:
                continue
            broker = known.leader.broker
            led[broker] += 1
            nbytes[broker] += business_status(self.cluster.brokers[broker].address, known.business).log_bytes
        return max_to_mean(led), max_to_mean(nbytes)

    def wrong_rows(self) -> tuple[int, int]:
        """Count rows at the leaders; return how many are missing, and how many are duplicates or were never sent."""
        wanted, missing, extra = Counter(bodies(self._batches, ROWS)), 0, 0
        leaders = {known.business: known.leader for known in self.records()}
        for business in self.names:
            leader = leaders.get(business)
            assert leader is not None, f"{business} has no leader"
            address = self.cluster.brokers[leader.broker].address
            end = business_status(address, business).next_offset
            with Subscriber(address, business, "look", credit_bytes=8 << 20, transient=True) as subscriber:
                subscriber.open(0, 0)
                found = Counter(increment.body for increment in take(subscriber, end))
            missing += (wanted - found).total() * ROWS
            extra += (found - wanted).total() * ROWS
        return missing, extra

    def wait_until_led(self, dead: str) -> None:
        """Wait until no business is led by a dead broker."""
        wait_for(lambda: all(known.leader and known.leader.broker != dead for known in self.records()), every_s=0.2)

    def wait_in_sync(self) -> None:
        """Wait until every replica is in sync."""

        def has_all_in_sync() -> bool:
            return all({one.broker for one in known.in_sync} == set(known.replicas) for known in self.records())

        wait_for(has_all_in_sync, every_s=0.5)


def commit_batch(reach: str, business: str, number: int) -> None:
    """Commit a batch at the broker that leads the business; repeat this until it succeeds."""

    def is_committed() -> bool:
        with contextlib.suppress(VenusError), Producer(reach, business, "bench", window_bytes_max=8 << 20) as producer:
            ack = producer.connect(0, number - 1)
            if ack.last_batch < number and ack.undecided:
                producer.decide(number, ack.undecided[0].digest, Verdict.COMMIT)
                producer.wait_until_decided(number)
            elif ack.last_batch < number:
                commit(producer, [half(number, rows=ROWS)])
            return True
        return False

    wait_for(is_committed)


def hash_alone(names: Sequence[str]) -> float:
    """Return max/mean of the businesses by broker that rendezvous hashing alone would give."""
    return max_to_mean(Counter(rank_brokers(name, NAMES)[0] for name in names))


def max_to_mean(by_broker: Counter[str]) -> float:
    """Return the ratio of the largest value to the mean of all brokers; a broker without a value counts as 0."""
    return max(by_broker.values()) * len(NAMES) / by_broker.total()


def measure(cluster: BrokerCluster, count: int) -> list[FigureResult]:
    """Create businesses, kill and restart a broker, balance the cluster; return the result lines."""
    businesses = BusinessSet(cluster, count)
    wait_for(
        lambda: all(len(_broker_names(one.address)) == len(NAMES) for one in cluster.brokers.values()), every_s=0.2
    )
    businesses.write()
    wait_for(lambda: not any(known.successor for known in businesses.records()), every_s=0.2)
    what = f"{count} producers of {ROWS:,} rows at {len(NAMES)} real brokers"
    peer = f"hashing alone: {hash_alone(businesses.names):.2f}"
    led, nbytes = businesses.imbalance()
    found = [
        at_most(f"{what}, businesses led, max/mean", led, EVEN, "", paper=PAPER, peer=peer),
        at_most("bytes written, max/mean", nbytes, EVEN, ""),
    ]
    businesses.wait_in_sync()
    businesses.write(during=cluster.brokers["c"].kill)
    businesses.wait_until_led("c")
    cluster.start("c")
    businesses.wait_in_sync()
    led, nbytes = businesses.imbalance()
    found += [
        at_most("one killed with kill -9 among writers, and back: led, max/mean", led, AFTER_DEATH, ""),
        at_most("the same: bytes led, max/mean", nbytes, AFTER_DEATH, ""),
    ]
    moves = json.loads(cluster.venus("cluster", "balance", "--json", timeout_s=600)[0])["moves"]
    led, nbytes = businesses.imbalance()
    slowest = max((move["seconds"] for move in moves), default=0.0)
    missing, extra = businesses.wrong_rows()
    return [
        *found,
        at_most(f"balanced with {len(moves)} hand-overs: led, max/mean", led, EVEN, ""),
        at_most("balanced: bytes led, max/mean", nbytes, EVEN, ""),
        at_most("the slowest of these hand-overs", slowest, 1.0, "s"),
        at_most("lost in all of this", missing, 0, "rows"),
        at_most("doubled in all of this", extra, 0, "rows"),
    ]


def _broker_names(address: str) -> list[str]:
    """Return the names of the brokers that a broker knows."""
    with AdminClient(address) as admin:
        return [one.broker for one in admin.status().brokers]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure M4 and return its lines."""
    folder = Path(tempfile.mkdtemp(prefix="venus-bench-"))
    try:
        with (
            running_etcd() as etcd,
            BrokerCluster(folder, etcd, NAMES, broker={"http": ""}, lease_s=LEASE_S) as cluster,
        ):
            return measure(cluster, 16 if quick else BUSINESSES)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


FIGURE = Figure(id="M4", title="balance of the brokers", measure=run)
