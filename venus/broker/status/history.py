"""History of a broker's figures for the charts of the page, in memory and bounded. Pure.

The history has one point every `STEP_S` seconds, for `KEPT_S` seconds. A figure that was unknown at some time is NaN
at that point. Rates are computed from offsets, which only grow. If an offset shrank (another store, another leader),
the rate is unknown.

This module also has the alarms that a broker derives from its own status: adapters that are away or late. `venus
status` also reads the databases and derives its own alarms (venus/cli/overview.py), in the same words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from venus.network.topology import PULLS_AS
from venus.rpc.conditions import SWITCHING, apply_problems, clock_problem, set_problems, silence_sentence
from venus.wire import broker_pb2

STEP_S = 10.0
KEPT_S = 6 * 3600.0
POINTS = int(KEPT_S / STEP_S)
#: Limit of series, each with 4 bytes a point: 4.3 MB in all. Later series are not kept; the page shows their number.
SERIES_MAX = 500
#: Limit of points in a chart.
SHOWN_MAX = 240

#: Business, consumer group (or ""), and figure.
Name = tuple[str, str, str]
#: Figures shown as the mean of an interval; all others are shown as its maximum.
RATES = ("in_per_s", "out_per_s")


@dataclass(frozen=True, slots=True)
class ChartData:
    """Data of the charts: times in Unix seconds, and the values of each series at them."""

    times: list[float]
    series: dict[Name, list[float | None]]
    left_out: int


#: Half-life of the values in MovingMoments.
MOMENTS_HALF_LIFE_S = 300.0


@dataclass(slots=True)
class MovingMoments:
    """Mean and variance of a figure over the last minutes; newer values count more. `now` may come from any clock."""

    mean: float = 0.0
    _weight: float = 0.0
    _squares: float = 0.0
    _at: float = 0.0

    def add(self, value: float, now: float) -> None:
        """Add a value."""
        kept = 2.0 ** (-max(0.0, now - self._at) / MOMENTS_HALF_LIFE_S)
        self._at = now
        self._weight = self._weight * kept + 1.0
        before = value - self.mean
        self.mean += before / self._weight
        self._squares = self._squares * kept + before * (value - self.mean)

    @property
    def variance(self) -> float:
        """The mean square of the distance from the mean; 0 with fewer than two values."""
        return max(0.0, self._squares / self._weight) if self._weight else 0.0


class FigureHistory:
    """Ring buffer of all series."""

    def __init__(self) -> None:
        self._times = np.full(POINTS, np.nan)
        self._series: dict[Name, NDArray[np.float32]] = {}
        self._offsets: dict[Name, int] = {}
        self._next = 0
        self._last_s = -math.inf
        self._left_out: set[Name] = set()

    def add_point(self, status: broker_pb2.BrokerStatus, resident_bytes: int, now_s: float) -> bool:
        """Add a point if one is due; return whether it was."""
        elapsed_s = now_s - self._last_s
        if 0 <= elapsed_s < STEP_S * 0.9:
            return False
        found = dict(current_figures(status, resident_bytes, now_s))
        found |= self._rates(dict(offsets(status)), elapsed_s)
        at = self._next % POINTS
        self._times[at] = now_s
        for old in self._series.values():
            old[at] = np.nan
        for name, value in found.items():
            if (values := self._values(name)) is not None:
                values[at] = value
        self._next += 1
        self._last_s = now_s
        self._drop_empty_series()
        return True

    def shift_times(self, by_s: float) -> None:
        """Shift all times after the clock was set forward by `by_s` seconds. The points keep their order."""
        self._times += by_s
        self._last_s += by_s

    def chart_data(self) -> ChartData:
        """Return at most SHOWN_MAX points, the oldest first."""
        count = min(self._next, POINTS)
        order = np.arange(self._next - count, self._next) % POINTS
        width = max(1, -(-count // SHOWN_MAX))
        # intervals end with the newest point, so the last one is always whole
        edges = list(range(count % width if count % width else width, count + 1, width)) if count else []
        times = [float(self._times[order[edge - 1]]) for edge in edges]
        return ChartData(
            times=times,
            series={name: _pool(values[order], edges, width, name[2]) for name, values in self._series.items()},
            left_out=len(self._left_out),
        )

    def _rates(self, now: Mapping[Name, int], elapsed_s: float) -> dict[Name, float]:
        """Return the rates since the last point; {} after a long pause or if the clock was set back."""
        before, self._offsets = self._offsets, dict(now)
        # a pause of the process would show as a rate of zero, which was not measured
        if not 0 < elapsed_s < 6 * STEP_S:
            return {}
        grown = {name: offset - before[name] for name, offset in now.items() if name in before}
        return {name: rows / elapsed_s for name, rows in grown.items() if rows >= 0}

    def _values(self, name: Name) -> NDArray[np.float32] | None:
        """Return the points of a series, created if needed; None = there are too many series."""
        if name not in self._series:
            if len(self._series) >= SERIES_MAX:
                if len(self._left_out) < SERIES_MAX:
                    self._left_out.add(name)
                return None
            self._series[name] = np.full(POINTS, np.nan, np.float32)
        return self._series[name]

    def _drop_empty_series(self) -> None:
        """Drop series without any value, once an hour."""
        if self._next % int(3600 / STEP_S):
            return
        gone = [name for name, values in self._series.items() if bool(np.isnan(values).all())]
        for name in gone:
            del self._series[name]
        if gone:
            self._left_out.clear()


def current_figures(status: broker_pb2.BrokerStatus, resident_bytes: int, now_s: float) -> Iterator[tuple[Name, float]]:
    """Yield the current figures."""
    yield ("", "", "resident_bytes"), float(resident_bytes)
    yield ("", "", "free_bytes"), float(status.free_bytes)
    yield ("", "", "buffer_bytes"), float(status.buffer_bytes)
    for entry in status.businesses:
        name = entry.business
        if entry.last_captured_at_us:
            yield (name, "", "capture_lag_s"), max(0.0, now_s - entry.last_captured_at_us / 1e6)
        yield (name, "", "full_data_behind"), float(entry.next_offset - entry.materialised_offset)
        yield (name, "", "halves"), float(entry.halves_total)
        for consumer in entry.consumers:
            oldest_us = consumer.oldest_unacknowledged_us
            yield (name, consumer.group, "backlog_rows"), float(consumer.backlog_rows)
            yield (name, consumer.group, "lag_s"), max(0.0, now_s - oldest_us / 1e6) if oldest_us else 0.0


def offsets(status: broker_pb2.BrokerStatus) -> Iterator[tuple[Name, int]]:
    """Yield the offsets from which rates are computed."""
    for entry in status.businesses:
        yield (entry.business, "", "in_per_s"), entry.next_offset
        for consumer in entry.consumers:
            yield (entry.business, consumer.group, "out_per_s"), consumer.acknowledged


def _pool(values: NDArray[np.float32], edges: list[int], width: int, figure: str) -> list[float | None]:
    """Return one value for each interval: the mean of a rate, the maximum of another figure."""
    pooled: list[float | None] = []
    for edge in edges:
        part = values[max(0, edge - width) : edge]
        known = part[~np.isnan(part)]
        if not known.size:
            pooled.append(None)
        else:
            pooled.append(round(float(known.mean() if figure in RATES else known.max()), 3))
    return pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The time by this broker's clock, and how far that clock was set back since the start."""

    us: int
    set_back_us: int = 0

    def age_s(self, moment_us: int) -> float:
        """Return a moment's age by this broker's clock. A future moment is from before the clock was set back."""
        return (self.us - moment_us + (self.set_back_us if moment_us > self.us else 0)) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLimits:
    """Ages beyond which capture or a target is late."""

    capture_s: float
    target_s: float


