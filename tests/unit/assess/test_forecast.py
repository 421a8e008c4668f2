"""The parts of a forecast: each figure alone; unknown figures are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.adapters.assess.forecast import (
    BROKER_COPIES,
    BROKER_ROW_BYTES,
    CUTOVER_FIXED_S,
    FIXED_S,
    LOAD_KIB_US,
    LOAD_ROW_US,
    LOAD_VALUE_US,
    POOL_ROWS,
    POOL_S,
    QUIET_S,
    ROW_BYTES_ASSUMED,
    TABLE_S,
    TARGET_ROW_BYTES,
    add_log_rates,
    add_peak,
    find_peak,
    forecast_source,
    forecast_table,
)
from venus.adapters.dialects.survey_contract import UNKNOWN_RATES, LogRates, ReadingPace, Sample, TableSize
from venus.process.runners import POOL_ROWS_MIN

PACE = ReadingPace(row_us=2.0, value_us=0.5, kib_us=8.0, trigger_us=50.0, log_row_bytes=40)
SIZE = TableSize(
    namespace="app",
    name="t",
    rows=1_000_000,
    counted=False,
    data_bytes=300_000_000,
    changes=36_000,
    over_s=3_600.0,
    sample=Sample(rows=2_000, nbytes=512_000, seconds=0.0001),
)


def test_reading_and_loading_are_rows_values_and_bytes() -> None:
    found = forecast_table(SIZE, 10, 12, PACE, 1.0)

    assert found is not None
    assert found.row_bytes == 256.0
    assert found.read_s == pytest.approx(2.0 + 0.5 * 10 + 8.0 / 4)
    assert found.load_s == pytest.approx(LOAD_ROW_US + LOAD_VALUE_US * 10 + LOAD_KIB_US / 4)
    assert found.broker_bytes == 1_000_000 * (256 + BROKER_ROW_BYTES) * BROKER_COPIES


def test_a_slow_machine_takes_longer_and_costs_the_application_the_same() -> None:
    quick, slow = forecast_table(SIZE, 10, 12, PACE, 1.0), forecast_table(SIZE, 10, 12, PACE, 3.0)

    assert quick is not None
    assert slow is not None
    assert slow.read_s == pytest.approx(3 * quick.read_s)
    assert slow.load_s == pytest.approx(3 * quick.load_s)
    assert slow.trigger_ms_per_s == quick.trigger_ms_per_s


def test_a_sample_takes_precedence_over_the_benchmarks() -> None:
    far = replace(SIZE, sample=Sample(rows=2_000, nbytes=512_000, seconds=1.0))
    found = forecast_table(far, 10, 12, PACE, 1.0)

    assert found is not None
    assert found.read_s == 500.0


def test_a_sample_of_few_rows_measures_the_query_and_not_the_rows() -> None:
    small = replace(SIZE, rows=10, sample=Sample(rows=10, nbytes=2_560, seconds=1.0))
    found = forecast_table(small, 10, 12, PACE, 1.0)

    assert found is not None
    assert found.read_s < 0.001


def test_changes_cost_triggers_and_grow_logs() -> None:
    found = forecast_table(SIZE, 10, 12, PACE, 1.0)

    assert found is not None
    assert found.changes_per_s == 10.0
    assert found.trigger_ms_per_s == pytest.approx(0.5)
    assert found.log_bytes_per_hour == 36_000 * (40 + 2 * 12)


def test_unknown_figures_are_not_invented() -> None:
    assert forecast_table(replace(SIZE, rows=None), 10, 12, PACE, 1.0) is None
    found = forecast_table(replace(SIZE, changes=None), 10, 12, PACE, 1.0)

    assert found is not None
    assert (found.changes_per_s, found.trigger_ms_per_s, found.log_bytes_per_hour) == (None, None, None)
    whole = forecast_source([found], 1_000_000, 1.0)
    assert (whole.changes_per_s, whole.log_bytes_per_hour) == (None, None)
    assert {line.unit for line in whole.lines} == {"s", "bytes"}


def test_without_a_sample_the_row_size_is_table_size_by_rows() -> None:
    bare = forecast_table(replace(SIZE, sample=None), 10, 12, PACE, 1.0)
    nothing = forecast_table(replace(SIZE, sample=None, data_bytes=None), 10, 12, PACE, 1.0)

    assert bare is not None
    assert bare.row_bytes == 300.0
    assert nothing is not None
    assert nothing.row_bytes == ROW_BYTES_ASSUMED


def test_large_values_are_added_to_the_sample() -> None:
    found = forecast_table(replace(SIZE, large_bytes=10_000_000_000), 10, 12, PACE, 1.0)

    assert found is not None
    assert found.row_bytes == 256.0 + 10_000


def test_the_total_is_the_sum_of_the_tables_and_a_start() -> None:
    one = forecast_table(SIZE, 10, 12, PACE, 2.0)
    assert one is not None
    found = forecast_source([one, one], 2_000_000, 2.0)

    assert found.fill_s == pytest.approx(2 * (one.read_s + one.load_s) + 2 * (FIXED_S + 2 * TABLE_S + POOL_S))
    assert found.cutover_s == pytest.approx(QUIET_S + 2 * CUTOVER_FIXED_S + 2 * one.compare_s)
    assert found.changes_per_s == 20.0
    assert all(line.formula for line in found.lines)


def test_a_large_load_includes_the_start_of_processes() -> None:
    found = forecast_table(SIZE, 10, 12, PACE, 1.0)
    assert found is not None
    few, many = forecast_source([found], POOL_ROWS - 1, 2.0), forecast_source([found], POOL_ROWS, 2.0)

    assert POOL_ROWS == POOL_ROWS_MIN
    assert many.load_s - few.load_s == pytest.approx(2 * POOL_S)
    assert many.fill_s - few.fill_s == pytest.approx(2 * POOL_S)


def test_a_target_has_the_rows_and_the_indexes_of_the_source() -> None:
    found = forecast_table(replace(SIZE, index_bytes=7_000), 10, 12, PACE, 1.0)
    assert found is not None
    assert found.target_bytes == 1_000_000 * (256 + TARGET_ROW_BYTES) + 7_000
    whole = forecast_source([found, found], 2_000_000, 1.0)
    assert whole.target_bytes == 2 * found.target_bytes
    assert "size of a PostgreSQL target (estimate)" in {line.what for line in whole.lines}


@pytest.mark.parametrize(
    ("readings", "peak"),
    [
        ([(0.0, {"a": 5, "b": 1}), (10.0, {"a": 25, "b": 1}), (20.0, {"a": 26, "b": 2})], 2.0),
        ([(0.0, {"a": 100}), (10.0, {"a": 3}), (20.0, {"a": 13})], 1.0),  # the counter was reset
        ([(0.0, {"a": 100, "b": 0}), (10.0, {"a": 3, "b": 20})], 2.0),
        ([(0.0, {"a": 1}), (10.0, {})], None),  # the table is gone
        ([(0.0, {"a": 1})], None),
        ([], None),
    ],
)
def test_the_peak_is_the_highest_rate_between_two_readings(
    readings: list[tuple[float, dict[str, int]]], peak: float | None
) -> None:
    assert find_peak(readings) == peak


def test_the_triggers_cost_more_at_the_peak() -> None:
    found = add_peak(forecast_source([], 0, 1.0), 400.0, PACE)
    assert (found.peak_changes_per_s, found.peak_trigger_ms_per_s) == (400.0, 20.0)
    assert [line.value for line in found.lines[-2:]] == [400.0, 20.0]


def test_redo_and_undo_grow_with_the_changes() -> None:
    pace = replace(PACE, redo_bytes=1_200, undo_bytes=400)
    table = forecast_table(SIZE, 10, 12, pace, 1.0)  # 10 changed rows a second
    assert table is not None
    plain = forecast_source([table], 1, 1.0)
    found = add_log_rates(plain, LogRates(redo=5_000, undo=None), pace)

    assert found.redo_bytes_per_hour == pytest.approx(5_000 * 3600)
    assert found.redo_with_venus_bytes_per_hour == pytest.approx((5_000 + 10 * 1_200) * 3600)
    assert (found.undo_bytes_per_hour, found.undo_with_venus_bytes_per_hour) == (None, None)
    assert [line.what for line in found.lines[-2:]] == ["redo log (WAL) today", "redo log (WAL) with VENUS"]
    assert add_log_rates(plain, UNKNOWN_RATES, pace) == plain
    still = replace(plain, changes_per_s=None)
    assert add_log_rates(still, LogRates(redo=1), pace).redo_with_venus_bytes_per_hour is None
