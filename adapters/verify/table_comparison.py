"""Comparison of one table: calibrate, divide into slices, compare them, resolve the suspects; and its options.

Calibration checks whether a database's checksums equal those computed here. If the leading key column is an integer,
slices are ranges of this column with about the same number of rows. Databases order other types of keys differently, so
a table with such a key is one slice, divided into buckets by the digest of the key.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.verify_contract import Reader, Slice, Subject, TableReplaced, key_forms, sized_forms
from venus.adapters.verify.findings import TableResult, UndecidedRow
from venus.adapters.verify.rows import Columns, checksums, columns_of
from venus.adapters.verify.slice_tasks import (
    ComparisonEnds,
    ComparisonSide,
    SliceResult,
    SliceTask,
    SuspectRow,
    close_sides,
    compare_slice,
    open_sides,
)
from venus.adapters.verify.suspect_resolution import SuspectResolver, undecided_rows
from venus.errors import SourceError, TargetError, VenusError
from venus.model import Kind, TableSchema
from venus.process.runners import LocalRunner, Runner

#: Pairs of sides by name; `auto` uses `ends` while the source can be reached.
LEGS: dict[str, tuple[tuple[ComparisonSide, ComparisonSide], ...]] = {
    "ends": ((ComparisonSide.SOURCE, ComparisonSide.TARGET),),
    "target": ((ComparisonSide.FULL, ComparisonSide.TARGET),),
    "source": ((ComparisonSide.SOURCE, ComparisonSide.FULL),),
    "all": ((ComparisonSide.FULL, ComparisonSide.TARGET), (ComparisonSide.SOURCE, ComparisonSide.FULL)),
}
LEG_NAMES = ("auto", *LEGS)
MODES = ("auto", "hash", "scan")
DIGESTS = ("md5", "sha256")
#: Cost of a compared row relative to a loaded one, to choose runners: reading and summing a row costs a twentieth; a
#: row whose database computes the checksum costs this process nothing.
READ_ROWS_PER_ROW, PUSHED_ROWS_PER_ROW = 20, 400
#: How many rows a slice has: one or two tenths of a second at a database, and little to read again after a change.
SLICE_ROWS = 50_000
RANGE_BUCKETS = 512
#: How many rows a bucket has in a table that is one slice.
BUCKET_ROWS = 64
BUCKETS_MIN, BUCKETS_MAX = 64, 1 << 16
#: Beyond this, the arithmetic of ranges would exceed 64 bits.
_RANGE_MAX = 1 << 61


class VerificationFailed(VenusError):
    """A comparison could not be carried out."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of a comparison."""

    target: str
    leg: str = "auto"
    tables: tuple[str, ...] = ()
    where: str = ""
    mode: str = "auto"
    sample: float = 1.0
    seed: int = 0
    #: Limit of rows a second, one slice at a time in this process; 0 means no limit.
    rows_per_s: float = 0.0
    wait_s: float = 30.0
    digest: str = "md5"
    differences_max: int = 100_000
    slice_rows: int = SLICE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """Progress of a comparison."""

    table: str
    rows: int
    rows_estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTable:
    """Table to compare, or the reason why it cannot be compared."""

    subject: Subject
    note: str = ""
    obstacle: str = ""


Report = Callable[[VerifyProgress], None]
#: Receives the suspects of a table in portions. Without it they are collected up to the limit, and decided at the end.
OnSuspects = Callable[[Seq[SuspectRow]], None]
RunnerFor = Callable[[int], Runner]


#: Rows used for calibration.
SAMPLE_ROWS = 300
#: Limit for the bytes of a slice: a slice that is read here is held in memory.
SLICE_BYTES = 32 << 20


