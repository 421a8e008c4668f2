"""How quick a core of this machine is: a small piece of the work that every row costs, in processor time."""

from __future__ import annotations

import time
from collections.abc import Callable

from venus.codec.columns import from_columns
from venus.codec.copytext import to_copy
from venus.codec.layout import Layout
from venus.model import Column, Kind, LogicalType, TableSchema

#: What the probe takes where the constants of forecast.py were measured.
REFERENCE_S = 0.2
_ROWS = 4_000
_ROUNDS = 50
PARTS = 10
_TEXT = LogicalType(kind=Kind.TEXT)
_SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="probe",
    name="probe",
    columns=tuple(Column(name=f"c{n}", number=n + 1, type=_TEXT) for n in range(8)),
    key=("c0",),
)


def speed(clock: Callable[[], float] = time.process_time) -> float:
    """Return how many times as long a core takes here as on the machine of the bench.

    What else the machine has to do is not in it: nobody knows whether it will during the fill. Other work costs
    processor time too, by caches and by cores that are two of one, so the quickest part counts.
    """
    return min(parts(clock)) * PARTS / REFERENCE_S


def parts(clock: Callable[[], float]) -> list[float]:
    """Do the work in equal parts; return what each took."""
    layout = Layout.of(_SCHEMA)
    columns = [[f"{name} of row {row}" for row in range(_ROWS)] for name in "abcdefgh"]
    to_copy(*from_columns(columns, layout), layout)  # what is imported at the first use is not the work
    found = []
    for _ in range(PARTS):
        started = clock()
        for _ in range(_ROUNDS // PARTS):
            to_copy(*from_columns(columns, layout), layout)
        found.append(clock() - started)
    return found
