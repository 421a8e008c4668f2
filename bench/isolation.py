"""R1: a dead, stopped or slow broker leaves the list of the brokers that a client asks (RocketMQ part 2, fuse).

    python -m bench.isolation [--quick] [--rounds 20] [--watch 3600]

A client may choose among three brokers on this machine, without a cluster. Three things are measured: the time from the
first failure (or the first slow answer) until the peer is isolated; the wait of the next connection of the process; and
how often a healthy peer is isolated while connections are opened for `--watch` seconds. A stopped peer only keeps
silent, so the first connection waits for its share of the connection's timeout.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.figures.figure import Figure, FigureResult, at_most, percentile
from bench.venus_transmission import _MAIN
from venus.config import BrokerSettings, Settings
from venus.errors import Unavailable
from venus.rpc import broker_selection as rpc_brokers
from venus.rpc.broker_selection import BrokerSelector
from venus.rpc.connection import BrokerConnection

PAPER = '30 s -> "milliseconds"'
GOAL_MS = 10.0
#: Pause between two connections to healthy brokers: an hour of connections must not make the brokers slow.
PAUSE_S = 0.1


class Process:
    """A broker process that can be stopped and killed."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(broker=BrokerSettings(listen="127.0.0.1:0", http="", data_dir=folder))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, settings.model_dump_json()], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[3].rstrip(",")

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """Kill the process if it is alive."""
        self.process.kill()
        self.process.wait()


@contextmanager
def start_three() -> Iterator[list[Process]]:
    """Start three brokers."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        started = [Process(Path(folder) / name) for name in "abc"]
        try:
            yield started
        finally:
            for each in started:
                each.stop()


class RecordingSelector(BrokerSelector):
    """Broker selector that measures the time from a failure or a slow answer until the broker is isolated."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        super().__init__(addresses)
        self.behind_ms: list[float] = []

    def record_lost(self, address: str, reason: str = "") -> None:
        """Measure the time from the failure until clients no longer try this broker first."""
        at = time.monotonic()
        super().record_lost(address, reason)
        assert address in self.isolated_brokers()
        assert self.in_order("")[0] != address
        self.behind_ms.append((time.monotonic() - at) * 1000)

    def record_success(self, address: str, latency_s: float) -> None:
        """Measure the time from an answer that was too slow until clients no longer try this broker first."""
        at = time.monotonic()
        super().record_success(address, latency_s)
        if address in self.isolated_brokers():
            assert self.in_order("")[0] != address
            self.behind_ms.append((time.monotonic() - at) * 1000)


def connect(reach: str) -> float:
    """Open a connection and close it; return how many milliseconds it took."""
    began = time.monotonic()
    BrokerConnection(reach).close()
    return (time.monotonic() - began) * 1000


def measure_isolation(kind: str) -> tuple[float, float, float]:
    """Cause one fault; return three times in ms: until isolation, of the next connection, of a healthy connection."""
    with start_three() as started:
        reach = ",".join(each.address for each in started)
        known = rpc_brokers._known[reach] = RecordingSelector(tuple(reach.split(",")))
        well = percentile([connect(reach) for _ in range(20)], 50)
        started[0].send(signal.SIGKILL if kind == "dead" else signal.SIGSTOP)
        timer = None
        if kind == "slow":  # it answers after 700 ms: one of RocketMQ's slow classes
            timer = threading.Timer(0.7, started[0].send, [signal.SIGCONT])
            timer.start()
        try:
            connect(reach)
        except Unavailable as error:
            raise AssertionError(f"two of three live: {error}") from error
        assert started[0].address in known.isolated_brokers(), f"a {kind} peer was not isolated by the first connection"
        following = connect(reach)
        if timer is not None:
            timer.join()
        return known.behind_ms[0], following, well


def false_isolations(seconds: float) -> int:
    """Open connections to healthy brokers for a time; return how often one was isolated."""
    with start_three() as started:
        reach = ",".join(each.address for each in started)
        known = rpc_brokers._known[reach] = RecordingSelector(tuple(reach.split(",")))
        end, found, was = time.monotonic() + seconds, 0, False
        while time.monotonic() < end:
            connect(reach)
            now = bool(known.isolated_brokers())
            found += now and not was
            was = now
            time.sleep(PAUSE_S)
        return found


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure R1 and return its lines."""
    return measure(rounds=1, watch_s=10.0) if quick else measure(rounds=20, watch_s=3600.0)


def measure(rounds: int, watch_s: float) -> list[FigureResult]:
    """Measure each fault in a number of rounds, then healthy brokers for `watch_s` (0 skips this)."""
    found: list[FigureResult] = []
    for kind in ("dead", "stopped", "slow") if rounds else ():
        times = [measure_isolation(kind) for _ in range(rounds)]
        behind = max(each[0] for each in times)
        found.append(
            at_most(f"{kind} peer: first failure until isolated, worst of {rounds}", behind, GOAL_MS, "ms", paper=PAPER)
        )
        extra = percentile([following - well for _, following, well in times], 50)
        found.append(
            at_most(f"{kind} peer: what the next connection waits longer, median", max(0.0, extra), GOAL_MS, "ms")
        )
    if watch_s:
        found.append(at_most(f"false isolations in {watch_s:,.0f} s", false_isolations(watch_s), 0, ""))
    return found


FIGURE = Figure(id="R1", title="a dead, a stopped and a slow peer", measure=run)


def main() -> int:
    """Print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: to try the script")
    parser.add_argument("--rounds", type=int, default=20, help="of each fault; 0 = none")
    parser.add_argument("--watch", type=float, default=3600.0, metavar="SECONDS", help="for false isolations")
    options = parser.parse_args()
    findings = run(True) if options.quick else measure(options.rounds, options.watch)
    for finding in findings:
        print(f"{finding.what:70} {finding.ours:>12} goal {finding.goal:>10} {'met' if finding.met else 'MISSED'}")
    return 0 if all(finding.met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
