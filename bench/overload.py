"""R3: twice the load that fits (RocketMQ part 2, degradation at the peak), and a trickle beside a full load.

    python -m bench.overload [--quick]

One broker process. A trickle commits a row at a time and asks for health; first alone, then beside two producers that
send as fast as they can and two readers that read the full data over and over. Nothing may be lost, the details are
given up first, memory stays bounded. All on this machine: with few cores the clients take part of the broker's CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.request import urlopen

import psutil

from bench.figures.figure import Figure, Finding, at_most, percentile
from bench.venus_transmission import _MAIN, make_half
from venus.config import Broker, Degrade, Settings
from venus.model import Verdict
from venus.rpc.admin import Admin
from venus.rpc.producer import Producer
from venus.rpc.snapshots import Snapshots

FLOODS, READERS = 2, 2
BATCH_ROWS = 1000
spawn = multiprocessing.get_context("spawn")


def flood(address: str, business: str, stop: Event) -> None:
    """Commit batches as fast as the broker takes them; print how many rows were acknowledged."""
    with Producer(address, business, business, window_bytes_max=32 << 20) as producer:
        producer.connect(0, 0)
        number = decided = 0
        digests: dict[int, int] = {}
        while not stop.is_set():
            number += 1
            half = make_half(number, (number - 1) * BATCH_ROWS + 1, BATCH_ROWS)
            digests[number] = half.digest
            producer.send_half(half)
            through = producer.persisted_through
            if through > decided:
                decided = through
                producer.decide(decided, digests[decided], Verdict.COMMIT)
        if not number:
            return
        producer.wait_persisted(number)
        producer.decide(number, digests[number], Verdict.COMMIT)
        producer.wait_decided(number, 120)


def read(address: str, business: str, stop: Event) -> None:
    """Read the full data over and over."""
    with Snapshots(address) as snapshots:
        while not stop.is_set():
            snapshot = snapshots.open(business, splits=4, holder="bench")
            for split in snapshot.splits:
                for _ in snapshots.read_split(snapshot.snapshot_id, split):
                    if stop.is_set():
                        break
            snapshots.close(snapshot.snapshot_id)


class Trickle:
    """Commits a row at a time; how long half message, decision and /health take, in ms."""

    def __init__(self, address: str, http: str) -> None:
        self._http = http
        self._producer = Producer(address, "trickle", "trickle", window_bytes_max=1 << 20)
        self._producer.connect(0, 0)
        self.rows = 0

    def run(self, seconds: float) -> tuple[list[float], list[float]]:
        """Go on for so long; return the latencies of commits and of health."""
        commits, health = [], []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.rows += 1
            half = make_half(self.rows, self.rows, 1)
            began = time.monotonic()
            self._producer.send_half(half)
            self._producer.wait_persisted(self.rows)
            self._producer.decide(self.rows, half.digest, Verdict.COMMIT)
            self._producer.wait_decided(self.rows)
            commits.append((time.monotonic() - began) * 1000)
            if self.rows % 10 == 0:
                began = time.monotonic()
                with urlopen(f"http://{self._http}/health", timeout=30) as answer:
                    answer.read()
                health.append((time.monotonic() - began) * 1000)
            time.sleep(0.01)
        return commits, health

    def close(self) -> None:
        """Leave."""
        self._producer.close()


@contextmanager
def broker() -> Iterator[tuple[str, str, int]]:
    """Start a broker; give its addresses and its process."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        options = Broker(
            listen="127.0.0.1:0", http="127.0.0.1:0", data_dir=Path(folder), degrade=Degrade(cpu_sustain_s=5)
        )
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, Settings(broker=options).model_dump_json()], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[3].rstrip(","), line.partition("http://")[2].partition("/")[0], process.pid
        finally:
            process.terminate()
            process.wait(120)


@contextmanager
def overload(address: str) -> Iterator[None]:
    """Let the floods and the readers run."""
    stop = spawn.Event()
    names = [f"flood{n}" for n in range(FLOODS)]
    work = [spawn.Process(target=flood, args=(address, name, stop)) for name in names]
    work += [spawn.Process(target=read, args=(address, names[n % FLOODS], stop)) for n in range(READERS)]
    for each in work[:FLOODS]:
        each.start()
    with Admin(address) as admin:  # nothing can be read before it is there
        while sum(bool(b.next_offset) for b in admin.status().businesses) <= FLOODS:
            time.sleep(0.1)
    for each in work[FLOODS:]:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in work:
            each.join(180)
    failed = [each.name for each in work if each.exitcode]
    assert not failed, f"{failed} failed"


def lanes(address: str) -> list[int]:
    """Return the degraded lanes, the last one to go first."""
    with Admin(address) as admin:
        return sorted((lane.lane for lane in admin.status().traffic.lanes if lane.degraded_since_us), reverse=True)


def details_first(seen: Collection[tuple[int, ...]]) -> bool:
    """Whether something was given up, and never a lane in front of the details: without that it was no overload."""
    return any(seen) and all(found == (4, 3, 2, 1)[: len(found)] for found in seen)


def run(quick: bool) -> Sequence[Finding]:
    """Measure."""
    alone_s, loaded_s = (10.0, 30.0) if quick else (60.0, 600.0)
    with broker() as (address, http, pid):
        trickle = Trickle(address, http)
        idle, idle_health = trickle.run(alone_s)
        seen: set[tuple[int, ...]] = set()
        peak, commits, health = 0, list[float](), list[float]()
        with overload(address):
            end = time.monotonic() + loaded_s
            while time.monotonic() < end:
                some = trickle.run(1.0)
                commits += some[0]
                health += some[1]
                seen.add(tuple(lanes(address)))
                peak = max(peak, psutil.Process(pid).memory_info().rss)
        trickle.close()
        with Admin(address) as admin:
            status = admin.status()
        lost = trickle.rows - next(b.next_offset for b in status.businesses if b.business == "trickle")
        odd = [
            b.business
            for b in status.businesses
            if b.halves or b.next_offset % (1 if b.business == "trickle" else BATCH_ROWS)
        ]
        rows = sum(b.next_offset for b in status.businesses) - trickle.rows
    p99, p99_idle = percentile(commits, 99), percentile(idle, 99)
    cores = os.cpu_count()
    return [
        at_most(
            "trickle: p99 of a commit beside the overload, times idle",
            p99 / p99_idle,
            2,
            "x",
            paper="core service unharmed",
        ),
        at_most(f"trickle: p99 of a commit beside full loads (idle {p99_idle:.1f} ms, {cores} cores)", p99, 50, "ms"),
        at_most(
            "health: p99 beside the overload, times idle", percentile(health, 99) / percentile(idle_health, 99), 2, "x"
        ),
        at_most(
            f"rows lost of {rows + trickle.rows:,} ({rows / loaded_s:,.0f} rows/s beside it)", lost + len(odd), 0, ""
        ),
        at_most("peak memory of the broker", peak / 2**20, 400, "MiB"),
        Finding(
            what="what was degraded, and in which order",
            ours=", ".join(str(found) for found in sorted(seen) if found) or "nothing: not an overload",
            goal="4 first",
            met=details_first(seen),
        ),
    ]


FIGURE = Figure(id="R3", title="twice the load that fits", measure=run)


def main() -> int:
    """Print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="half a minute: to try the script")
    findings = run(parser.parse_args().quick)
    for finding in findings:
        print(f"{finding.what:75} {finding.ours:>14} goal {finding.goal:>10} {'met' if finding.met else 'MISSED'}")
    return 0 if all(finding.met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
