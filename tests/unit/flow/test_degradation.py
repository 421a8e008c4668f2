"""Lane 4 is given up first and resumed last, no lane flaps, and lane 0 is never given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from venus.flow.degradation import Degradation, Lane, Watermark

CPU = Watermark(resource="CPU", high=90, low=70, sustain_s=60, deepest=Lane.DETAILS, unit=" %")
LAG = Watermark(resource="lag", high=150, low=50, sustain_s=5, deepest=Lane.HALVES, unit=" ms")


def build_degradation() -> Degradation:
    return Degradation((CPU, LAG), restore_s=30)


def lanes(degradation: Degradation) -> list[Lane]:
    return [found.lane for found in degradation.degraded]


def test_lanes_are_given_up_one_by_one_and_resumed_in_the_opposite_order() -> None:
    degradation, seen = build_degradation(), []
    for second in range(40):
        degradation.step({"lag": 200.0, "CPU": 10.0}, second)
        seen.append(len(degradation.degraded))
    assert lanes(degradation) == [Lane.DETAILS, Lane.FULL_DATA, Lane.INCREMENTS, Lane.HALVES]
    assert [seen.index(n) for n in range(1, 5)] == [5, 11, 17, 23], "each further lane after its own time"
    assert degradation.degraded[0].reason == "lag is at 200 ms, the limit is 150 ms"
    assert degradation.degraded[0].since == 5
    assert not degradation.is_degraded(Lane.CONTROL)
    back = [degradation.step({"lag": 0.0}, 40 + second) for second in range(200)]
    assert [n for n, changes in enumerate(back) if changes] == [30, 60, 90, 120]
    assert back[30] == ["lane 1 (halves) is served fully again"]
    assert not degradation.degraded


def test_a_resource_degrades_no_further_than_its_own_lane() -> None:
    degradation = build_degradation()
    for second in range(1000):
        degradation.step({"CPU": 100.0}, second)
    assert lanes(degradation) == [Lane.DETAILS]


def test_between_the_watermarks_no_lane_changes() -> None:
    degradation = build_degradation()
    for second in range(10):
        degradation.step({"lag": 200.0}, second)
    held = lanes(degradation)
    assert held == [Lane.DETAILS]
    for second in range(10, 1000):
        assert degradation.step({"lag": 100.0}, second) == []
    assert lanes(degradation) == held


def test_a_short_peak_degrades_nothing() -> None:
    degradation = build_degradation()
    for second in range(1000):
        degradation.step({"lag": 500.0 if second % 5 else 0.0}, second)
    assert not degradation.degraded


def test_a_resource_without_watermark_or_reading_is_ignored() -> None:
    degradation = Degradation((Watermark(resource="CPU", high=0, low=0, sustain_s=0, deepest=Lane.HALVES),), 1)
    for second in range(10):
        assert degradation.step({"CPU": 1e9, "other": 1e9}, second) == []
    assert build_degradation().step({}, 0) == []


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 120), st.floats(0, 20)), max_size=150))
def test_the_given_up_lanes_are_always_consecutive_from_four(readings: list[tuple[float, float, float]]) -> None:
    degradation, now = build_degradation(), 0.0
    for lag, cpu, later in readings:
        now += later
        before = lanes(degradation)
        changes = degradation.step({"lag": lag, "CPU": cpu}, now)
        after = lanes(degradation)
        assert after == [Lane.DETAILS, Lane.FULL_DATA, Lane.INCREMENTS, Lane.HALVES][: len(after)]
        assert len(changes) == abs(len(after) - len(before)) <= 1
        for lane in Lane:
            assert degradation.is_degraded(lane) == (lane in after)
