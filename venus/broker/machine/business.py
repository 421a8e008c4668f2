"""The state of one business in the memory of the broker; records.py stores it in the column family `state`.

Only the commit thread changes a `Business`, while it builds a group. It publishes what other threads may see
(`visible_offset`, `committed`, the tail) after the fsync of the group. Several threads use consumers, reviews and
counters, which have a lock.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

from venus.broker.log.entry import LogEntry
from venus.broker.log.log import BusinessLog
from venus.broker.machine import half_messages
from venus.broker.machine.consumers import ConsumerState, QueueMark
from venus.broker.machine.envelope import Envelope, Version
from venus.broker.machine.queue_index import Epochs, QueueTail
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.machine.steps import EntryStep
from venus.flow.retention import MeasuredRetention

#: (offset, half message) in order, on disk.
Ahead = tuple[tuple[int, half_messages.HalfMessage], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """Statistics of one table: its name, number of changes, newest Sequence and approximate number of rows."""

    namespace: str = ""
    name: str = ""
    changes: int = 0
    last_sequence: int = 0
    rows: int = 0  # an estimate: announced insertions minus deletions


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialisedPosition:
    """The point in the queue up to which the full data has the changes; stored together with its rows."""

    offset: int = 0
    sequence: int = 0
    nbytes: int = 0  # `QueuedBatch.after` of the last batch
    at_cut_end: bool = True
    floors: dict[int, int] = field(default_factory=dict)
    filled: int = 0  # of a mirror: the full data in the log up to this index is stored as rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEntry:
    """A log entry that is appended but not applied yet, with the step that it takes on the proposed state."""

    index: int
    entry: LogEntry
    content: Envelope | None
    step: EntryStep
    stored: bytes | None = None  # the bytes received from a leader
    is_new: bool = True  # proposed by a command of this process, whose effects are in memory already


@dataclass(slots=True)
class DescribedVersions:
    """Table versions that the half messages up to `state` describe; see described_versions.py."""

    state: half_messages.HalfState | None = None
    versions: set[Version] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Business:
    """A business (one ordered queue, a topic) in memory.

    A business has three states of its half messages. `proposed` is the state after the last log entry; new entries are
    checked against it. `applying` is the state after the last applied entry. `committed` is the applied state that is
    on disk, the only one that other threads and peers see.
    """

    number: int
    name: str
    reviews: ReviewSchedule
    log: BusinessLog = field(init=False)
    proposed: half_messages.HalfState = field(default_factory=half_messages.HalfState)
    applying: half_messages.HalfState = field(default_factory=half_messages.HalfState)
    committed: half_messages.HalfState = field(default_factory=half_messages.HalfState)
    pending: deque[PendingEntry] = field(default_factory=deque)
    log_start: int = 0  # the first offset that can be read
    nbytes: int = 0  # size of all bodies that were ever committed
    nbytes_trimmed: int = 0
    epochs: Epochs = ()
    committed_at_us: int = 0
    captured_at_us: int = 0
    committed_seen_at: float | None = None  # when this process showed the newest batch; monotonic
    marks: list[QueueMark] = field(default_factory=list)  # replaced, never changed
    #: The parts of its record as last stored, each with the value it was encoded from.
    encoded: dict[str, tuple[object, str]] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    tables: dict[int, TableFigures] = field(default_factory=dict)
    consumers: dict[str, ConsumerState] = field(default_factory=dict)
    readers: dict[int, ConsumerState] = field(default_factory=dict)  # transient readers, by token
    retention: MeasuredRetention | None = None  # with `retain = "measured"`, where this broker leads; needs the lock
    envelopes: dict[int, Envelope] = field(default_factory=dict)  # those of the undecided half messages
    schemas: set[Version] = field(default_factory=set)  # the committed ones
    described: DescribedVersions = field(default_factory=DescribedVersions)  # described, not committed yet
    described_from: int = 0  # the version of every change above this Sequence is described
    lock: threading.Lock = field(default_factory=threading.Lock)
    visible_offset: int = 0
    visible_through: int = 0  # the newest log entry whose effects are visible
    #: The half messages of a cut that is sent early, with the offsets they would get; replaced as a whole.
    undecided: Ahead = ()
    tail: QueueTail = field(default_factory=QueueTail)
    materialised: MaterialisedPosition = field(default_factory=MaterialisedPosition)
    is_filling: bool = False  # its producer reports that it reads tables for the first time, or again
    rows_may_reach: int = 0  # until the full data is there: after a crash, rows up to this Sequence may be stored
    filled_to: int = 0  # a mirror's full data is in the log up to this index, on disk
    scavenged: dict[int, int] = field(default_factory=dict)  # by table: rows up to this floor are physically removed
    catches_up_since: float | None = None  # since when the full data waits for this replica to be in sync; monotonic
    halted: str = ""  # why this replica stopped: an entry that cannot be applied here; empty = it runs
    awaits_full_data: bool = False  # it is to be mirrored here, and no data has arrived yet
    is_forgotten: bool = False  # the materialising thread ignores it
    forgotten_below: dict[int, int] = field(
        default_factory=dict
    )  # by table: older tombstones may be physically removed
    scrubbed_at_us: int = 0  # when the scrub last completed a pass over all stored data
    undescribed: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by table: versions of unreadable rows

    def __post_init__(self) -> None:
        self.log = BusinessLog(self.number)

    @property
    def is_new(self) -> bool:
        """Whether the log of the business has never had an entry."""
        return self.log.end == 1

    @property
    def is_filled(self) -> bool:
        """Whether the business can be read; a mirror cannot until its full data is complete."""
        mirror = self.committed.mirror
        if mirror is None:  # one that awaits its full data is empty, and its consumers have not diverged
            return not self.awaits_full_data or self.visible_offset > 0
        return mirror.is_complete(self.materialised.filled)

    @property
    def epoch_at_end(self) -> int:
        """The newest producer epoch that has a batch in the queue; 0 = none."""
        return self.epochs[-1][0] if self.epochs else 0

    @property
    def open_cut(self) -> int:
        """The number of the incomplete cut at the queue's visible end, which only a mirror can have; 0 = none."""
        newest = self.tail.newest
        return newest.cut if newest is not None and not newest.cut_end else 0

    def list_consumers(self) -> list[ConsumerState]:
        """Return the states of all consumer groups and transient readers."""
        with self.lock:
            return [*self.consumers.values(), *self.readers.values()]

    def add_to_counter(self, counter: str, n: int = 1) -> None:
        """Add `n` to one of the counters of the business."""
        with self.lock:
            self.counters[counter] += n

    def unmaterialised_bytes(self) -> int:
        """Return by how many bytes the full data lags behind the queue."""
        return self.nbytes - self.materialised.nbytes
