"""The demo's one-line comparison of its forecast with the result."""

from __future__ import annotations

from pathlib import Path

from venus.cli.demo.story import compare_with_forecast, largest_folder_bytes

FORECAST = {"rows": 1_000, "fill_seconds": 4.0, "broker_bytes": 2 << 20}


def test_the_factor_is_the_error_in_either_direction() -> None:
    slower = compare_with_forecast(FORECAST, rows=1_005, seconds=8.0, disk_bytes=1 << 20)
    quicker = compare_with_forecast(FORECAST, rows=1_005, seconds=2.0, disk_bytes=1 << 20)

    assert slower == (
        "forecast 1,000 rows in 4.0 s, at most 2.0 MiB at the broker;"
        " it took 8.0 s (factor 2.0) for 1,005 rows, 1.0 MiB"
    )
    assert "(factor 2.0)" in quicker


def test_the_disk_figure_is_that_of_the_largest_broker(tmp_path: Path) -> None:
    for name, size in (("data-a", 10), ("data-b", 30)):
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "inside" / "file").write_bytes(bytes(size))

    assert largest_folder_bytes(tmp_path.glob("data*")) == 30
    assert largest_folder_bytes([]) == 0
