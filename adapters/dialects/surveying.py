"""What a survey of a source says, for `venus assess`: figures of the database's own, and a small sample of the rows.

Each dialect has a module `survey` with `survey(settings, asked)`. It opens a session of its own and reads only. What
the database does not know is None here and named in `unknown`, never made up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.config import Settings

#: Of each table, at most.
SAMPLE_ROWS = 2_000
SAMPLE_BYTES = 4 << 20
#: Of all tables together: the largest come first, and what is left is estimated from the others.
SAMPLE_S = 20.0
#: What stands in front of a value on its way: a tag and a length.
_VALUE_HEAD_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a dialect costs on the machine of the bench (bench/forecast.py)."""

    #: Reading one row in a fill: a row of no values, each value of it, each KiB of its values.
    row_us: float
    value_us: float
    kib_us: float
    #: What the triggers add to one changed row, in the application's own transaction.
    trigger_us: float
    #: A row of a log table with its index, without the key.
    log_row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some rows as they were read: how many, their bytes as text, how long the database took."""

    rows: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One table that the patterns choose."""

    namespace: str
    name: str
    rows: int | None
    counted: bool  # else it is the database's estimate
    data_bytes: int | None = None
    index_bytes: int | None = None
    #: Of `data_bytes`: large values that the sample does not hold.
    large_bytes: int = 0
    #: Rows inserted, updated and deleted, and in how many seconds.
    changes: int | None = None
    over_s: float = 0.0
    sample: Sample | None = None

    @property
    def qualified(self) -> str:
        """The name people use: namespace.table."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a survey is asked for."""

    include: Seq[str]
    exclude: Seq[str]
    #: Count the rows instead of believing statistics.
    count_rows: bool = False
    sample_s: float = SAMPLE_S
    monotonic: Callable[[], float] = field(default=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One survey."""

    server: str
    pace: Pace
    sizes: tuple[Size, ...]
    numberings: tuple[Numbering, ...]
    #: Views, procedures, triggers, jobs: what VENUS does not carry.
    others: tuple[OtherObject, ...]
    #: Figures that cannot be had here, each with its reason or the way to have it.
    unknown: tuple[str, ...] = ()


class Surveyor(Protocol):
    """What a dialect's module `survey` offers."""

    def survey(self, settings: Settings, asked: Asked) -> Survey:
        """Look at a source before anything is installed there. Reads only."""
        ...


class Sampler:
    """Takes samples as long as there is time."""

    def __init__(self, asked: Asked) -> None:
        self._monotonic = asked.monotonic
        self._until = asked.monotonic() + asked.sample_s

    def take(self, read: Callable[[], tuple[int, int]]) -> Sample | None:
        """Read some rows, which `read` counts and weighs; None when the time is used up."""
        started = self._monotonic()
        if started >= self._until:
            return None
        rows, nbytes = read()
        return Sample(rows=rows, nbytes=nbytes, seconds=self._monotonic() - started)


def weighed(rows: Iterable[Seq[Any]]) -> tuple[int, int]:
    """Return how many rows there are and what their values weigh as they travel; stops at what a sample may hold."""
    count = nbytes = 0
    for row in rows:
        count += 1
        nbytes += sum(_weight(value) for value in row)
        if nbytes >= SAMPLE_BYTES:
            break
    return count, nbytes


def _weight(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return _VALUE_HEAD_BYTES + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, bytes | bytearray | memoryview):
        return _VALUE_HEAD_BYTES + len(value)
    return _VALUE_HEAD_BYTES + len(str(value))


def largest_first(sizes: Iterable[Size]) -> list[Size]:
    """Return tables in the order in which to sample them."""
    return sorted(sizes, key=lambda size: (-(size.data_bytes or 0), -(size.rows or 0), size.qualified))
