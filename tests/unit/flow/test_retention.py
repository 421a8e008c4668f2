"""Bytes kept for unknown readers, compared with a model that recomputes them from the whole history."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from venus.flow.retention import HALF_LIFE_S, MEASURE_EVERY_S, REMEMBERED_MAX, WINDOW_S, MeasuredRetention

LEAST, MOST = 1_000, 1_000_000


def retention(kept: int = 0, now: float = 0.0) -> MeasuredRetention:
    return MeasuredRetention(bytes_min=LEAST, bytes_max=MOST, kept_bytes=kept, written_bytes=0, now=now)


@dataclass
class Model:
    """The whole history: absences as (end, length), and sizes as (time, computed product)."""

    kept: int
    absences: list[tuple[float, float]] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)
    raises: list[tuple[float, float]] = field(default_factory=list)
    measured: tuple[float, int] = (0.0, 0)

    def size(self, now: float) -> int:
        """Return the last raised size, halved for each full hour since."""
        at, size = (self.raises or [(0.0, self.kept)])[-1]
        steps = int((now - at) / MEASURE_EVERY_S)
        return round(min(max(size, LEAST), MOST) * math.pow(0.5, steps * MEASURE_EVERY_S / HALF_LIFE_S))

    def mean(self, now: float) -> float:
        """Return the mean of the absences that ended within the last day."""
        lengths = [length for end, length in self.absences if end > now - WINDOW_S]
        return sum(lengths) / len(lengths) if lengths else 0.0

    def measure(self, written: int, now: float) -> None:
        """Measure, if the interval has passed."""
        at, before = self.measured
        if now - at < MEASURE_EVERY_S:
            return
        needed = (written - before) / (now - at) * self.mean(now)
        self.measured = now, written
        if needed >= max(self.size(now), LEAST):
            self.raises.append((now, needed))


def test_the_size_equals_the_model_over_random_histories() -> None:
    chance = random.Random(7)
    raised = 0
    for _ in range(300):
        kept = chance.choice((0, 50_000, 10 * MOST))
        found, model = retention(kept), Model(kept)
        now, written = 0.0, 0
        for _ in range(chance.randrange(20, 120)):
            now += chance.choice((0.5, 7.0, 31.0, 31.0, 200.0, 4_000.0, WINDOW_S / 3))
            written += chance.choice((0, 10, 3_000, 500_000))
            name = chance.choice("abc")
            if chance.random() < 0.5:
                found.on_leave(name, now)
                model.left[name] = now
            else:
                found.on_return(name, now)
                if (left := model.left.pop(name, None)) is not None:
                    model.absences.append((now, now - left))
            found.measure(written, now)
            model.measure(written, now)
            assert found.size(now) == pytest.approx(min(max(model.size(now), LEAST), MOST), abs=2)
            assert LEAST <= found.size(now) <= MOST
        raised += len(model.raises)
    assert raised > 300


def test_the_size_is_rate_times_mean_absence_and_is_halved_each_hour() -> None:
    found = retention()
    for left, back in ((0.0, 10.0), (10.0, 40.0)):
        found.on_leave("a", left)
        found.on_return("a", back)
    assert (found.mean_absence_s, found.absences) == (20.0, 2)
    found.measure(100_000, 100.0)
    assert (found.bytes_per_s, found.size(100.0)) == (1000.0, 20_000)
    found.measure(100_000, 200.0)
    assert found.size(100.0 + HALF_LIFE_S) == 10_000
    assert found.size(100.0 + HALF_LIFE_S + MEASURE_EVERY_S / 2) == 10_000, "it changes every half minute"
    assert found.size(100.0 + 20 * HALF_LIFE_S) == LEAST


def test_a_restart_keeps_the_existing_queue() -> None:
    found = retention(kept=80_000, now=50.0)
    assert found.size(50.0) == 80_000
    assert found.size(50.0 + HALF_LIFE_S) == 40_000
    assert retention(kept=10 * MOST).size(0.0) == MOST


def test_absences_count_for_a_day() -> None:
    found = retention()
    found.on_leave("a", 0.0)
    found.on_return("a", 60.0)
    found.measure(0, WINDOW_S)
    assert found.absences == 1
    found.measure(0, WINDOW_S + 61.0)
    assert (found.absences, found.mean_absence_s) == (0, 0.0)


def test_a_new_reader_does_not_count_as_absent() -> None:
    found = retention()
    found.on_return("a", 1000.0)
    assert found.absences == 0


def test_memory_is_bounded() -> None:
    found = retention()
    for number in range(3 * REMEMBERED_MAX):
        found.on_leave(f"r{number}", float(number))
    assert len(found._left_at) == REMEMBERED_MAX
    for number in range(3 * REMEMBERED_MAX):
        found.on_leave("a", float(number))
        found.on_return("a", number + 0.5)
    assert found.absences == REMEMBERED_MAX
    assert found.mean_absence_s == pytest.approx(0.5)
