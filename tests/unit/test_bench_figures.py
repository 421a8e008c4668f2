"""The network figures are computed correctly, and the README describes each of them."""

from __future__ import annotations

import asyncio
import importlib
import re
import time
from functools import partial
from pathlib import Path

import pytest

from bench import cables, watchers
from bench.arrivals import FrameCache
from bench.figures import m3, m5, t6
from bench.network.week import FixedRetention, Followers, KnownReaders, UnknownReaders, simulate_week
from bench.venus_transmission import make_half
from bench.watchers import WatchedRows, numbers
from venus.errors import DigestMismatch
from venus.network.topology import is_labelled
from venus.rpc.sealed import seal
from venus.wire import broker_pb2, change_pb2

ROOT = Path(__file__).parents[2]
README = ROOT / "bench" / "README.md"
DAY_S = 24 * 3600


def test_each_figure_has_a_unique_id_and_a_line_in_the_readme() -> None:
    ids = [figure.id for figure in importlib.import_module("bench.figures.catalogue").FIGURES]
    described = re.findall(r"^\| ([A-Z]\d) \| ", README.read_text(), re.MULTILINE)

    assert len(set(ids)) == len(ids)
    assert set(ids) <= {*described, "R1", "R3"}, "R1 and R3 have a section"
    assert {"M1", "M3", "M5", "T6", "T7"} <= set(described)


