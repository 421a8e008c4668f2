"""How figures are judged, the page of all figures, and a bench writer that loses its leader."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench import overload_clients, trickle, venus_cluster
from bench.figures import page
from bench.figures.figure import Figure, FigureResult, times_peer
from bench.overload import OverloadResult, count, findings_of_latencies, gives_up_details_first
from bench.overload_clients import BATCH_ROWS, Latencies, keep_pace, split_cores, use_cores
from bench.peers import jars
from bench.trickle import PARTS, PLAIN, TRIGGERS, VENUS, MeasuredRun
from bench.usage import Usage
from bench.venus_cluster import Writer
from venus.errors import NotLeader
from venus.wire import broker_pb2


def test_a_load_that_degrades_no_lane_is_no_overload() -> None:
    assert not gives_up_details_first([])
    assert not gives_up_details_first([()])
    assert gives_up_details_first([(), (4,), (4, 3)])
    assert not gives_up_details_first([(4,), (3,)])


def test_client_processes_do_not_run_on_the_brokers_cores() -> None:
    before = os.sched_getaffinity(0)
    own, theirs = split_cores()
    assert own | theirs == before
    assert not own & theirs or len(before) == 1
    with use_cores(theirs):
        assert os.sched_getaffinity(0) == theirs
    assert os.sched_getaffinity(0) == before


def test_every_lane_may_slow_down_twice_as_much_as_the_echo_server() -> None:
    idle = Latencies(health=[1.0], half=[2.0], decision=[3.0], commit=[5.0], echo=[1.0])
    loaded = Latencies(health=[3.0], half=[6.2], decision=[9.0], commit=[10.1], echo=[1.5])
    found = findings_of_latencies(OverloadResult(idle=idle, loaded=loaded), "2 cores")
    assert [(each.ours, each.met) for each in found] == [
        ("2 x", True),
        ("2 x", True),
        ("2.07 x", False),
        ("1.5 x", True),
        ("10.1 ms", True),
    ]


class SlowSource:
    """A source whose broker takes this many seconds for a batch, and the event that ends it after ten seconds."""

    def __init__(self, batch_s: float) -> None:
        self._batch_s = batch_s
        self.now = 0.0
        self.committed_batches = 0

    def send(self) -> None:
        self.committed_batches += 1
        self.now += self._batch_s

    def decide(self) -> None:
        pass

    def is_set(self) -> bool:
        return self.now >= 10.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("batch_s", "times"), [(0.1, 2.0), (0.01, 1.0)])
def test_a_flood_keeps_its_pace_whatever_is_accepted(
    batch_s: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = SlowSource(batch_s)
    monkeypatch.setattr(overload_clients, "time", source)
    assert keep_pace(source, 20.0 * BATCH_ROWS, source) == pytest.approx(times, rel=0.02)


def test_an_undecided_or_incomplete_batch_counts_as_lost_rows() -> None:
    def count_lost(offset: int, halves: int = 0) -> int:
        flood = broker_pb2.BusinessStatus(business="flood0", next_offset=offset, halves=[broker_pb2.HalfRef()] * halves)
        trickle = broker_pb2.BusinessStatus(business="trickle", next_offset=7)
        seen = OverloadResult()
        count(seen, 7, broker_pb2.BrokerStatus(businesses=[flood, trickle]))
        return seen.lost

    assert count_lost(3 * BATCH_ROWS) == 0
    assert count_lost(3 * BATCH_ROWS - 1) == 1
    assert count_lost(3 * BATCH_ROWS, halves=1) == 1


def test_a_missing_competitor_makes_its_line_missed_with_the_reason() -> None:
    assert times_peer("rows", 200.0, 100.0, 2.0, said="Kafka").met
    assert not times_peer("rows", 199.0, 100.0, 2.0, said="Kafka").met
    alone = times_peer("rows", 200.0, None, 2.0, said="no java")
    assert (alone.met, alone.peer) == (False, "no java")


def _part(name: str, ours: str) -> str:
    figure = Figure(id=name, title="rate", measure=lambda quick: [])
    return page.section(figure, [FigureResult(what="rows|s", ours=ours, goal="1", met=False)], "today, 2 cores")


def test_the_page_keeps_unmeasured_figures_in_the_order_of_the_table() -> None:
    order = ["M1", "M2", "T1"]
    first = page.merge_sections("", {"T1": _part("T1", "old"), "M1": _part("M1", "old")}, order)
    again = page.merge_sections(first, {"M1": _part("M1", "new"), "M2": _part("M2", "new")}, order)

    assert [line.split(":")[0] for line in again.splitlines() if line.startswith("## ")] == ["## M1", "## M2", "## T1"]
    assert again.count("| new |") == 2
    assert again.count("| old |") == 1
    assert "rows/s" in again, "a cell does not end where its text has a bar"
    assert page.merge_sections(again, {}, order) == again


def test_the_cost_of_triggers_is_compared_with_an_uncaptured_table() -> None:
    def run(application_s: float) -> MeasuredRun:
        parts = {part: Usage(cpu_s=0.1, switches=10) for part in PARTS}
        used = parts | {"application": Usage(cpu_s=application_s, switches=30)}
        return MeasuredRun(rate=100.0, latencies=[], used=used, seconds=1.0, cuts=100)

    found = trickle.costs_by_part({VENUS: [run(0.5)], PLAIN: [run(0.3)]})

    assert found[TRIGGERS] == pytest.approx((2.0, 0.0, 0.2))
    assert all(found[part] == pytest.approx((1.0, 0.1, 0.1)) for part in PARTS)


def test_a_competitor_without_its_jars_names_the_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VENUS_BENCH_JARS", str(tmp_path))
    assert "python -m bench.peers.jars kafka" in jars.missing("kafka")
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "kafka.jar").touch()
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert not jars.missing("kafka")


class Log:
    """The brokers' state: rows of each durable batch, and how many of them are committed."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.committed = 0


class FailingProducer:
    """A producer whose broker stops leading in the middle of each stream but the third."""

    streams = 0
    log = Log()

    def __init__(self, *_: object, **__: object) -> None:
        FailingProducer.streams += 1
        self._left = 3 if FailingProducer.streams < 3 else 1000

    def connect(self, *_: object, **__: object) -> broker_pb2.InitAck:
        rows = self.log.rows
        return broker_pb2.InitAck(
            last_batch=self.log.committed,
            last_sequence=sum(rows[: self.log.committed]),
            undecided=[
                broker_pb2.HalfRef(batch_no=n + 1, first_sequence=sum(rows[:n]) + 1, count=rows[n], digest=1)
                for n in range(self.log.committed, len(rows))
            ],
        )

    def send_half(self, half: broker_pb2.Half, **_: object) -> None:
        self._left -= 1
        if not self._left:
            raise NotLeader("it leads no more")
        assert half.batch_no == len(self.log.rows) + 1, "neither a gap nor one twice"
        self.log.rows.append(10)

    @property
    def persisted_through(self) -> int:
        return len(self.log.rows) - 1

    def decide(self, batch_no: int, *_: object) -> None:
        self.log.committed = batch_no

    def wait_until_persisted(self, *_: object) -> None: ...
    def wait_until_decided(self, *_: object) -> None: ...
    def close(self) -> None: ...


def test_a_fill_continues_at_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venus_cluster, "Producer", FailingProducer)
    writer = Writer("a:1,b:1")
    writer.stream(20, 10)

    assert FailingProducer.streams == 3
    assert (writer.committed, FailingProducer.log.committed, FailingProducer.log.rows) == (20, 20, [10] * 20)
