"""The survey of a source for `venus assess`: the database's own figures and a small sample of the rows.

The module `source` of each dialect has a function `survey`, which opens its own session and only reads. A figure that
the database does not know is None, and `unknown` names it; VENUS never invents a figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.config import Settings
from venus.model import Column, Kind

#: The largest sample of one table.
SAMPLE_ROWS = 2_000
SAMPLE_BYTES = 4 << 20
#: The time limit for all samples together: the largest tables are sampled first, the rest are estimated from them.
SAMPLE_S = 20.0
#: A column declared with at most this length has no large values.
_SHORT_LENGTH = 4_000
#: Bytes of the tag and the length that precede every value in a message.
_VALUE_HEAD_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPace:
    """The costs of reading rows and of the triggers in one dialect, as benchmarks measured them (bench/forecast.py)."""

    #: The time to read one row in a fill: for the row itself, for each of its values, for each KiB of its values.
    row_us: float
    value_us: float
    kib_us: float
    #: The time that the triggers add to each changed row, in the application's transaction.
    trigger_us: float
    #: The size of a row of a log table with its index, without the key.
    log_row_bytes: int
    #: Bytes that a changed row adds to redo log and undo, including its log row's deletion; 0 = there is none.
    redo_bytes: int = 0
    undo_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample of rows: their number, their bytes as text, and the time that the database took."""

    rows: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The size of one chosen table, with its rate of changes and a sample, as far as they are known."""

    namespace: str
    name: str
    rows: int | None
    counted: bool  # False: `rows` is the database's estimate
    data_bytes: int | None = None
    index_bytes: int | None = None
    #: The part of `data_bytes` in large values, which the sample does not contain.
    large_bytes: int = 0
    #: The number of rows inserted, updated and deleted, and the seconds in which this happened.
    changes: int | None = None
    over_s: float = 0.0
    sample: Sample | None = None
    #: The bytes of its largest value: of all rows if they were counted, else of the sample.
    largest_bytes: int | None = None
    #: Triggers and materialized view logs of the application, which run or grow with each change.
    attached: tuple[str, ...] = ()

    @property
    def qualified_name(self) -> str:
        """The table's name in messages to people: namespace.table."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyRequest:
    """The options of a survey."""

    include: Seq[str]
    exclude: Seq[str]
    #: Count the rows instead of using statistics.
    count_rows: bool = False
    sample_s: float = SAMPLE_S
    monotonic: Callable[[], float] = field(default=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFact:
    """One fact about the server or its code, in words."""

    what: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRates:
    """The bytes that the whole server writes each second into its redo log and its undo; None = not known."""

    redo: float | None = None
    undo: float | None = None


UNKNOWN_RATES = LogRates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The result of a survey: the server, its chosen tables, other objects, and the figures that are unknown."""

    server: str
    pace: ReadingPace
    sizes: tuple[TableSize, ...]
    numberings: tuple[Numbering, ...]
    #: Objects that VENUS does not carry: views, procedures, triggers, jobs.
    others: tuple[OtherObject, ...]
    #: Figures that are not available, each with its reason or the way to get it.
    unknown: tuple[str, ...] = ()
    facts: tuple[SourceFact, ...] = ()
    log_rates: LogRates = UNKNOWN_RATES


class Surveyor(Protocol):
    """The interface of a dialect's module `source` for a survey."""

    def survey(self, settings: Settings, request: SurveyRequest) -> Survey:
        """Survey a source, also before an installation. Reads only."""
        ...


class Sampler:
    """Sampler that reads some rows of each table until the time limit of the survey."""

    def __init__(self, asked: SurveyRequest) -> None:
        self._monotonic = asked.monotonic
        self._until = asked.monotonic() + asked.sample_s

    def take(self, read: Callable[[], tuple[int, int]]) -> Sample | None:
        """Time `read`, which reads some rows and returns their number and bytes; None when the time is used up."""
        started = self._monotonic()
        if started >= self._until:
            return None
        rows, nbytes = read()
        return Sample(rows=rows, nbytes=nbytes, seconds=self._monotonic() - started)


def measure_rows(rows: Iterable[Seq[Any]]) -> tuple[int, int]:
    """Return the number of rows and the bytes of their values in a message; stop at the size of a sample."""
    count = nbytes = 0
    for row in rows:
        count += 1
        nbytes += sum(_message_bytes(value) for value in row)
        if nbytes >= SAMPLE_BYTES:
            break
    return count, nbytes


def _message_bytes(value: Any) -> int:
    """Return how many bytes a value takes in a message."""
    if value is None:
        return 0
    if isinstance(value, str):
        return _VALUE_HEAD_BYTES + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, bytes | bytearray | memoryview):
        return _VALUE_HEAD_BYTES + len(value)
    return _VALUE_HEAD_BYTES + len(str(value))


def choose_large_columns(columns: Iterable[Column]) -> list[Column]:
    """Return the columns whose values may be large."""
    return [
        c
        for c in columns
        if c.type.kind in (Kind.TEXT, Kind.BYTES, Kind.JSON) and not 0 < (c.type.length or 0) <= _SHORT_LENGTH
    ]


def code_facts(lines: Iterable[tuple[str, int]], invalid: Iterable[tuple[str, int]]) -> list[SourceFact]:
    """Return facts that count the application's lines of code and its invalid objects, by kind of object."""
    named = (("lines of code", lines), ("invalid objects", invalid))
    found = [(what, ", ".join(f"{kind.lower()} {count:,}" for kind, count in rows if count)) for what, rows in named]
    return [SourceFact(what=what, value=value) for what, value in found if value]


def sample_tables(sizes: Seq[TableSize], sample: Callable[[TableSize], TableSize]) -> tuple[TableSize, ...]:
    """Return the tables with their samples. The largest tables are sampled first, as long as there is time."""
    largest_first = sorted(sizes, key=lambda size: (-(size.data_bytes or 0), -(size.rows or 0), size.qualified_name))
    found = {size.qualified_name: sample(size) for size in largest_first}
    return tuple(found[size.qualified_name] for size in sizes)
