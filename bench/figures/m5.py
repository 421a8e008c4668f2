"""M5: three levels of two sets each (Minos figure 2 has 3 + 3 + 6): the time of a hop, and the bytes that go down.

There are two core, two tandem and two access sets of one broker each; all but the home get their data over cables
(bench/cables.py), which count bytes. A hop is the time from a change's arrival at a consumer of the upper set to its
arrival at one of the lower set. One access set takes a label with one of two tables, the other takes everything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from bench.cables import Cables, lay_cables
from bench.fan_out import Messages
from bench.figures.figure import Figure, FigureResult, at_most, percentile
from bench.sets import Sets, run_sets
from bench.venus_transmission import KEY_BYTES, ROW_BYTES, make_half
from bench.watchers import WatchedRows, watch_changes
from venus.codec.batch import digest
from venus.wire import broker_pb2, change_pb2

#: Each set with the set above it.
HOPS = (("second", "home"), ("north", "home"), ("south", "second"), ("oslo", "north"), ("rome", "south"))
LABELS = {"few": ("bench.few",)}
LABELLED_PART = 0.3
#: At 100/s all six sets sync the same disk here.
CHANGES_PER_S = (30, 100)
HOP_MS = 50.0
SHARE_OFF = 1.0
VOLUME_ROWS = 1000
QUIET_S = 2.5


def make_mixed_half(batch_no: int, first_sequence: int, rows: int) -> broker_pb2.Half:
    """Return a half message with 30 % rows of table `few` and the rest of table `rows`, all incompressible."""
    whole = make_half(batch_no, first_sequence, rows)
    body = change_pb2.BatchBody.FromString(whole.body)
    if batch_no == 1:
        body.schemas.add(table_id=2, version=1, namespace="bench", name="few", key=["id"])
    every, few, chance = body.tables.pop(), round(rows * LABELLED_PART), random.Random(batch_no)
    width = ROW_BYTES - KEY_BYTES
    for table_id, begin, end in ((2, 0, few), (1, few, rows)):
        body.tables.add(
            table_id=table_id,
            schema_version=1,
            count=end - begin,
            record_ids=every.record_ids[begin * KEY_BYTES : end * KEY_BYTES],
            record_id_sizes=np.full(end - begin, KEY_BYTES, dtype="<u4").tobytes(),
            rows=b"".join(b"\x12\x56" + chance.randbytes(width - 2) for _ in range(end - begin)),
            row_sizes=np.full(end - begin, width, dtype="<u4").tobytes(),
            inserts_only=True,
        )
    encoded = body.SerializeToString()
    return broker_pb2.Half(batch_no=batch_no, digest=digest(encoded), body=encoded)


def share(first: int, last: int) -> float:
    """Return which fraction of the bytes of these batches belongs to the table with the label."""
    few = every = 0
    for number in range(first, last + 1):
        body = change_pb2.BatchBody.FromString(make_mixed_half(number, 1, VOLUME_ROWS).body)
        few += sum(table.ByteSize() for table in body.tables if table.table_id == 2)
        every += sum(table.ByteSize() for table in body.tables)
    return few / every


@contextmanager
def start_levels() -> Iterator[tuple[Sets, dict[str, Cables]]]:
    """Start the six sets and the cables between them; yield the sets, and the cables of the access sets."""
    with run_sets() as started:
        home = started.start("home")
        with lay_cables(second=home, north=home) as upper:
            started.start("second", [upper.at["second"]], tier="core", level=0)
            started.start("north", [upper.at["north"]], tier="tandem", level=1)
            with lay_cables(south=started.at("second"), oslo=started.at("north")) as middle:
                started.start("south", [middle.at["south"]], tier="tandem", level=1)
                started.start("oslo", [middle.at["oslo"]], level=2)
                with lay_cables(rome=started.at("south")) as lower:
                    place = {"level": 2, "labels": ["few"], "known_labels": LABELS}
                    started.start("rome", [lower.at["rome"]], **place)
                    yield started, {"oslo": middle, "rome": lower}


def hop_latencies(seen: dict[str, WatchedRows], offsets: Sequence[int]) -> dict[str, list[float]]:
    """Return for each hop the milliseconds by which a change arrives later at the lower set."""
    came = {name: dict(zip(each.ends, each.times, strict=True)) for name, each in seen.items()}
    return {
        f"{upper} to {lower}": [max(0.0, came[lower][end] - came[upper][end]) * 1000 for end in offsets]
        for lower, upper in HOPS
    }


def measure_steady(started: Sets, sender: Messages, rate: int, seconds: float) -> FigureResult:
    """Write at a steady rate and measure the time of each hop; return the result line."""
    addresses = {name: broker.address for name, broker in started.brokers.items()}
    with watch_changes(addresses, sender.end, counts=False) as watchers:
        begun = sender.send_steadily(rate, seconds)
        watchers.wait(sender.end, 60.0)
        found = hop_latencies(watchers.results(), list(begun))
    each = "; ".join(f"{name} {percentile(ms, 50):.1f} / {percentile(ms, 99):.1f}" for name, ms in found.items())
    worst = max(percentile(ms, 99) for ms in found.values())
    what = f"3 levels of 2 sets, {rate} changes/s for {seconds:.0f} s: p99 of the slowest hop (p50 / p99: {each})"
    return at_most(what, worst, HOP_MS, "ms")


def measure_volume(started: Sets, cables: dict[str, Cables], sender: Messages, batches: int) -> FigureResult:
    """Write batches; return a line that compares the bytes sent down to a set with a label and to one without."""
    before = {name: line.down(name) for name, line in cables.items()}
    first = sender.count + 1
    sender.commit_many(batches)
    started.wait(sender.end)
    time.sleep(QUIET_S)
    went = {name: line.down(name) - before[name] for name, line in cables.items()}
    part, wanted = went["rome"] / went["oslo"], share(first, sender.count)
    off = abs(part / wanted - 1) * 100
    what = (
        f"bytes on the wire to a set with a label, {went['rome']:,} of {went['oslo']:,} = {part:.4f}, "
        f"the labelled tables are {wanted:.4f}: off by"
    )
    return at_most(what, off, SHARE_OFF, "%")


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure M5 and return its lines. Predicates are not measured."""
    with start_levels() as (started, cables):
        sender = Messages(started.at("home"), make=make_mixed_half)
        sender.commit_one()
        started.wait(sender.end)
        found = [measure_steady(started, sender, rate, 5.0 if quick else 60.0) for rate in CHANGES_PER_S]
        sender.rows = VOLUME_ROWS
        found.append(measure_volume(started, cables, sender, 50 if quick else 400))
        sender.close()
    return found


FIGURE = Figure(id="M5", title="three levels", measure=run)
