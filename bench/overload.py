"""R3: twice the load that fits (RocketMQ part 2, degradation at the peak), and a trickle beside a full load.

    python -m bench.overload [--quick] [--shared-cores] [--flat-out]

One broker process. A trickle commits one row at a time and asks for health; first alone, then beside two producers
(floods) and two readers that read the full data over and over. The capacity is measured first: the rate at which the
floods commit at another broker as fast as they can. Then they offer twice that at a steady rate, even if less is
accepted; with `--flat-out`, as much as they can. Nothing may be lost, the broker must give up details first,
and its memory must stay bounded. The paper's clients have separate machines. Here floods and readers have one half of
the cores; the broker, the trickle and an echo server have the other, unless `--shared-cores` is given. The latency of
the echo at the same moments shows how much the machine alone adds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path

import psutil

from bench.figures.figure import Figure, FigureResult, at_least, at_most, percentile
from bench.overload_clients import (
    BATCH_ROWS,
    Latencies,
    Trickle,
    flood,
    read,
    run_echo,
    spawn,
    split_cores,
    use_cores,
)
from bench.venus_transmission import _MAIN
from venus.config import BrokerSettings, DegradeSettings, Settings
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

FLOODS, READERS = 2, 2
#: Multiple of the capacity that the floods offer.
TIMES = 2.0


@contextmanager
def start_broker() -> Iterator[tuple[str, str, int]]:
    """Start a broker; yield its two addresses and its process id."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        options = BrokerSettings(
            listen="127.0.0.1:0", http="127.0.0.1:0", data_dir=Path(folder), degrade=DegradeSettings(cpu_sustain_s=5)
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
def overload(address: str, cores: set[int], pace: float) -> Iterator[list[float]]:
    """Run floods (producers) and readers; at the end, the yielded list gets each flood's offered load / accepted load.

    `pace` is the rate of each flood in rows a second; 0 = as fast as it can.
    """
    stop = spawn.Event()
    said: Queue[float] = spawn.Queue()
    names = [f"flood{n}" for n in range(FLOODS)]
    work = [spawn.Process(target=flood, args=(address, name, pace, stop, said)) for name in names]
    work += [spawn.Process(target=read, args=(address, names[n % FLOODS], stop)) for n in range(READERS)]
    offered: list[float] = []
    with use_cores(cores):
        for each in work[:FLOODS]:
            each.start()
    with AdminClient(address) as admin:  # readers can only start once the businesses exist
        while sum(bool(b.next_offset) for b in admin.status().businesses if b.business in names) < FLOODS:
            time.sleep(0.1)
    with use_cores(cores):
        for each in work[FLOODS:]:
            each.start()
    try:
        yield offered
    finally:
        stop.set()
        for each in work:
            each.join(180)
    failed = [each.name for each in work if each.exitcode]
    assert not failed, f"{failed} failed"
    offered += [said.get(timeout=10) for _ in range(FLOODS)]


def rows_taken(address: str) -> int:
    """Return how many rows of the floods the broker has committed."""
    with AdminClient(address) as admin:
        return sum(found.next_offset for found in admin.status().businesses if found.business != "trickle")


def measure_capacity(quick: bool, cores: set[int]) -> float:
    """Return the rows a second that are committed while the floods send as fast as they can, without a trickle.

    It uses a separate broker, so that the measured one begins empty.
    """
    with start_broker() as (address, _, _), overload(address, cores, 0.0):
        time.sleep(4.0 if quick else 10.0)  # until the full data is as far behind as is allowed
        began, before = time.monotonic(), rows_taken(address)
        time.sleep(6.0 if quick else 20.0)
        return (rows_taken(address) - before) / (time.monotonic() - began)


def degraded_lanes(address: str) -> list[int]:
    """Return the degraded lanes, the one degraded last first."""
    with AdminClient(address) as admin:
        return sorted((lane.lane for lane in admin.status().traffic.lanes if lane.degraded_since_us), reverse=True)


def gives_up_details_first(seen: Collection[tuple[int, ...]]) -> bool:
    """Return whether lanes were degraded, and always the lane of details first. False if none ever was."""
    return any(seen) and all(found == (4, 3, 2, 1)[: len(found)] for found in seen)


@dataclass(slots=True, kw_only=True)
class OverloadResult:
    """Results of one run under overload."""

    idle: Latencies = field(default_factory=Latencies)
    loaded: Latencies = field(default_factory=Latencies)
    #: Committed rows a second of the floods: as fast as they could, and beside the trickle.
    fits: float = 0.0
    taken: float = 0.0
    offered: Sequence[float] = ()
    degraded: set[tuple[int, ...]] = field(default_factory=set)
    peak_bytes: int = 0
    rows: int = 0
    lost: int = 0


