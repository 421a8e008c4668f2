"""Transmission of 100-byte rows, producer process -> server process -> consumer process, everything fsynced.

    python -m bench.transmission [--only VENUS] [--rows 1 10 100 1000] [--rounds 5] [--warm-up 2]

A row of VENUS has two times: until the consumer has it (half message, fsync, commit, fsync, delivery), and until the
full data has it too. Peers whose server is not installed are named and left out; bench/README.md says how they are
installed.
"""

from __future__ import annotations

import argparse
import sys

from bench.peers.kafka import Kafka
from bench.peers.kafka_clients import Batching
from bench.peers.nats_jetstream import NatsJetStream
from bench.peers.redis_streams import RedisStreams
from bench.peers.rocketmq import RocketMq
from bench.rates import TOTAL, measure_rate
from bench.rounds import System
from bench.venus_transmission import VenusSystem


def systems() -> list[System]:
    """Return every system of the comparison."""
    found: list[System] = [VenusSystem(), VenusSystem(one_at_a_time=True)]
    found += [VenusSystem(one_at_a_time=True, awaits_commits=False), RocketMq()]
    found += [Kafka(batching) for batching in Batching]
    for envelope in (False, True):
        found += [RedisStreams(envelope=envelope), NatsJetStream(envelope=envelope)]
    return found


def run(system: System, sizes: list[int], *, rounds: int, warm_up: int) -> None:
    """Measure one system with batches of all sizes, and print its lines."""
    if reason := system.missing():
        print(f"{system.name:44} left out: {reason}", flush=True)
        return
    try:
        system.start()
        for rows in sizes:
            found = measure_rate(system, rows, rounds=rounds, warm_up=warm_up)
            print(
                f"{system.name:44} {rows:5} rows a batch {found.received:11,.0f} rows/s received"
                f" {found.done:11,.0f} rows/s done {found.cpu_us:8.2f} us/row",
                flush=True,
            )
    finally:
        system.stop()


def main() -> int:
    """Measure the requested systems and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="systems whose name contains one of these")
    parser.add_argument("--rows", nargs="*", type=int, default=sorted(TOTAL))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2)
    options = parser.parse_args()
    for system in systems():
        if not options.only or any(part.lower() in system.name.lower() for part in options.only):
            run(system, options.rows, rounds=options.rounds, warm_up=options.warm_up)
    return 0


if __name__ == "__main__":
    sys.exit(main())