def derive_alarms(status: broker_pb2.BrokerStatus, now: ClockReading, late: LateLimits) -> Iterator[tuple[str, str]]:
    """Yield business and alarm for each adapter that is away or late, of businesses that this broker leads."""
    for entry in status.businesses:
        if not is_led_elsewhere(entry):
            yield from (
                (entry.business, text)
                for text in [*_capture_alarms(entry, now, late.capture_s), *_target_alarms(entry, now, late.target_s)]
            )


def is_led_elsewhere(entry: broker_pb2.BusinessStatus) -> bool:
    """Return whether another broker of the cluster serves the producers and consumers of a business."""
    return entry.HasField("replication") and not entry.replication.mode


def is_switching(entry: broker_pb2.BusinessStatus) -> bool:
    """Return whether a connected target reports an unfinished switch of the application."""
    reports = (consumer.reported.report for consumer in entry.consumers if consumer.connected)
    return any(table.state == SWITCHING for report in reports for table in report.tables)


def _capture_alarms(entry: broker_pb2.BusinessStatus, now: ClockReading, late_s: float) -> Iterator[str]:
    """Yield an alarm if capture of a business is disconnected or silent, or if its clock seems wrong."""
    if not entry.last_captured_at_us or entry.HasField("mirror"):
        return  # nothing was ever captured, or it is captured at another set
    captured_us, committed_us = entry.last_captured_at_us, entry.last_committed_at_us or entry.last_captured_at_us
    if not entry.producer and is_switching(entry):
        return  # the switch has ended capture, and its own alarm says what to do
    if not entry.producer:
        age_s = max(0.0, (now.us - captured_us) / 1e6)
        yield (
            "source -> broker: capture is not connected; "
            f"the newest change at the broker is {age_s:,.0f} s old; is `venus sync` running?"
        )
        return
    # only this broker's clock counts, the monotonic one if it saw the commit; the source's clock may differ
    silent_s = entry.committed_ago_ms / 1000 if entry.HasField("committed_ago_ms") else now.age_s(committed_us)
    if silent_s > late_s and not (entry.HasField("source") and entry.source.report.paused):
        yield silence_sentence(silent_s, max(entry.halves_total, len(entry.halves)))
    elif said := clock_problem((committed_us - captured_us) / 1e6, late_s):
        yield said


def _target_alarms(entry: broker_pb2.BusinessStatus, now: ClockReading, late_s: float) -> Iterator[str]:
    """Yield alarms for targets and downstream sets that are disconnected or late."""
    for consumer in entry.consumers:
        if consumer.group.startswith(PULLS_AS):
            yield from set_problems(
                consumer.group,
                connected=consumer.connected,
                backlog_rows=consumer.backlog_rows,
                late_s=now.age_s(consumer.oldest_unacknowledged_us) if consumer.oldest_unacknowledged_us else 0.0,
                late_max_s=late_s,
            )
            continue
        if consumer.HasField("reported") and (consumer.reported.report.paused or consumer.reported.report.cut_over):
            continue  # a pause has an alarm of its own, and a cut-over is intended
        yield from apply_problems(
            consumer.group.removeprefix(f"{entry.business}/"),
            connected=consumer.connected,
            backlog_rows=consumer.backlog_rows,
            late_s=now.age_s(consumer.oldest_unacknowledged_us) if consumer.oldest_unacknowledged_us else 0.0,
            late_max_s=late_s,
        )