def run(quick: bool, *, shared_cores: bool = False, flat_out: bool = False) -> Sequence[FigureResult]:
    """Measure figure R3 and return its lines."""
    alone_s, loaded_s = (10.0, 30.0) if quick else (60.0, 600.0)
    own, theirs = split_cores()
    clients = own | theirs if shared_cores else theirs
    seen = OverloadResult()
    with nullcontext() if shared_cores else use_cores(own):
        seen.fits = measure_capacity(quick, clients)
        pace = 0.0 if flat_out else TIMES * seen.fits / FLOODS
        with start_broker() as (address, http, pid), run_echo() as echo:
            trickle = Trickle(address, http, echo)
            trickle.run(alone_s, seen.idle)
            with overload(address, clients, pace) as seen.offered:
                run_trickle(seen, trickle, loaded_s, address, pid)
            trickle.close()
            with AdminClient(address) as admin:
                count(seen, trickle.rows, admin.status())
    where = f"{len(own | theirs)} cores" + (" for all" if shared_cores else f", {len(own)} of them the broker's")
    return [*findings_of_latencies(seen, where), *findings_of_overload(seen)]


def run_trickle(seen: OverloadResult, trickle: Trickle, seconds: float, address: str, pid: int) -> None:
    """Run the trickle beside the load; record the broker's degraded lanes and its memory."""
    began, before = time.monotonic(), rows_taken(address)
    while time.monotonic() < began + seconds:
        trickle.run(1.0, seen.loaded)
        seen.degraded.add(tuple(degraded_lanes(address)))
        seen.peak_bytes = max(seen.peak_bytes, psutil.Process(pid).memory_info().rss)
    seen.taken = (rows_taken(address) - before) / (time.monotonic() - began)


def count(seen: OverloadResult, sent: int, status: broker_pb2.BrokerStatus) -> None:
    """Add up the committed and the missing rows; an undecided or incomplete batch counts as one missing row."""
    for found in status.businesses:
        if found.business == "trickle":
            seen.lost += sent - found.next_offset
        seen.lost += bool(found.halves or found.next_offset % (1 if found.business == "trickle" else BATCH_ROWS))
        seen.rows += found.next_offset


def findings_of_latencies(seen: OverloadResult, where: str) -> list[FigureResult]:
    """Return the result lines about latencies of the trickle: health, decision, half message, echo, whole commit."""
    idle, loaded = seen.idle, seen.loaded
    compared = [
        ("lane 0: health", idle.health, loaded.health),
        ("lane 0: a decision", idle.decision, loaded.decision),
        ("lane 1: a half message of one row", idle.half, loaded.half),
    ]
    echo, echo_idle = percentile(loaded.echo, 99), percentile(idle.echo, 99)
    machine = max(1.0, echo / echo_idle)
    commit, commit_idle = percentile(loaded.commit, 99), percentile(idle.commit, 99)
    return [
        *(
            at_most(
                f"{what}: p99 beside the overload, times idle ({p99:.1f} and {p99_idle:.1f} ms: {p99 / p99_idle:.1f}), "
                "over the echo server's",
                p99 / p99_idle / machine,
                2,
                "x",
                paper="core service unharmed",
            )
            for what, p99_idle, p99 in ((what, percentile(a, 99), percentile(b, 99)) for what, a, b in compared)
        ),
        FigureResult(
            what=f"an echo server at the same moments, times idle ({echo:.1f} and {echo_idle:.1f} ms; {where})",
            ours=f"{echo / echo_idle:.3g} x",
            goal="none: the machine",
            met=True,
        ),
        at_most(f"trickle: p99 of a commit beside full loads (idle {commit_idle:.1f} ms; {where})", commit, 50, "ms"),
    ]


def findings_of_overload(seen: OverloadResult) -> list[FigureResult]:
    """Return the result lines about the overload: its size, lost rows, memory, and what was degraded."""
    return [
        at_least(
            f"load offered, times what was taken ({seen.fits:,.0f} rows/s fit, {seen.taken:,.0f} were taken)",
            min(seen.offered),
            TIMES,
            "x",
        ),
        at_most(f"rows lost of {seen.rows:,}", seen.lost, 0, ""),
        at_most("peak memory of the broker", seen.peak_bytes / 2**20, 400, "MiB"),
        FigureResult(
            what="what was degraded, and in which order",
            ours=", ".join(str(found) for found in sorted(seen.degraded) if found) or "nothing: not an overload",
            goal="4 first",
            met=gives_up_details_first(seen.degraded),
        ),
    ]


FIGURE = Figure(id="R3", title="twice the load that fits", measure=run)


def main() -> int:
    """Print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="half a minute: to try the script")
    parser.add_argument("--shared-cores", action="store_true", help="floods and readers take of the broker's cores")
    parser.add_argument(
        "--flat-out", action="store_true", help="the floods send as fast as they can, not twice what fits"
    )
    wanted = parser.parse_args()
    findings = run(wanted.quick, shared_cores=wanted.shared_cores, flat_out=wanted.flat_out)
    for finding in findings:
        print(f"{finding.what:100} {finding.ours:>10} goal {finding.goal:>10} {'met' if finding.met else 'MISSED'}")
    return 0 if all(finding.met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
