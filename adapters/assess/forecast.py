"""Forecast from a survey's figures: duration of fill and cut-over, cost of triggers, disk space. Pure.

bench/forecast.py measured every constant on one benchmark machine. `speed` is how many times as long the same work
takes on this machine. A table of unknown size is left out of the forecast, and the report lists it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from venus.adapters.dialects.survey_contract import LogRates, ReadingPace, TableSize

_HOUR_S = 3600.0
_KIB = 1024.0

#: Seconds to start processes, to read dictionaries, and for the first and the last cut; and seconds per table, for its
#: statements.
FIXED_S = 2.5
TABLE_S = 0.006
#: Time to write a row and its key to a PostgreSQL target: for the row, for each value, for each KiB.
LOAD_ROW_US, LOAD_VALUE_US, LOAD_KIB_US = 0.8, 0.15, 2.0
#: A load of at least POOL_ROWS_MIN rows (runners.py) starts processes, which takes this long on two cores.
POOL_ROWS, POOL_S = 50_000, 1.2
#: Time to read and hash a row on all three sides in a cut-over: for the row, for each value, for each KiB.
COMPARE_ROW_US, COMPARE_VALUE_US, COMPARE_KIB_US = 8.0, 1.2, 10.0
CUTOVER_FIXED_S = 3.0
#: How long the source has to be at rest before a cut-over compares the rows (`--quiet`).
QUIET_S = 5.0
#: Overhead of a row at the broker, in bytes: its entries in the log and in the full data.
BROKER_ROW_BYTES = 40
#: Copies of a row at the broker: one in the log until every target has it, one in the full data.
BROKER_COPIES = 2
#: Overhead of a row in PostgreSQL, in bytes, if its page is nearly full.
TARGET_ROW_BYTES = 32
#: Default for a table without a sample.
ROW_BYTES_ASSUMED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForecast:
    """Forecast of one table."""

    row_bytes: float  # the size of its rows as text, in messages
    read_s: float
    load_s: float
    compare_s: float
    broker_bytes: int
    #: At one PostgreSQL target, with indexes as large as the source's.
    target_bytes: int
    changes_per_s: float | None
    #: Extra time of the application's transactions, in milliseconds per second.
    trigger_ms_per_s: float | None
    #: Growth of its log in an hour without capture.
    log_bytes_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastLine:
    """One figure of the forecast, with its formula."""

    what: str
    value: float
    unit: str  # s, bytes, bytes/h, /s, ms/s
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of all tables together."""

    rows: int
    fill_s: float
    read_s: float
    load_s: float
    cutover_s: float
    broker_bytes: int
    target_bytes: int
    changes_per_s: float | None
    trigger_ms_per_s: float | None
    log_bytes_per_hour: float | None
    speed: float
    #: The highest observed rate of changes, and the cost of the triggers at that rate; None = not observed.
    peak_changes_per_s: float | None = None
    peak_trigger_ms_per_s: float | None = None
    #: Bytes that the whole server writes into its redo log and its undo: today, and with the triggers.
    redo_bytes_per_hour: float | None = None
    redo_with_venus_bytes_per_hour: float | None = None
    undo_bytes_per_hour: float | None = None
    undo_with_venus_bytes_per_hour: float | None = None
    lines: tuple[ForecastLine, ...] = ()


def forecast_table(
    size: TableSize, columns: int, key_bytes: int, pace: ReadingPace, speed: float
) -> TableForecast | None:
    """Return the forecast of a table; None if its number of rows is unknown."""
    if size.rows is None:
        return None
    row_bytes = _row_bytes(size)
    read_s = size.rows * _seconds_per_row(pace.row_us, pace.value_us, pace.kib_us, columns, row_bytes) * speed
    if size.sample and size.sample.rows:  # over a slow network the sample is more accurate than the bench
        read_s = max(read_s, _read_seconds(size))
    per_s = size.changes / size.over_s if size.changes is not None and size.over_s > 0 else None
    return TableForecast(
        row_bytes=row_bytes,
        read_s=read_s,
        load_s=size.rows * _seconds_per_row(LOAD_ROW_US, LOAD_VALUE_US, LOAD_KIB_US, columns, row_bytes) * speed,
        compare_s=size.rows
        * _seconds_per_row(COMPARE_ROW_US, COMPARE_VALUE_US, COMPARE_KIB_US, columns, row_bytes)
        * speed,
        broker_bytes=round(size.rows * (row_bytes + BROKER_ROW_BYTES) * BROKER_COPIES),
        target_bytes=round(size.rows * (row_bytes + TARGET_ROW_BYTES)) + (size.index_bytes or 0),
        changes_per_s=per_s,
        trigger_ms_per_s=None if per_s is None else per_s * pace.trigger_us / 1000,
        log_bytes_per_hour=None if per_s is None else per_s * _HOUR_S * (pace.log_row_bytes + 2 * key_bytes),
    )


