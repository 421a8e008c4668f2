"""Ring buffer of the charts: limited in size; gaps are shown as unknown."""

from __future__ import annotations

import random

import pytest

from venus.broker.status import history as module
from venus.broker.status.history import (
    MOMENTS_HALF_LIFE_S,
    POINTS,
    SERIES_MAX,
    SHOWN_MAX,
    STEP_S,
    FigureHistory,
    MovingMoments,
)
from venus.wire import broker_pb2


def status(
    offset: int, *, acknowledged: int = 0, oldest_us: int = 0, business: str = "main"
) -> broker_pb2.BrokerStatus:
    made = broker_pb2.BrokerStatus(free_bytes=5)
    entry = made.businesses.add(business=business, next_offset=offset, last_captured_at_us=1)
    entry.consumers.add(group="main/eu", acknowledged=acknowledged, oldest_unacknowledged_us=oldest_us)
    return made


def test_rates_are_rows_per_second() -> None:
    ring = FigureHistory()
    for step in range(4):
        assert ring.add_point(status(step * 500, acknowledged=step * 200), 1, 1000 + step * STEP_S)

    shown = ring.chart_data()

    assert shown.times == [1000 + step * STEP_S for step in range(4)]
    assert shown.series["main", "", "in_per_s"] == [None, 50.0, 50.0, 50.0]
    assert shown.series["main", "main/eu", "out_per_s"] == [None, 20.0, 20.0, 20.0]


def test_an_unmeasured_value_is_not_shown_as_zero() -> None:
    ring = FigureHistory()
    ring.add_point(status(500), 1, 1000.0)
    ring.add_point(status(0), 1, 1010.0)  # a new store
    ring.add_point(status(100), 1, 2000.0)  # the machine was suspended
    ring.add_point(broker_pb2.BrokerStatus(), 1, 2010.0)  # the business was forgotten

    assert ("main", "", "in_per_s") not in ring.chart_data().series
    assert ring.chart_data().series["main", "", "halves"] == [0.0, 0.0, 0.0, None]


def test_points_are_not_closer_than_the_step() -> None:
    ring = FigureHistory()
    assert ring.add_point(status(1), 1, 1000.0)
    assert not ring.add_point(status(1), 1, 1005.0)
    assert ring.add_point(status(1), 1, 1010.0)


def test_the_ring_is_limited_and_has_the_newest_points() -> None:
    ring = FigureHistory()
    for step in range(POINTS + 100):
        late = step == POINTS + 50
        ring.add_point(status(step, oldest_us=int((step * STEP_S - 77) * 1e6) if late else 0), 1, step * STEP_S)

    shown = ring.chart_data()

    assert len(shown.times) <= SHOWN_MAX
    assert shown.times[-1] == (POINTS + 99) * STEP_S
    assert shown.times[0] > 99 * STEP_S
    assert shown.times == sorted(shown.times)
    assert max(value or 0 for value in shown.series["main", "main/eu", "lag_s"]) == pytest.approx(77, abs=0.01)


def test_the_number_of_series_is_limited_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 8)
    ring = FigureHistory()
    for number in range(5):
        ring.add_point(status(1, business=f"b{number}"), 1, 1000 + number * STEP_S)

    shown = ring.chart_data()

    assert len(shown.series) == 8
    assert shown.left_out > 0
    assert SERIES_MAX * POINTS * 4 < 5_000_000


def test_times_follow_the_last_minutes() -> None:
    chance, found, values = random.Random(3), MovingMoments(), list[tuple[float, float]]()
    now = 0.0
    for _ in range(500):
        now += chance.choice((0.1, 1.0, 20.0))
        values.append((now, chance.gauss(5.0, 2.0)))
        found.add(values[-1][1], now)
        weights = [2.0 ** (-(now - at) / MOMENTS_HALF_LIFE_S) for at, _ in values]
        mean = sum(w * value for w, (_, value) in zip(weights, values, strict=True)) / sum(weights)
        spread = sum(w * (value - mean) ** 2 for w, (_, value) in zip(weights, values, strict=True)) / sum(weights)
        assert found.mean == pytest.approx(mean)
        assert found.variance == pytest.approx(spread, abs=1e-9)
    assert MovingMoments().variance == 0.0


def test_a_clock_that_was_set_back_makes_no_time_negative() -> None:
    found = MovingMoments()
    for now in (1000.0, 10.0, 20.0):
        found.add(4.0, now)
    assert (found.mean, found.variance) == (4.0, 0.0)
