"""The speed of a core: other load may disturb a part of the measurement, but not its result."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, chain, repeat

import pytest

from venus.adapters.assess.report import PARTS, REFERENCE_S, measure_speed


def clock(*took_s: float) -> Callable[[], float]:
    """Return a clock with which the parts of the measurement take these times."""
    times = accumulate(chain.from_iterable(zip(repeat(0.0), took_s, strict=False)))
    return lambda: next(times)


def test_other_load_in_some_parts_does_not_affect_the_speed() -> None:
    part = REFERENCE_S / PARTS

    assert measure_speed(clock(*repeat(part, PARTS))) == pytest.approx(1.0)
    assert measure_speed(clock(part, part * 4, *repeat(part, PARTS - 3), part * 9)) == pytest.approx(1.0)
    assert measure_speed(clock(*repeat(part * 2, PARTS))) == pytest.approx(2.0), "a slow core is one all the time"