def fitting_rows(reader: Reader, subject: Subject) -> int:
    """Return how many rows of a table fit into the memory for one slice, estimated from a sample."""
    sections = list(reader.scan(subject, Slice(), None, rows_max=SAMPLE_ROWS))
    rows, weight = sum(s.count for s in sections), sum(s.nbytes for s in sections)
    return max(1, SLICE_BYTES * rows // weight) if weight else SLICE_BYTES


def find_disagreement(reader: Reader, subject: Subject) -> str:
    """Return why this reader's checksums cannot be used, "" if they can. Runs in a snapshot of the reader."""
    schema = subject.schema
    sections = list(reader.scan(subject, Slice(), None, rows_max=SAMPLE_ROWS))
    if not sections:
        return ""
    columns = columns_of(sections[0], {schema.version: schema}, schema)
    keys = key_forms(columns, schema)
    try:
        theirs = {key: (total, texts) for key, total, texts in reader.read_forms(subject, keys)}
    except (SourceError, TargetError) as error:  # an old server may lack a function, and a user the right to call it
        reader.end()
        reader.begin(subject)
        return f"the checksums fail: {error}"
    ours = checksums(columns, schema, subject.digest).tolist()
    for n, key in enumerate(keys):
        total, texts = theirs.get(key, (None, ()))
        if total != ours[n]:
            return _describe_disagreement(subject, columns, n, texts)
    return ""


def _describe_disagreement(subject: Subject, columns: Columns, row: int, texts: tuple[str, ...]) -> str:
    """Return why the database's own checksum of a row differs: the text of a column or key, or the digest."""
    for column, values, text in zip(subject.schema.wire_columns, columns, texts, strict=False):
        if sized_forms(column.type, [values[row]])[0] != text:
            return f"column {column.name} is spelt differently there"
    return "its keys are spelt differently there" if not texts else "its digest differs"


logger = logging.getLogger(__name__)

#: How many times a table's comparison is attempted, and the pause between two attempts.
ATTEMPTS = 3
PAUSE_S = 1.0
#: How many times larger than planned slices may be, because all rows of one leading key are in one bucket, in memory.
FULLER_MAX = 4
#: The smallest portion of suspects to pass on while others follow.
PORTION_ROWS = 10_000
#: Memory limit for the differences of a table. A comparison ends there, because longer lists are of no use.
SUSPECTS_BYTES_MAX = 256 << 20


class TableComparison:
    """Comparison of one table, from calibration to the result."""

    def __init__(
        self,
        options: VerifyOptions,
        ends: ComparisonEnds,
        chosen: ChosenTable,
        runner_for: RunnerFor,
        report: Report,
        on_suspects: OnSuspects | None = None,
    ) -> None:
        self._options = options
        self._on_suspects = on_suspects
        self._runner_for = runner_for
        self._report = report
        self._ends = ends
        self._subject = chosen.subject
        self._chosen = chosen
        self._scanned: frozenset[ComparisonSide] = frozenset()
        self._pushed = 0
        self._result = self._new_result()

    def compare(self) -> TableResult:
        """Compare the table; retry after transient failures: a lock, a restarted server or broker."""
        for left in reversed(range(ATTEMPTS)):
            self._result = self._new_result()
            try:
                return self._compare()
            except VenusError as error:
                close_sides()
                if not error.retryable or not left:
                    raise
                logger.warning("%s is compared again: %s", self._result.table, error)
                time.sleep(PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def _new_result(self) -> TableResult:
        name, ends = self._subject.schema.qualified_name, self._ends
        result = TableResult(table=name, leg=f"{ends.left.value} - {ends.right.value}")
        if self._chosen.note:
            result.notes.append(self._chosen.note)
        return result

    def _compare(self) -> TableResult:
        """Find the suspects, decide them, and return the result; an obstacle makes the whole table undecided."""
        began, result = time.monotonic(), self._result
        if self._chosen.obstacle:
            result.undecided.append(UndecidedRow(table=result.table, key={}, reason=self._chosen.obstacle))
            return result
        try:
            suspects = self._find_suspects()
            settled = SuspectResolver(self._ends, self._subject).settle(suspects, self._options.wait_s)
        except (SourceError, TargetError) as error:
            close_sides()
            if self._options.where:
                raise VerificationFailed(
                    f"{result.table}: --where {self._options.where!r}: {error}",
                    hint="it must be true or false at both databases; name the tables that it fits with --table",
                ) from error
            is_meanwhile = isinstance(error, SchemaChanged) and not isinstance(error, TableReplaced)
            reason = f"it has just changed: {error}" if is_meanwhile else str(error)
            result.undecided.append(UndecidedRow(table=result.table, key={}, reason=reason))
        else:
            result.differences = list(settled.differences.values())
            result.undecided = undecided_rows(self._subject, settled.undecided)
            result.in_flight = settled.in_flight
        result.seconds = time.monotonic() - began
        return result

    def _find_suspects(self) -> list[SuspectRow]:
        """Compare all slices; return the suspects, except those passed on in portions."""
        options, result = self._options, self._result
        slices, estimate = self._plan()
        slices = draw_sample(slices, options.sample, random.Random(options.seed))
        work = estimate // (PUSHED_ROWS_PER_ROW if self._pushed == 2 else READ_ROWS_PER_ROW)
        tasks = [
            SliceTask(
                ends=self._ends,
                subject=self._subject,
                part=part,
                scanned=self._scanned,
                rows_per_s=options.rows_per_s,
                suspects_max=options.differences_max,
            )
            for part in slices
        ]
        suspects: list[SuspectRow] = []
        nbytes = 0
        # several workers would each use the whole limit
        runner = LocalRunner() if options.rows_per_s else self._runner_for(work)
        results: Iterator[SliceResult] = runner.run(compare_slice, tasks)
        for number, done in enumerate(results, 1):
            result.rows += done.rows
            result.moved += done.moved
            suspects += done.suspects
            nbytes += sum(suspect.nbytes for suspect in done.suspects)
            self._report(VerifyProgress(table=result.table, rows=result.rows, rows_estimate=estimate))
            result.cut_short = result.cut_short or done.cut_short
            is_portion = number == len(tasks) or len(suspects) >= PORTION_ROWS or nbytes >= SUSPECTS_BYTES_MAX
            if self._on_suspects is not None and suspects and is_portion:
                self._on_suspects(suspects)
                suspects, nbytes = [], 0
            if len(suspects) >= options.differences_max or nbytes >= SUSPECTS_BYTES_MAX:
                more = len(suspects) > options.differences_max or number < len(tasks)
                result.cut_short = result.cut_short or more
                break
        if isinstance(results, Iterator) and hasattr(results, "close"):
            results.close()
        return suspects[: options.differences_max]

    def _plan(self) -> tuple[list[Slice], int]:
        """Calibrate, and divide the table into slices; return these and the estimated number of rows."""
        sessions = open_sides(self._ends)
        try:
            sessions.begin(self._subject)
            self._calibrate()
            estimates = [(reader.estimate_rows(self._subject), reader) for _, reader in sessions.readers]
            rows, reader = max(estimates, key=lambda pair: pair[0])
            slices: list[Slice] = []
            if can_slice_by_range(self._subject.schema):
                slices = self._slice_by_range(reader, rows)
            sessions.end()
        except BaseException:
            close_sides()
            raise
        if not slices and self._options.rows_per_s:
            self._result.notes.append(
                "--rows-per-s has no effect: the integers in front of its key, if any, do not divide it into slices"
            )
        return slices or [whole_slice(rows)], rows

    def _slice_by_range(self, reader: Reader, rows: int) -> list[Slice]:
        """Return slices by ranges of the leading key; [] if these would have far more rows than wanted."""
        wanted = self._slice_rows(reader)
        slices = range_slices(reader.read_split_points(self._subject, wanted))
        # the limit of rows applies to slices only
        return [] if rows > FULLER_MAX * wanted * len(slices) and not self._options.rows_per_s else slices

    def _slice_rows(self, reader: Reader) -> int:
        """Return how many rows a slice has: as many as fit into memory, and at most one second of the rate limit."""
        fitting = min(self._options.slice_rows, fitting_rows(reader, self._subject))
        return min(fitting, math.ceil(self._options.rows_per_s)) if self._options.rows_per_s else fitting

    def _calibrate(self) -> None:
        """Find the databases whose checksums cannot be used; their rows are read instead."""
        mode, places = self._options.mode, []
        for place, reader in open_sides(self._ends).readers:
            if not reader.pushes_down:
                continue
            why = "--mode scan" if mode == "scan" else find_disagreement(reader, self._subject)
            if place is ComparisonSide.SOURCE and self._subject.predicate:
                why = why or "the rows that the target gets are determined one by one"
            if why and mode == "hash":
                raise VerificationFailed(
                    f"{self._result.table}: checksums of the {place.value} cannot be used: {why}",
                    hint="use --mode auto, which compares its rows instead",
                )
            if why:
                places.append(place)
                self._result.notes.append(f"rows of the {place.value} are read and compared here: {why}")
        self._scanned = frozenset(places)
        pushed = [p.value for p, r in open_sides(self._ends).readers if r.pushes_down and p not in places]
        self._pushed = len(pushed)
        self._result.method = f"checksums by {' and '.join(pushed)}" if pushed else "rows"


def can_slice_by_range(schema: TableSchema) -> bool:
    """Return whether the table can be divided by ranges of its key."""
    return schema.wire_columns[0].type.kind is Kind.INT


def range_slices(cuts: Seq[int]) -> list[Slice]:
    """Return the slices between these values of the leading key, open at both ends; [] if impossible."""
    bounds = sorted(set(cuts))
    if not bounds:
        return [_build_range_slice(0, None, None, 0, 0)]
    if bounds[0] < -_RANGE_MAX or bounds[-1] > _RANGE_MAX:
        return []
    inner = bounds[1:-1]
    lows, highs = [None, *inner], [*inner, None]
    return [
        _build_range_slice(n, low, high, bounds[0] if low is None else low, bounds[-1] if high is None else high - 1)
        for n, (low, high) in enumerate(zip(lows, highs, strict=True))
    ]


def _build_range_slice(number: int, low: int | None, high: int | None, first: int, last: int) -> Slice:
    """Return the slice of keys in [low, high), with buckets planned for the keys from `first` to `last`."""
    width = max(1, last - first + 1)
    step = -(-width // RANGE_BUCKETS)
    return Slice(number=number, low=low, high=high, origin=first, step=step, buckets=min(RANGE_BUCKETS, width))


def whole_slice(rows: int) -> Slice:
    """Return the slice that contains a whole table."""
    wanted = max(BUCKETS_MIN, min(BUCKETS_MAX, rows // BUCKET_ROWS))
    return Slice(buckets=1 << (wanted - 1).bit_length())


def draw_sample(slices: Seq[Slice], share: float, draw: random.Random) -> list[Slice]:
    """Return a share of the slices, at least one; for a table in a single slice, a share of its buckets."""
    if share >= 1:
        return list(slices)
    if len(slices) == 1 and not slices[0].step:
        whole = slices[0]
        return [Slice(buckets=whole.buckets, sampled=max(1, round(whole.buckets * share)))]
    chosen = draw.sample(list(slices), max(1, round(len(slices) * share)))
    return sorted(chosen, key=lambda part: part.number)