def _seconds_per_row(row: float, value: float, kib: float, columns: int, row_bytes: float) -> float:
    """Return the seconds that a row takes, from the microseconds of a row, of a value in it and of a KiB."""
    return (row + value * columns + kib * row_bytes / _KIB) / 1e6


def _row_bytes(size: TableSize) -> float:
    """Return the average size of a row, from the sample or the statistics; without either, an assumption."""
    large = size.large_bytes / size.rows if size.rows else 0.0
    if size.sample and size.sample.rows:
        return size.sample.nbytes / size.sample.rows + large
    return size.data_bytes / size.rows if size.data_bytes and size.rows else ROW_BYTES_ASSUMED


def _read_seconds(size: TableSize) -> float:
    """Return how long reading all rows takes at the sample's rate; the first round trip counts once."""
    assert size.sample is not None
    assert size.rows is not None
    return size.sample.seconds * size.rows / size.sample.rows if size.sample.rows >= _TELLING_ROWS else 0.0


#: A smaller sample would measure the query rather than the rows.
_TELLING_ROWS = 1_000


#: Value, name, unit, formula.
_Figure = tuple[float | None, str, str, str]


def forecast_source(tables: Iterable[TableForecast], rows: int, speed: float) -> Forecast:
    """Add up the forecasts of the tables, and add the fixed times of a fill and a cut-over."""
    known = list(tables)
    pool_s = POOL_S * speed if rows >= POOL_ROWS else 0.0
    read_s, load_s = sum(t.read_s for t in known), pool_s + sum(t.load_s for t in known)
    fixed_s = (FIXED_S + TABLE_S * len(known)) * speed
    compare_s = sum(t.compare_s for t in known)
    forecast = Forecast(
        rows=rows,
        fill_s=fixed_s + read_s + load_s,
        read_s=read_s,
        load_s=load_s,
        cutover_s=QUIET_S + CUTOVER_FIXED_S * speed + compare_s,
        broker_bytes=sum(t.broker_bytes for t in known),
        target_bytes=sum(t.target_bytes for t in known),
        changes_per_s=_sum_known(t.changes_per_s for t in known),
        trigger_ms_per_s=_sum_known(t.trigger_ms_per_s for t in known),
        log_bytes_per_hour=_sum_known(t.log_bytes_per_hour for t in known),
        speed=speed,
    )
    return _add_lines(forecast, fixed_s, compare_s, len(known))


#: Counters of changes by table, and when they were read.
Counters = tuple[float, Mapping[str, int]]


def find_peak(readings: Sequence[Counters]) -> float | None:
    """Return the highest number of changes a second between two readings; None if no interval has a rate. Pure.

    If a counter has become smaller, it was reset, and that interval is computed without its table.
    """
    rates = []
    for (began, before), (ended, after) in itertools.pairwise(readings):
        changes = [after[table] - count for table, count in before.items() if after.get(table, -1) >= count]
        if changes and ended > began:
            rates.append(sum(changes) / (ended - began))
    return max(rates, default=None)


def add_peak(f: Forecast, changes_per_s: float, pace: ReadingPace) -> Forecast:
    """Return the forecast with the highest observed rate of changes."""
    trigger_ms = changes_per_s * pace.trigger_us / 1000
    figures = [
        (changes_per_s, "changed rows at the peak", "/s", "the highest rate between two readings of the counters"),
        (trigger_ms, "cost of the triggers then", "ms/s", "the same x microseconds of a trigger"),
    ]
    lines = tuple(ForecastLine(what=what, value=v, unit=unit, formula=how) for v, what, unit, how in figures)
    return replace(f, peak_changes_per_s=changes_per_s, peak_trigger_ms_per_s=trigger_ms, lines=(*f.lines, *lines))