def test_the_numbers_of_the_readme_are_the_rounded_measured_ones() -> None:
    page = (ROOT / "bench" / "FIGURES.md").read_text()
    sections = {part.split(":")[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}
    claims = re.findall(r"^\| .* \(([A-Z]\d)\) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)

    unfounded = [
        f"{figure}: {number}"
        for figure, cells in claims
        for number in re.findall(r"\d[\d,.]*\d|\d", cells)
        if not any(_is_rounding(number, measured) for measured in re.findall(r"\d[\d,.]*\d|\d", sections[figure]))
    ]
    assert len(claims) >= 5
    assert unfounded == []


def _is_rounding(number: str, measured: str) -> bool:
    """Return whether a number equals another one, rounded to its own significant digits."""
    plain, exact = number.replace(",", ""), float(measured.replace(",", ""))
    digits = len(plain.replace(".", "").strip("0"))
    return float(plain) == float(f"{exact:.{max(1, digits)}g}")


@pytest.mark.parametrize(("now", "at"), [(0.1, 0.2), (0.2, 0.2), (0.21, 0.6), (5.0, 6.2), (14.0, 25.4)])
def test_a_lost_packet_is_resent_at_doubling_intervals(now: float, at: float) -> None:
    assert cables.sent_again_at(0.0, 0.2, now) == pytest.approx(at)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()
    await writer.wait_closed()


def test_a_disconnected_cable_delivers_nothing_and_loses_nothing() -> None:
    async def work() -> tuple[bool, bytes, float, bytes, int]:
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        cable = cables._Cable(f"127.0.0.1:{port}")
        loop = asyncio.get_running_loop()
        near = await loop.create_server(cable.make_end, "127.0.0.1", 0)
        address = near.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        cable.connected.clear()
        began = time.monotonic()
        writer.write(b"two")
        late_reader, late = await asyncio.open_connection(*address)
        late.write(b"three")
        silent = False
        try:
            await asyncio.wait_for(reader.readexactly(3), 0.5)
        except TimeoutError:
            silent = True
        cable.connected.set()
        found = await asyncio.wait_for(reader.readexactly(3), 60.0)
        waited_s = time.monotonic() - began
        late_found = await asyncio.wait_for(late_reader.readexactly(5), 60.0)
        for each in (writer, late):
            each.close()
            await each.wait_closed()
        while cable.open:
            await asyncio.sleep(0.01)
        near.close()
        server.close()
        return silent, found, waited_s, late_found, cable.passed["down"]

    silent, found, waited_s, late_found, down = asyncio.run(work())

    assert (silent, found, late_found, down) == (True, b"two", b"three", 11)
    assert waited_s > 0.59, "TCP sends at 0.6 s, not at 0.5 s"


def increment(first: int, rows: int) -> broker_pb2.Increment:
    return broker_pb2.Increment(base_offset=first - 1, count=rows, body=make_half(1, first, rows).body)


def test_a_watcher_counts_doubled_and_missing_rows() -> None:
    watcher = watchers._Watcher("x", "nowhere", 0, 0.0, counts=True)
    for first, rows in ((1, 3), (4, 2), (4, 2), (9, 1)):
        watcher._record_increment(increment(first, rows))

    assert (watcher.seen.row, watcher.seen.doubled, watcher.seen.lost) == (9, 2, 3)
    assert watcher.seen.ends == [3, 5, 5, 9]
    assert list(numbers(increment(7, 3).body)) == [7, 8, 9]


def test_a_shared_frame_is_compared_and_a_damaged_one_is_found() -> None:
    frames = FrameCache()
    content = seal(broker_pb2.DeliveryFrame(increments=[increment(1, 3), increment(4, 2)]))
    found = frames.read(content)

    assert (found.begin, found.end) == (0, 5)
    assert frames.read(bytes(bytearray(content))) is found, "another copy of the same bytes"
    damaged = bytearray(content)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(DigestMismatch):
        frames.read(bytes(damaged))
    with pytest.raises(AssertionError, match="missing"):
        frames.read(seal(broker_pb2.DeliveryFrame(increments=[increment(1, 3), increment(5, 2)])))


def test_a_consumer_without_all_rows_has_lost_the_rest() -> None:
    lost, doubled = m3.finding("home", WatchedRows(position=8, row=8, doubled=1), 10, 20, "")

    assert (lost.met, lost.ours, doubled.met, doubled.ours) == (False, "2", False, "1")


def test_a_mixed_batch_has_its_share_in_the_labelled_table() -> None:
    body = change_pb2.BatchBody.FromString(m5.make_mixed_half(1, 1, 1000).body)

    counts = {table.table_id: table.count for table in body.tables}
    assert counts == {1: 700, 2: 300}
    assert list(numbers(body.SerializeToString())) == list(range(1, 1001))
    assert [s.name for s in body.schemas if is_labelled(m5.LABELS["few"], s.namespace, s.name)] == ["few"]
    assert m5.share(2, 3) == pytest.approx(0.3, abs=0.001)


def test_a_site_is_normal_after_its_last_late_change() -> None:
    one = t6.Outage(out_at=100.0, back_at=110.0, served=(1,), states=("cut off",))
    sent = {1: 99.0, 2: 105.0, 3: 111.0, 4: 111.9, 5: 113.0}
    seen = {"a": WatchedRows(position=5, row=5, ends=[1, 2, 3, 4, 5], times=[99.1, 111.5, 112.0, 112.1, 113.1])}

    assert t6.seconds_until_connected(one, seen, 200.0) == pytest.approx(1.5)
    assert t6.seconds_until_normal(one, seen, sent, 200.0) == pytest.approx(2.0)
    assert t6.seconds_until_connected(one, {**seen, "b": WatchedRows(position=0, row=0)}, 200.0) == pytest.approx(90.0)


def test_a_known_replica_never_takes_the_full_data_again_and_a_new_one_does() -> None:
    known = simulate_week(1, partial(KnownReaders, retain_bytes=10_000_000, ttl_s=7 * DAY_S), seconds=DAY_S)
    forgotten = simulate_week(1, partial(KnownReaders, retain_bytes=10_000_000, ttl_s=60.0), seconds=DAY_S)
    fixed = simulate_week(1, partial(FixedRetention, retain_bytes=10_000_000), seconds=DAY_S)
    measured = simulate_week(1, partial(UnknownReaders, bytes_min=10_000_000, bytes_max=1 << 40), seconds=DAY_S)

    assert known.returns == forgotten.returns == fixed.returns == measured.returns > 100
    assert known.resyncs == 0
    assert forgotten.resyncs > 0
    assert fixed.resyncs > measured.resyncs > 0


def test_a_replica_that_lacks_more_than_the_limit_takes_the_full_data() -> None:
    enough = simulate_week(1, partial(Followers, retain_bytes=10_000_000, bytes_max=1 << 40), seconds=DAY_S)
    little = simulate_week(1, partial(Followers, retain_bytes=10_000_000, bytes_max=20 << 20), seconds=DAY_S)

    assert enough.resyncs == 0
    assert little.resyncs > 0
    assert little.kept_max < enough.kept_max
