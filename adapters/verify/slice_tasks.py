"""A task of a comparison: one slice of one table, on both sides. Runners call it.

A task opens a snapshot on each side, compares checksums, and then compares the rows of differing buckets by type. It
returns *suspects*: rows that differ between these two snapshots, with the positions of the snapshots.
`suspect_resolution.py` decides whether a suspect is a fault or a change on its way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum

from venus.adapters.dialects.verify_contract import Key, Reader, Slice, SourceReader, Subject, open_reader
from venus.adapters.targets.columns import TargetColumns
from venus.adapters.targets.contract import ReachedOffset, TargetReader
from venus.adapters.targets.registry import open_target
from venus.adapters.verify.history import PinnedFullData
from venus.adapters.verify.rows import Row, is_equal_row
from venus.adapters.verify.sides import PushedSide, ScannedSide, Side, find_rows
from venus.codec.masked_rows import Maskers
from venus.config import Settings
from venus.errors import VenusError
from venus.masking.projection import ProjectedSchema
from venus.model import Sequence
from venus.rpc.address import broker_address
from venus.wire import broker_pb2

#: How many rows of differing buckets are compared together; more rows are compared in groups of buckets.
GROUP_ROWS = 100_000
#: How many keys' rows are compared together, and how many bytes of differing rows a slice keeps: longer lists are of no
#: use.
ROWS_AT_ONCE = 2_000
SUSPECT_BYTES_MAX = 64 << 20
#: The memory that a suspect needs besides its values.
_SUSPECT_BYTES = 500


class ComparisonSide(Enum):
    """Side of a comparison."""

    SOURCE = "source"
    FULL = "full data"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonEnds:
    """The two sides of a comparison, and how to connect to them. Picklable."""

    settings: Settings
    left: ComparisonSide
    right: ComparisonSide
    target: str = ""
    snapshot: bytes = b""  # a venus.wire.Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTask:
    """Task to compare one slice."""

    ends: ComparisonEnds
    subject: Subject
    part: Slice
    #: Sides whose database does not compute the checksums of this table.
    scanned: frozenset[ComparisonSide] = frozenset()
    rows_per_s: float = 0.0  # 0 = no limit
    suspects_max: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions of the two snapshots; None for a side that is not compared."""

    next_sequence: Sequence | None = None
    reached: ReachedOffset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRow:
    """A key whose rows differ; `waiting`: it is in the source's log, so its change is not captured yet."""

    key: Key
    rows: dict[ComparisonSide, Row | None]
    positions: Positions
    waiting: bool = False
    #: How many rows have this key, for sides with more than one.
    repeated: dict[ComparisonSide, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The approximate size of the suspect in memory."""
        values = (value for row in self.rows.values() for value in row or ())
        return _SUSPECT_BYTES + sum(map(len, self.key)) + sum(len(value) for value in values if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult:
    """Result of a slice; `cut_short`: the list of suspects is incomplete, because it was too long."""

    table_id: int
    number: int
    rows: int  # the number of rows on the side with more of them
    moved: int
    suspects: tuple[SuspectRow, ...]
    cut_short: bool = False


class OpenSides:
    """One worker's sessions with both sides. Sessions are reused: opening them costs more than comparing a slice."""

    def __init__(self, ends: ComparisonEnds) -> None:
        self._ends = ends
        self.places = {ends.left, ends.right}
        self._stack = ExitStack()
        self.source: SourceReader | None = None
        self.target: TargetReader | None = None
        self.full: PinnedFullData | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Connect to the two sides."""
        settings = self._ends.settings
        if ComparisonSide.TARGET in self.places:
            self.target = open_target(settings, self._ends.target).open_reader()
            self._stack.callback(self.target.close)
        if ComparisonSide.SOURCE in self.places:
            self.source = open_reader(settings)
            self._stack.callback(self.source.close)
        if ComparisonSide.FULL in self.places:
            address = broker_address(settings)
            snapshot = broker_pb2.Snapshot.FromString(self._ends.snapshot)
            self.full = PinnedFullData(address, snapshot, open_maskers(self._ends))
            self._stack.callback(self.full.close)

    def close(self) -> None:
        """Close every session."""
        self._stack.close()

    @property
    def readers(self) -> list[tuple[ComparisonSide, Reader]]:
        """The readers of databases, the target's first: its snapshot then shows only changes that the source has."""
        both: list[tuple[ComparisonSide, Reader | None]] = [
            (ComparisonSide.TARGET, self.target),
            (ComparisonSide.SOURCE, self.source),
        ]
        return [(place, reader) for place, reader in both if reader is not None]

    def begin(self, subject: Subject) -> Positions:
        """Open a snapshot on each side; return their positions."""
        for _, reader in self.readers:
            reader.begin(subject)
        return Positions(
            next_sequence=self.source.read_next_sequence() if self.source else None,
            reached=self.target.read_reached_offset(subject) if self.target else None,
        )

    def end(self) -> None:
        """Close the snapshots."""
        for _, reader in self.readers:
            reader.end()

    def side(self, place: ComparisonSide, subject: Subject, scanned: frozenset[ComparisonSide]) -> Side:
        """Return a side that computes checksums in its database, or one whose rows are read (`scanned`)."""
        versions = {subject.schema.version: subject.schema}
        # the predicate selects the target's rows on the other sides; at the target every row counts
        predicate = subject.predicate if place is not ComparisonSide.TARGET else ""
        if place is ComparisonSide.FULL:
            assert self.full is not None
            full = self.full
            known = full.versions(subject) | versions
            predicate = "" if isinstance(subject.schema, ProjectedSchema) else predicate  # then `scan` applies it
            return ScannedSide(lambda part, buckets: full.scan(subject, part, buckets), subject, known, predicate)
        reader = dict(self.readers)[place]
        if reader.pushes_down and place not in scanned and not predicate:
            return PushedSide(reader, subject)
        return ScannedSide(lambda part, buckets: reader.scan(subject, part, buckets), subject, versions, predicate)


def open_maskers(ends: ComparisonEnds) -> Maskers:
    """Return the maskers of the compared target."""
    is_compared = ComparisonSide.TARGET in (ends.left, ends.right)
    return TargetColumns(ends.settings, ends.target).maskers if is_compared else Maskers(None)


class _KeptSides(threading.local):
    """The sessions of this thread: in a process that captures, two comparisons may run at the same time."""

    now: tuple[ComparisonEnds, OpenSides] | None = None


_kept = _KeptSides()


def open_sides(ends: ComparisonEnds) -> OpenSides:
    """Return this worker's sessions with these two sides; open them if necessary."""
    if _kept.now is None or _kept.now[0] != ends:
        close_sides()
        _kept.now = (ends, OpenSides(ends))
    return _kept.now[1]


def close_sides() -> None:
    """Close this worker's sessions; also after an error, which may leave them in any state."""
    known, _kept.now = _kept.now, None
    if known is not None:
        known[1].close()


def compare_slice(task: SliceTask) -> SliceResult:
    """Compare one slice of a table. Writes nothing, so that a task can be repeated."""
    began = time.monotonic()
    try:
        sessions = open_sides(task.ends)
        positions = sessions.begin(task.subject)
        found = _compare(task, sessions, positions)
        sessions.end()
    except BaseException:
        close_sides()
        raise
    if task.rows_per_s:
        time.sleep(max(0.0, found.rows / task.rows_per_s - (time.monotonic() - began)))
    return found


def _compare(task: SliceTask, sessions: OpenSides, positions: Positions) -> SliceResult:
    """Compare checksums of buckets, then of keys in differing buckets; return the rows that differ as suspects."""
    subject, part = task.subject, task.part
    left, right = (sessions.side(place, subject, task.scanned) for place in (task.ends.left, task.ends.right))
    with ThreadPoolExecutor(2) as pool:  # two databases work at the same time

        def ask_both_sides(ask: str, *what: object) -> tuple[dict, dict]:  # type: ignore[type-arg]
            asked = [pool.submit(getattr(side, ask), part, *what) for side in (left, right)]
            return asked[0].result(), asked[1].result()

        ours, theirs = ask_both_sides("buckets")
        rows = max(sum(n for n, _ in side.values()) for side in (ours, theirs))
        found = SuspectList(task.suspects_max)
        for group in _group_buckets(ours, theirs):
            one, other = ask_both_sides("hashes", group)
            unequal = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
            keys = sorted(unequal | left.repeated.keys() | right.repeated.keys())
            for first in range(0, len(keys), ROWS_AT_ONCE):
                here, there = ask_both_sides("rows", some := keys[first : first + ROWS_AT_ONCE])
                for key in some:
                    values = {task.ends.left: here.get(key), task.ends.right: there.get(key)}
                    counts = {task.ends.left: left.repeated.get(key), task.ends.right: right.repeated.get(key)}
                    repeated = {place: rows for place, rows in counts.items() if rows}
                    if repeated or not is_equal_row(subject.schema, *values.values()):
                        found.add(SuspectRow(key=key, rows=values, positions=positions, repeated=repeated))
                if found.is_full:
                    break
            if found.is_full:
                break
    suspects = _mark_waiting(_add_source_rows(found.suspects, sessions.source, subject), sessions.source, subject)
    return SliceResult(
        table_id=subject.schema.table_id,
        number=part.number,
        rows=rows,
        moved=left.moved + right.moved,
        suspects=tuple(suspects),
        cut_short=found.is_full,
    )


class SuspectList:
    """Suspects of a slice, limited in number and memory."""

    def __init__(self, most: int) -> None:
        self.suspects: list[SuspectRow] = []
        self._most, self._nbytes = most, 0

    def add(self, suspect: SuspectRow) -> None:
        """Add a suspect, and count its memory."""
        self.suspects.append(suspect)
        self._nbytes += suspect.nbytes

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return len(self.suspects) > self._most or self._nbytes >= SUSPECT_BYTES_MAX


def _add_source_rows(suspects: Seq[SuspectRow], source: SourceReader | None, subject: Subject) -> Seq[SuspectRow]:
    """Return the suspects with the rows that the source has, even where the target's predicate excludes them."""
    if source is None or not subject.predicate or not suspects:
        return suspects
    rows = find_rows(source, subject, [s.key for s in suspects])
    return [replace(s, rows=s.rows | {ComparisonSide.SOURCE: rows.get(s.key)}) for s in suspects]


def _group_buckets(ours: dict[int, tuple[int, int]], theirs: dict[int, tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the differing buckets in groups that fit into memory."""
    group: list[int] = []
    rows = 0
    for bucket in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(bucket, (0, 0)), theirs.get(bucket, (0, 0))
        if one == other:
            continue
        if group and rows + max(one[0], other[0]) > GROUP_ROWS:
            yield group
            group, rows = [], 0
        group.append(bucket)
        rows += max(one[0], other[0])
    if group:
        yield group


def _mark_waiting(suspects: Seq[SuspectRow], source: SourceReader | None, subject: Subject) -> Iterator[SuspectRow]:
    """Yield the suspects; mark those whose key waits in the source's log in the same snapshot."""
    waiting = source.find_waiting_keys(subject, [s.key for s in suspects]) if source and suspects else set()
    for s in suspects:
        yield replace(s, waiting=s.key in waiting)


def recheck_suspects(ends: ComparisonEnds, subject: Subject, keys: Seq[Key]) -> list[SuspectRow]:
    """Compare the rows of these keys again, in one new snapshot of each database."""
    try:
        sessions = open_sides(ends)
        positions = sessions.begin(subject)
        found = {place: find_rows(reader, subject, keys) for place, reader in sessions.readers}
        suspects = [
            SuspectRow(key=k, rows={place: rows.get(k) for place, rows in found.items()}, positions=positions)
            for k in keys
        ]
        again = list(_mark_waiting(suspects, sessions.source, subject))
        sessions.end()
    except VenusError:
        close_sides()
        raise
    return again