def add_log_rates(f: Forecast, rates: LogRates, pace: ReadingPace) -> Forecast:
    """Return the forecast with the growth of the server's redo and undo logs, today and with the triggers."""
    lines, found = [*f.lines], dict[str, Any]()
    for name, shown, rate, nbytes in (
        ("redo", "redo log (WAL)", rates.redo, pace.redo_bytes),
        ("undo", "undo", rates.undo, pace.undo_bytes),
    ):
        if rate is None:
            continue
        today = found[f"{name}_bytes_per_hour"] = rate * _HOUR_S
        how = "the whole server's counter, divided by the time it covers"
        lines.append(ForecastLine(what=f"{shown} today", value=today, unit="bytes/h", formula=how))
        if f.changes_per_s is not None and nbytes:
            after = found[f"{name}_with_venus_bytes_per_hour"] = today + f.changes_per_s * nbytes * _HOUR_S
            how = f"today + changed rows/s x 3600 x {nbytes:,} bytes for a row of a log and its removal"
            lines.append(ForecastLine(what=f"{shown} with VENUS", value=after, unit="bytes/h", formula=how))
    return replace(f, lines=tuple(lines), **found)


def _sum_known(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def _add_lines(f: Forecast, fixed_s: float, compare_s: float, tables: int) -> Forecast:
    """Return the forecast with a line for each known figure, which explains its formula."""
    figures = [*_time_figures(f, fixed_s, compare_s, tables), *_rate_figures(f)]
    lines = (
        ForecastLine(what=what, value=v, unit=unit, formula=how) for v, what, unit, how in figures if v is not None
    )
    return replace(f, lines=tuple(lines))


def _time_figures(f: Forecast, fixed_s: float, compare_s: float, tables: int) -> list[_Figure]:
    """Return the durations of the forecast, each with its name, unit and formula."""
    start = (
        f"start {fixed_s:.1f} s ({FIXED_S:g} s + {tables:,} tables x {TABLE_S:g} s) + reading {f.read_s:.1f} s"
        f" + loading {f.load_s:.1f} s; speed {f.speed:.2f} (this machine's time for what the bench's takes 1)"
    )
    read = "sum of rows x the larger of (row + columns x value + KiB x kib) x speed and the sample's seconds a row"
    load = (
        f"sum of rows x ({LOAD_ROW_US:g} + {LOAD_VALUE_US:g} x columns + {LOAD_KIB_US:g} x KiB) us x speed,"
        f" and {POOL_S:g} s x speed for its processes if there are {POOL_ROWS:,} rows or more"
    )
    rest = (
        f"quiet {QUIET_S:g} s + {CUTOVER_FIXED_S:g} s x speed + comparing {compare_s:.1f} s: rows x"
        f" ({COMPARE_ROW_US:g} + {COMPARE_VALUE_US:g} x columns + {COMPARE_KIB_US:g} x KiB) us x speed;"
        " plus the lag of capture and apply when it begins"
    )
    return [
        (f.fill_s, "first fill and load (`venus migrate`)", "s", start),
        (f.read_s, "reading at the source", "s", read),
        (f.load_s, "loading one target", "s", load),
        (f.cutover_s, "cut-over, the application at rest", "s", rest),
    ]


def _rate_figures(f: Forecast) -> list[_Figure]:
    """Return the sizes and rates of the forecast, each with its name, unit and formula."""
    broker = (
        f"sum of rows x (bytes of a row + {BROKER_ROW_BYTES}) x {BROKER_COPIES}: once in the log until"
        " every target has it, once in the full data; plus the backlog of the slowest target"
    )
    target = f"sum of rows x (bytes of a row + {TARGET_ROW_BYTES}) + bytes of the source's indexes"
    triggers = "changed rows/s x microseconds of a trigger: the additional time of all sessions together, each second"
    logs = "changes/s x 3600 x (a log row + twice its key)"
    return [
        (f.broker_bytes, "disk of the broker", "bytes", broker),
        (f.target_bytes, "size of a PostgreSQL target (estimate)", "bytes", target),
        (f.changes_per_s, "changed rows", "/s", "the database's own counts, divided by the time they cover"),
        (f.trigger_ms_per_s, "cost of the triggers", "ms/s", triggers),
        (f.log_bytes_per_hour, "growth of the logs without capture", "bytes/h", logs),
    ]
