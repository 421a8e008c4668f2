"""Spans of cuts at a real OTLP collector; their cost while tracing is off; a collector that hangs."""

from __future__ import annotations

import logging
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.servers import BUSINESS, commit, settings
from tests.support.collectors import Collected, run_collector
from tests.support.engines.batches import half
from tests.support.listeners import drip, run_hanging_server
from tests.support.waiting import eventually
from venus.broker.service.process import start_in_thread
from venus.errors import ConfigError
from venus.process import tracing
from venus.rpc.producer import Producer

pytestmark = pytest.mark.integration


@pytest.fixture
def collector() -> Iterator[tuple[str, Collected]]:
    with run_collector() as found:
        yield found


def stage(name: str, cut: int = 17, **facts: int | str) -> tracing.CutStage:
    now_us = time.time_ns() // 1000
    return tracing.CutStage(
        name=name,
        business="main",
        cut=cut,
        captured_at_us=1_700_000_000_000_000,
        began_us=now_us - 5000,
        ended_us=now_us,
        facts=dict(facts),
    )


def test_separate_processes_contribute_to_one_trace(collector: tuple[str, Collected]) -> None:
    endpoint, taken = collector
    for role, said in (
        ("capture", [stage("captured", rows=5)]),
        ("venus broker", [stage("committed")]),
        ("target", [stage("applied", target="eu"), stage("applied", target="us")]),
    ):
        spans = tracing.start_tracing(endpoint, 1, role)
        for each in said:
            tracing.report_stage(each)
        tracing.stop_tracing(spans)

    assert [role for role, _ in taken] == ["capture", "venus broker", "target", "target"]
    assert len({span.trace_id for _, span in taken}) == 1
    assert len({span.span_id for _, span in taken}) == 4
    (root,) = (span for _, span in taken if span.name == "captured")
    assert root.parent_span_id == b""
    assert {span.parent_span_id for _, span in taken if span.name != "captured"} == {root.span_id}
    assert all(span.end_time_unix_nano - span.start_time_unix_nano == 5_000_000 for _, span in taken)
    attributes = {a.key: a.value for a in root.attributes}
    assert attributes["venus.cut"].string_value == "main/17"
    assert attributes["venus.rows"].int_value == 5


def test_a_broker_makes_a_span_of_each_cut(collector: tuple[str, Collected], tmp_path: Path) -> None:
    endpoint, taken = collector
    spans = tracing.start_tracing(endpoint, 1, "broker")
    broker = start_in_thread(settings(tmp_path / "data"), on_fatal=lambda error: None)
    try:
        with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as producer:
            producer.connect(0, 0)
            commit(producer, [half(n, rows=3) for n in range(1, 6)])
        eventually(lambda: len(taken) == 5)
    finally:
        broker.stop()
        tracing.stop_tracing(spans)
    cuts = [next(a.value.string_value for a in span.attributes if a.key == "venus.cut") for _, span in taken]
    assert cuts == [f"main/{n}" for n in range(1, 6)]


def test_every_process_samples_the_same_cuts() -> None:
    traces = [tracing.trace_id(stage("captured", cut)) for cut in range(10_000)]
    chosen = [trace for trace in traces if tracing.is_sampled(trace, 0.1)]
    assert 800 < len(chosen) < 1200
    assert not any(tracing.is_sampled(trace, 0.0) for trace in traces)
    assert all(tracing.is_sampled(trace, 1.0) for trace in traces)


def test_a_collector_that_hangs_delays_nothing() -> None:
    """More cuts than the queue holds come in a fraction of the time that one request to the collector may take."""
    with run_hanging_server(drip) as address:
        spans = tracing.start_tracing(f"http://{address}", 1, "x")
        assert spans is not None
        try:
            took_s: list[float] = []
            for cut in range(2 * tracing.QUEUE_MAX):
                began = time.monotonic()
                tracing.report_stage(stage("captured", cut))
                took_s.append(time.monotonic() - began)
            # the machine itself may pause, but not so often
            assert sorted(took_s)[-5] < tracing.TIMEOUT_S, "cuts waited for the collector"
        finally:
            tracing.remove_listener(spans)


def test_tracing_costs_next_to_nothing_when_it_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=tracing.logger.name)  # as in a process without -v
    assert not tracing.has_listener()
    each_s = min(timeit.repeat(tracing.has_listener, number=10_000, repeat=50)) / 10_000
    assert each_s < 5e-6


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_import(*_: object) -> None:
        raise ImportError

    monkeypatch.setattr(tracing, "SpanListener", fail_import)
    with pytest.raises(ConfigError, match="OpenTelemetry is not installed"):
        tracing.start_tracing("http://h:4318", 1, "x")
    assert tracing.start_tracing("", 1, "x") is None
