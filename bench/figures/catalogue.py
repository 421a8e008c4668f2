"""Every figure that can be measured, in the order of the table."""

from __future__ import annotations

from bench import isolation, overload
from bench.figures import m2, r2, t5, v3, v4
from bench.figures.figure import Figure

FIGURES: tuple[Figure, ...] = (
    v3.FIGURE,
    v4.FIGURE,
    m2.FIGURE,
    t5.FIGURE,
    isolation.FIGURE,
    r2.FIGURE,
    overload.FIGURE,
)
