"""Faults of a cluster of brokers: each causes damage while writers work, and leaves a state that can heal.

A fault takes all random choices from the run's own generator, so that a run can be repeated. `FaultDurations.long` is
the longest duration of a partition or an outage: short in the usual suite, beyond every time limit in the long one.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.databases.workload import change_item, writers
from tests.support.faults.fault_cluster import LEASE_S, NAMES, FaultCluster
from tests.support.faults.links import CLIENT, Link, PoorLine

logger = logging.getLogger(__name__)
#: Message of a broker that found its store damaged, which must name the remedy.
DAMAGED = ("damaged", "corrupt", "Corrupt", "broken", "digest", "checksum", "lost", "missing")


@dataclass(frozen=True, slots=True)
class FaultDurations:
    """Durations of faults in seconds."""

    long_s: float
    etcd_away_s: float


Fault = Callable[[FaultCluster, random.Random, FaultDurations], None]
QUICK = FaultDurations(long_s=3.0, etcd_away_s=5.0)
SLOW = FaultDurations(long_s=14.0, etcd_away_s=60.0)
WRITERS = 3


def run_fault(cluster: FaultCluster, fault: Fault, number: int, wait: FaultDurations) -> None:
    """Cause one fault while writers work, let everything heal, and compare; `number` seeds its random choices."""
    rng, began = random.Random(number), time.monotonic()
    with writers(cluster.source, change_item, count=WRITERS, seed=number) as counts:
        cluster.until(lambda: counts.ended["commit"] or counts.failed, "the writers to begin")
        time.sleep(rng.uniform(0.1, 0.6))
        fault(cluster, rng, wait)
        time.sleep(rng.uniform(0.1, 0.4))
    done = time.monotonic()
    assert not counts.failed, counts.failed
    assert counts.ended["commit"]
    cluster.settle()
    healed = time.monotonic()
    cluster.check()
    logger.warning(
        "run %d, %s: %d transactions; %.1f s, healed %.1f s later, compared in %.1f s",
        number,
        fault.__name__,
        counts.ended["commit"],
        done - began,
        healed - done,
        time.monotonic() - healed,
    )


def _followers(cluster: FaultCluster) -> list[str]:
    leader = cluster.leader()
    return [name for name in NAMES if name != leader]


def _restart(cluster: FaultCluster, rng: random.Random, *names: str) -> None:
    """Restart killed brokers after a while, in random order."""
    time.sleep(rng.uniform(0, LEASE_S + 1.0))
    for name in rng.sample(names, len(names)):
        cluster.start(name)


# -- processes -----------------------------------------------------------------------------------------------------


def kill_leader(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Kill the leader with SIGKILL."""
    name = cluster.leader()
    cluster.brokers[name].kill()
    _restart(cluster, rng, name)


