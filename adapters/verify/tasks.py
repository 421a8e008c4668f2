"""One slice of one table, both sides at once: what a comparison is made of. Whoever schedules the slices calls this.

A task opens a snapshot on each side, compares checksums, looks into the differing buckets and compares the rows that
are left by type. What it returns are *suspects*: rows that really differ between these two snapshots, with what the
snapshots say of where they stand. Whether that is a fault or a change on its way is decided by `deciding.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum

from venus.adapters.dialects.verifying import Key, Reader, Slice, SourceReader, Subject, open_reader
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.verifying import Reached, TargetReader
from venus.adapters.verify.full import FullData
from venus.adapters.verify.rows import Row, equal
from venus.adapters.verify.sides import PushedSide, ScannedSide, Side, found_rows
from venus.config import Settings
from venus.errors import VenusError
from venus.model import Sequence
from venus.rpc.address import broker_of
from venus.wire import broker_pb2

#: Rows behind differing buckets that are looked into at once; more are taken one group of buckets after the other.
GROUP_ROWS = 100_000
#: Keys whose rows are compared at once, and how many bytes of rows that differ a slice keeps: where everything differs
#: nobody reads all of it.
ROWS_AT_ONCE = 2_000
SUSPECT_BYTES_MAX = 64 << 20
#: What a suspect takes beside its values.
_SUSPECT_BYTES = 500


class Place(Enum):
    """Where rows are."""

    SOURCE = "source"
    FULL = "full data"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The two places that are compared, and how to get there. Picklable."""

    settings: Settings
    left: Place
    right: Place
    target: str = ""
    snapshot: bytes = b""  # a venus.wire.Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A slice to be compared."""

    ends: Ends
    subject: Subject
    part: Slice
    #: Places whose database does not compute the checksums of this table.
    scanned: frozenset[Place] = frozenset()
    rows_per_s: float = 0.0  # 0 = as fast as it goes
    suspects_max: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """What the two snapshots say of where they stand; None for a place that was not looked at."""

    next_sequence: Sequence | None = None
    reached: Reached | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A key whose rows differ; `waiting`: the source's log names it, so its change is not captured yet."""

    key: Key
    rows: dict[Place, Row | None]
    positions: Positions
    waiting: bool = False
    #: How many rows have this key, in places where that is more than one.
    repeated: dict[Place, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """What it takes in memory, about."""
        values = (value for row in self.rows.values() for value in row or ())
        return _SUSPECT_BYTES + sum(map(len, self.key)) + sum(len(value) for value in values if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What was found in a slice; `cut_short`: not all that differs, which was too much."""

    table_id: int
    number: int
    rows: int  # of the side that has more
    moved: int
    suspects: tuple[Suspect, ...]
    cut_short: bool = False


class Opened:
    """The sessions of one worker. Opening them costs more than comparing a slice, so they are kept."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self.places = {ends.left, ends.right}
        self._stack = ExitStack()
        self.source: SourceReader | None = None
        self.target: TargetReader | None = None
        self.full: FullData | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        settings = self._ends.settings
        if Place.TARGET in self.places:
            self.target = open_target(settings, self._ends.target).open_reader()
            self._stack.callback(self.target.close)
        if Place.SOURCE in self.places:
            self.source = open_reader(settings)
            self._stack.callback(self.source.close)
        if Place.FULL in self.places:
            address = broker_of(settings)
            self.full = FullData(address, broker_pb2.Snapshot.FromString(self._ends.snapshot))
            self._stack.callback(self.full.close)

    def close(self) -> None:
        """Close every session."""
        self._stack.close()

    @property
    def readers(self) -> list[tuple[Place, Reader]]:
        """The databases, the target first: what its snapshot shows has passed the source before."""
        both: list[tuple[Place, Reader | None]] = [(Place.TARGET, self.target), (Place.SOURCE, self.source)]
        return [(place, reader) for place, reader in both if reader is not None]

    def begin(self, subject: Subject) -> Positions:
        """Open the snapshots."""
        for _, reader in self.readers:
            reader.begin(subject)
        return Positions(
            next_sequence=self.source.next_sequence() if self.source else None,
            reached=self.target.reached(subject) if self.target else None,
        )

    def end(self) -> None:
        """Let the snapshots go."""
        for _, reader in self.readers:
            reader.end()

    def side(self, place: Place, subject: Subject, scanned: frozenset[Place]) -> Side:
        """Return one side of a comparison."""
        versions = {subject.schema.version: subject.schema}
        # what the target gets is chosen here, by the rules that chose it there; at the target everything counts
        predicate = subject.predicate if place is not Place.TARGET else ""
        if place is Place.FULL:
            assert self.full is not None
            full = self.full
            known = full.versions(subject.schema.table_id) | versions
            return ScannedSide(lambda part, buckets: full.scan(subject, part, buckets), subject, known, predicate)
        reader = dict(self.readers)[place]
        if reader.pushes_down and place not in scanned and not predicate:
            return PushedSide(reader, subject)
        return ScannedSide(lambda part, buckets: reader.scan(subject, part, buckets), subject, versions, predicate)


_kept: dict[str, tuple[Ends, Opened]] = {}


def opened(ends: Ends) -> Opened:
    """Return the sessions of this worker, opening them if there are none to these ends."""
    known = _kept.get("now")
    if known is None or known[0] != ends:
        close_opened()
        known = _kept["now"] = (ends, Opened(ends))
    return known[1]


def close_opened() -> None:
    """Close this worker's sessions; also after any error, which may have left them in any state."""
    known = _kept.pop("now", None)
    if known is not None:
        known[1].close()


def compare_slice(task: Task) -> Compared:
    """Compare one slice; may be repeated at any time, it changes nothing."""
    began = time.monotonic()
    try:
        sessions = opened(task.ends)
        positions = sessions.begin(task.subject)
        found = _compare(task, sessions, positions)
        sessions.end()
    except BaseException:
        close_opened()
        raise
    if task.rows_per_s:
        time.sleep(max(0.0, found.rows / task.rows_per_s - (time.monotonic() - began)))
    return found


def _compare(task: Task, sessions: Opened, positions: Positions) -> Compared:
    subject, part = task.subject, task.part
    left, right = (sessions.side(place, subject, task.scanned) for place in (task.ends.left, task.ends.right))
    with ThreadPoolExecutor(2) as pool:  # two databases work at the same time

        def both(ask: str, *what: object) -> tuple[dict, dict]:  # type: ignore[type-arg]
            asked = [pool.submit(getattr(side, ask), part, *what) for side in (left, right)]
            return asked[0].result(), asked[1].result()

        ours, theirs = both("buckets")
        rows = max(sum(n for n, _ in side.values()) for side in (ours, theirs))
        found = Found(task.suspects_max)
        for group in _groups(ours, theirs):
            one, other = both("hashes", group)
            unequal = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
            keys = sorted(unequal | left.repeated.keys() | right.repeated.keys())
            for first in range(0, len(keys), ROWS_AT_ONCE):
                here, there = both("rows", some := keys[first : first + ROWS_AT_ONCE])
                for key in some:
                    values = {task.ends.left: here.get(key), task.ends.right: there.get(key)}
                    counts = {task.ends.left: left.repeated.get(key), task.ends.right: right.repeated.get(key)}
                    repeated = {place: rows for place, rows in counts.items() if rows}
                    if repeated or not equal(subject.schema, *values.values()):
                        found.add(Suspect(key=key, rows=values, positions=positions, repeated=repeated))
                if found.is_full:
                    break
            if found.is_full:
                break
    suspects = _with_waiting(_with_source(found.suspects, sessions.source, subject), sessions.source, subject)
    return Compared(
        table_id=subject.schema.table_id, number=part.number, rows=rows, moved=left.moved + right.moved,
        suspects=tuple(suspects), cut_short=found.is_full,
    )  # fmt: skip


class Found:
    """The suspects of a slice, as many as are of use to anybody and fit into memory."""

    def __init__(self, most: int) -> None:
        self.suspects: list[Suspect] = []
        self._most, self._nbytes = most, 0

    def add(self, suspect: Suspect) -> None:
        """Take one more."""
        self.suspects.append(suspect)
        self._nbytes += suspect.nbytes

    @property
    def is_full(self) -> bool:
        """Whether no more are looked for."""
        return len(self.suspects) > self._most or self._nbytes >= SUSPECT_BYTES_MAX


def _with_source(suspects: Seq[Suspect], source: SourceReader | None, subject: Subject) -> Seq[Suspect]:
    """Return the suspects with the rows that the source has, also where the target does not get them."""
    if source is None or not subject.predicate or not suspects:
        return suspects
    rows = found_rows(source, subject, [s.key for s in suspects])
    return [replace(s, rows=s.rows | {Place.SOURCE: rows.get(s.key)}) for s in suspects]


def _groups(ours: dict[int, tuple[int, int]], theirs: dict[int, tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the differing buckets, so many at a time as may be in memory."""
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


def _with_waiting(suspects: Seq[Suspect], source: SourceReader | None, subject: Subject) -> Iterator[Suspect]:
    """Say of each suspect whether the log names it, in the snapshot that showed its row."""
    waiting = source.waiting(subject, [s.key for s in suspects]) if source and suspects else set()
    for s in suspects:
        yield replace(s, waiting=s.key in waiting)


def look_again(ends: Ends, subject: Subject, keys: Seq[Key]) -> list[Suspect]:
    """Read these keys once more, in one new snapshot of each database."""
    try:
        sessions = opened(ends)
        positions = sessions.begin(subject)
        found = {place: found_rows(reader, subject, keys) for place, reader in sessions.readers}
        suspects = [
            Suspect(key=k, rows={place: rows.get(k) for place, rows in found.items()}, positions=positions)
            for k in keys
        ]
        again = list(_with_waiting(suspects, sessions.source, subject))
        sessions.end()
    except VenusError:
        close_opened()
        raise
    return again
