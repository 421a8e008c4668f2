"""T6: the cables of five access sets are out (Tensor V-E: connected within 30 s, normal within 3 minutes).

A home gets 100 changes/s. Five access sets of one broker each are behind cables in another process, with a consumer at
each. All five cables are interrupted at once, and each set must then serve what it has. Afterwards a connection
continues when TCP would send again (bench/cables.py). Connected again: the consumers of all five have received the
first new change. Normal: from then on every change comes within half a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.cables import Cables, lay_cables
from bench.fan_out import Messages
from bench.figures.figure import Figure, FigureResult, at_most
from bench.sets import Sets, run_sets
from bench.venus_transmission import BUSINESS
from bench.watchers import WatchedRows, watch_changes
from tests.support.brokers.networks import mirror_of
from venus.rpc.snapshots import SnapshotClient

SITES = tuple(f"site{n}" for n in range(5))
CHANGES_PER_S = 100
LATE_S = 0.5
CONNECTED_S, NORMAL_S = 5.0, 10.0
#: Just below and above the time after which TCP sends again, and after which a silent peer is detected.
OUT_S = (2.0, 7.0, 14.0, 24.0, 30.0, 60.0)
QUICK_OUT_S = (3.0, 14.0)
SETTLE_S = 12.0
PAPER = "connected again <= 30 s, normal <= 3 min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """When the cables were interrupted and reconnected, and how many rows each set served shortly before the repair."""

    out_at: float
    back_at: float
    served: tuple[int, ...]
    states: tuple[str, ...]


def rows_served(address: str) -> int:
    """Load the full data from a set; return its number of rows."""
    rows = 0
    with SnapshotClient(address) as snapshots:
        snapshot = snapshots.open(BUSINESS)
        for split in snapshot.splits:
            rows += sum(len(chunk.rows) for chunk in snapshots.read_split(snapshot.snapshot_id, split))
        snapshots.close(snapshot.snapshot_id)
    return rows


def interrupt_sites(cables: Cables, started: Sets, seconds: float) -> Outage:
    """Interrupt the cables of all sites for a time."""
    cables.disconnect_all(SITES)
    out_at = time.monotonic()
    time.sleep(seconds / 2)
    served = tuple(rows_served(started.at(name)) for name in SITES)
    states = tuple(mirror.state if (mirror := mirror_of(started.at(n), BUSINESS)) else "" for n in SITES)
    time.sleep(max(0.0, out_at + seconds - time.monotonic()))
    cables.reconnect_all(SITES)
    return Outage(out_at=out_at, back_at=time.monotonic(), served=served, states=states)


def seconds_until_connected(each: Outage, seen: dict[str, WatchedRows], until: float) -> float:
    """Return the seconds from the repair until every site has received its first new change."""
    return max(
        next((at for at in found.times if each.back_at < at < until), until) - each.back_at for found in seen.values()
    )


def seconds_until_normal(each: Outage, seen: dict[str, WatchedRows], sent: dict[int, float], until: float) -> float:
    """Return the seconds from the repair until changes no longer arrive late."""
    late = [
        at
        for found in seen.values()
        for end, at in zip(found.ends, found.times, strict=True)
        if each.back_at < at < until and at - sent[end] > LATE_S
    ]
    return max([*late, each.back_at]) - each.back_at


def measure_outages(started: Sets, cables: Cables, lengths: Sequence[float]) -> list[FigureResult]:
    """Write steadily, and interrupt the cables once for each of these numbers of seconds."""
    sender = Messages(started.at("home"), rows=1)
    sender.commit_one()
    started.wait(sender.end)
    addresses = {name: started.at(name) for name in SITES}
    with watch_changes(addresses, sender.end) as watchers, ThreadPoolExecutor(1) as pool:
        seconds = sum(lengths) + SETTLE_S * (len(lengths) + 0.5)
        writing = pool.submit(sender.send_steadily, CHANGES_PER_S, seconds)
        time.sleep(SETTLE_S / 3)
        found = []
        for length in lengths:
            found.append(interrupt_sites(cables, started, length))
            time.sleep(SETTLE_S)
        sent = writing.result()
        watchers.wait(sender.end, 60.0)
        seen = watchers.results()
    sender.close()
    return findings(found, seen, sent, sender.end)


def findings(
    found: Sequence[Outage], seen: dict[str, WatchedRows], sent: dict[int, float], end: int
) -> list[FigureResult]:
    """Return the lines: the longest times of all outages."""
    until = [*(each.out_at for each in found[1:]), float("inf")]
    connected = [seconds_until_connected(each, seen, limit) for each, limit in zip(found, until, strict=True)]
    normal = [seconds_until_normal(each, seen, sent, limit) for each, limit in zip(found, until, strict=True)]
    lengths = [each.back_at - each.out_at for each in found]
    beside = ", ".join(
        f"{length:.0f} s out: {first:.1f} / {second:.1f}"
        for length, first, second in zip(lengths, connected, normal, strict=True)
    )
    states = sorted({state for each in found for state in each.states})
    lost = sum(each.lost + max(0, end - each.row) for each in seen.values())
    return [
        at_most(
            f"{len(SITES)} sets cut off at once, connected again (/ normal; {beside})",
            max(connected),
            CONNECTED_S,
            "s",
            paper=PAPER,
        ),
        at_most("the same, normal", max(normal), NORMAL_S, "s"),
        at_most(
            f"sets that served less than a row in the middle of an outage (they called themselves {', '.join(states)})",
            sum(not rows for each in found for rows in each.served),
            0,
            "",
        ),
        at_most(f"rows twice at the consumers, of {end:,} each", sum(each.doubled for each in seen.values()), 0, ""),
        at_most("rows that never came", lost, 0, ""),
    ]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure T6 and return its lines."""
    with run_sets() as started:
        home = started.start("home")
        with lay_cables(**dict.fromkeys(SITES, home)) as cables:
            for name in SITES:
                started.start(name, [cables.at[name]])
            return measure_outages(started, cables, QUICK_OUT_S if quick else OUT_S)


FIGURE = Figure(id="T6", title="five access sets cut off", measure=run)
