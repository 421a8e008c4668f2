"""Every figure that can be measured, in the order of the table."""

from __future__ import annotations

from bench import isolation, overload
from bench.figures import m1, m2, m3, m4, m5, r2, s1, s2, s3, t1, t2, t3, t5, t6, t7, v3, v4, x1
from bench.figures.figure import Figure

FIGURES: tuple[Figure, ...] = (
    v3.FIGURE,
    v4.FIGURE,
    m1.FIGURE,
    m2.FIGURE,
    m3.FIGURE,
    m4.FIGURE,
    m5.FIGURE,
    t1.FIGURE,
    t2.FIGURE,
    t3.FIGURE,
    t5.FIGURE,
    t6.FIGURE,
    t7.FIGURE,
    isolation.FIGURE,
    r2.FIGURE,
    overload.FIGURE,
    s1.FIGURE,
    s2.FIGURE,
    s3.FIGURE,
    x1.FIGURE,
)