def kill_follower(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Kill a follower."""
    name = rng.choice(_followers(cluster))
    cluster.brokers[name].kill()
    _restart(cluster, rng, name)


def kill_two(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Kill two brokers, one soon after the other."""
    names = rng.sample(NAMES, 2)
    for name in names:
        cluster.brokers[name].kill()
        time.sleep(rng.uniform(0, 1.0))
    _restart(cluster, rng, *names)


def kill_all(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Kill every broker at once."""
    for name in rng.sample(NAMES, len(NAMES)):
        cluster.brokers[name].send(signal.SIGKILL)
    for broker in cluster.brokers.values():
        broker.kill()
    _restart(cluster, rng, *NAMES)


def pause_leader(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Suspend the leader's process until long after its lease, then let it continue."""
    broker = cluster.brokers[cluster.leader()]
    broker.send(signal.SIGSTOP)
    time.sleep(LEASE_S + rng.uniform(0.5, 3.0))
    broker.send(signal.SIGCONT)


def restart_one_by_one(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Stop and start one broker after the other, each once the previous one is in sync."""
    for name in rng.sample(NAMES, len(NAMES)):
        assert cluster.brokers[name].stop() == 0, cluster.brokers[name].output()
        cluster.start(name)
        cluster.until(cluster.is_in_sync, f"{name} to be in sync again")


def restart_replica(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Stop and start a follower twice while the others work."""
    name = rng.choice(_followers(cluster))
    for _round in range(2):
        assert cluster.brokers[name].stop() == 0, cluster.brokers[name].output()
        time.sleep(rng.uniform(0, 1.0))
        cluster.start(name)


def jump_clock(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Let the clocks of some brokers jump by seconds or years; sometimes kill the leader at the same time."""
    for name in rng.sample(NAMES, rng.randint(1, 3)):
        cluster.clocks[name].jump(rng.choice((-1, 1)) * 10 ** rng.uniform(0, 8))
    time.sleep(1.0)
    if rng.random() < 0.5:
        name = cluster.leader()
        cluster.brokers[name].kill()
        cluster.start(name)
    for clock in cluster.clocks.values():
        clock.jump(0)


# -- the network ---------------------------------------------------------------------------------------------------


def _links_between(some: str, others: str) -> list[Link]:
    """Return the links between two groups of brokers, in both directions."""
    return [link for a in some for b in others if a != b for link in ((a, b), (b, a))]


def _cut(cluster: FaultCluster, rng: random.Random, wait: FaultDurations, links: list[Link]) -> None:
    """Cut these links for a random time, then heal them."""
    cluster.links.cut(links)
    time.sleep(rng.uniform(1.0, wait.long_s))
    cluster.links.heal(reset=rng.random() < 0.5)


def cut_off_broker(cluster: FaultCluster, rng: random.Random, wait: FaultDurations) -> None:
    """Cut one broker off from the other brokers; etcd and clients still reach every broker."""
    name = rng.choice(NAMES)
    _cut(cluster, rng, wait, _links_between(name, NAMES))


def cut_one_way(cluster: FaultCluster, rng: random.Random, wait: FaultDurations) -> None:
    """Let bytes pass between the leader and another broker in one direction only."""
    link = (cluster.leader(), rng.choice(_followers(cluster)))
    _cut(cluster, rng, wait, [link if rng.random() < 0.5 else (link[1], link[0])])


def cut_ring(cluster: FaultCluster, rng: random.Random, wait: FaultDurations) -> None:
    """Let the messages of each broker reach only one of the two others."""
    a, b, c = rng.sample(NAMES, 3)
    _cut(cluster, rng, wait, [(a, b), (b, c), (c, a)])


def disturb_lines(cluster: FaultCluster, rng: random.Random, wait: FaultDurations) -> None:
    """Let connections between brokers delay, lose and reset traffic until another broker leads.

    The leader is killed, and restarted only once another leads, so the others must have every acknowledged batch.
    """
    poor = partial(PoorLine, rng, delay_s=0.1, jitter_s=0.1, loss=0.05, resets=0.002)
    lines = {link: poor() for link in _links_between(NAMES, NAMES)}
    cluster.links.impair(lines)
    try:
        time.sleep(rng.uniform(1.0, wait.long_s))
        name = cluster.leader()
        cluster.brokers[name].kill()
        cluster.leader()
        _restart(cluster, rng, name)
        time.sleep(rng.uniform(1.0, wait.long_s))
        cluster.until(lambda: sum(line.lost for line in lines.values()), "a packet to be lost")
    finally:
        cluster.links.impair({})


def _etcd_silent(cluster: FaultCluster, name: str, *, silent: bool) -> None:
    """Silence a broker's connections to etcd, or resume them."""
    for proxy in cluster.to_etcd[name]:
        if silent:
            proxy.silence()
        else:
            proxy.resume()


def cut_off_etcd(cluster: FaultCluster, rng: random.Random, wait: FaultDurations) -> None:
    """Cut one broker, usually the leader, off from etcd; brokers and clients still reach each other."""
    name = cluster.leader() if rng.random() < 0.7 else rng.choice(NAMES)
    _etcd_silent(cluster, name, silent=True)
    time.sleep(LEASE_S + rng.uniform(0.5, wait.long_s))
    _etcd_silent(cluster, name, silent=False)


def isolate_leader(cluster: FaultCluster, rng: random.Random, wait: FaultDurations) -> None:
    """Cut the leader off from all others: brokers, clients, etcd."""
    name = cluster.leader()
    cluster.links.cut([*_links_between(name, NAMES), (name, CLIENT), (CLIENT, name)])
    _etcd_silent(cluster, name, silent=True)
    time.sleep(LEASE_S + rng.uniform(0.5, wait.long_s))
    cluster.links.heal(reset=rng.random() < 0.5)
    _etcd_silent(cluster, name, silent=False)


def flip_frame_bits(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Flip single bits of messages between brokers."""
    before = cluster.links.flipped
    for _round in range(3):
        cluster.links.flip(tuple(rng.sample(NAMES, 2)), rng.randrange(4096))  # type: ignore[arg-type]
        time.sleep(0.5)
    cluster.until(lambda: cluster.links.flipped > before, "a bit to flip")


# -- disks ---------------------------------------------------------------------------------------------------------


def fill_disk(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Fill the leader's disk: the broker ends itself, and is restarted once there is room."""
    name = cluster.leader()
    broker = cluster.brokers[name]
    newest = max((file.stat().st_size for file in (cluster.data(name) / "db").glob("*.log")), default=0)
    broker.limit_files(newest + rng.randrange(1, 20_000))
    cluster.until(lambda: not broker.is_alive, "the broker with the full disk to end itself")
    assert broker.exit_code == 12, broker.output()
    _restart(cluster, rng, name)


def lose_disk(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Restart a broker with an empty disk."""
    name = rng.choice(NAMES)
    cluster.brokers[name].kill()
    cluster.lose_disk(name)
    _restart(cluster, rng, name)


def _flip_in(cluster: FaultCluster, rng: random.Random, pattern: str) -> None:
    """Flip a bit in a file of a killed broker, which then reports it and gets an empty disk, or continues unharmed."""
    name = rng.choice(NAMES)
    cluster.brokers[name].kill()
    files = [file for file in (cluster.data(name) / "db").glob(pattern) if file.stat().st_size]
    if files:
        _flip(rng.choice(files), rng)
    complaint = cluster.refusal_of(name)
    if complaint:
        assert any(word in complaint for word in DAMAGED), complaint
        cluster.lose_disk(name)
        cluster.start(name)
        return
    cluster.watch_damaged(name)


def _flip(file: Path, rng: random.Random) -> None:
    """Flip a random bit of a file."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def flip_log_bit(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Flip a bit of a write-ahead log while its broker is down."""
    _flip_in(cluster, rng, "*.log")


def flip_table_bit(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Flip a bit of a table file while its broker is down."""
    _flip_in(cluster, rng, "*.sst")


# -- etcd ----------------------------------------------------------------------------------------------------------


def kill_etcd_leader(cluster: FaultCluster, rng: random.Random, _: FaultDurations) -> None:
    """Kill the leading etcd node; sometimes the brokers' leader as well."""
    node = cluster.etcd.leader()
    node.kill()
    if rng.random() < 0.5:
        name = cluster.leader()
        cluster.brokers[name].kill()
        _restart(cluster, rng, name)
    else:
        time.sleep(rng.uniform(0.5, 2.0))
    node.start()
    cluster.etcd.wait()


def stop_etcd(cluster: FaultCluster, rng: random.Random, wait: FaultDurations) -> None:
    """Let no etcd node answer."""
    for node in cluster.etcd.nodes:
        node.pause()
    time.sleep(wait.etcd_away_s * rng.uniform(0.7, 1.0))
    for node in cluster.etcd.nodes:
        node.resume()
    cluster.etcd.wait()


#: All faults: run number n takes fault n; the usual suite runs the first ten.
FAULTS: tuple[Fault, ...] = (
    kill_leader,
    cut_one_way,
    kill_all,
    pause_leader,
    fill_disk,
    cut_off_etcd,
    flip_frame_bits,
    jump_clock,
    kill_etcd_leader,
    cut_off_broker,
    kill_follower,
    cut_ring,
    restart_one_by_one,
    stop_etcd,
    flip_log_bit,
    isolate_leader,
    lose_disk,
    kill_two,
    flip_table_bit,
    restart_replica,
)
