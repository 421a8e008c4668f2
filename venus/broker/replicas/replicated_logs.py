"""Logs between the commit thread and the host of the replicas: standings, positions, newest entries, and commands.

Both threads share `ReplicatedLogs`. `CoreLogs` gives the host access to this broker's logs, through commands of the
commit thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from venus.broker.core import Core
from venus.broker.log.entry import decode
from venus.broker.machine.business import Business
from venus.broker.pipeline.group import CommandGroup
from venus.broker.pipeline.shared_log import Backlog, append_stored, begin_term, end_term
from venus.broker.replicas.effects import Post
from venus.broker.store import keys
from venus.errors import NotLeader, StorageError, Unavailable
from venus.replication.messages import Append, Truncate
from venus.replication.position import LogChanged

#: Memory overhead of an entry.
ENTRY_BYTES = 64
#: Maximum size of the entries in memory for followers, per log and in total. Between two checks the total may be an
#: eighth above it.
RECENT_BYTES = 8 << 20
RECENTS_BYTES = 64 << 20
TellLog = Callable[[str, LogChanged], None]
TellHalted = Callable[[str, str], None]


class RecentEntries:
    """The newest entries of a log, a run without gaps. Older entries are read from the store. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Logical time of the last extension; larger is newer.
        self.used = 0
        self._lock = threading.Lock()
        self._first = 0
        self._values: list[bytes] = []
        self._nbytes = 0

    def extend(self, first: int, values: Sequence[bytes]) -> None:
        """Add entries from `first` on; they replace existing ones."""
        with self._lock:
            if not self._first <= first <= self._first + len(self._values):
                self._values, self._nbytes, self._first = [], 0, first
            self._cut(first)
            self._values += values
            self._nbytes += sum(map(len, values))
            self._make_room()

    @property
    def nbytes(self) -> int:
        """Approximate size in memory."""
        return self._nbytes + ENTRY_BYTES * len(self._values)

    def clear(self) -> None:
        """Remove all entries; the next ones begin a new run."""
        with self._lock:
            self._first, self._values, self._nbytes = self._first + len(self._values), [], 0

    def truncate(self, end: int) -> None:
        """Remove the entries from `end` on."""
        with self._lock:
            self._cut(end)

    def read(self, first: int, bytes_max: int) -> tuple[bytes, ...] | None:
        """Return entries from `first` on, at least one and about `bytes_max`; () = none yet, None = not in memory."""
        with self._lock:
            at = first - self._first
            if not self._values or not 0 <= at <= len(self._values):
                return None
            return fit_values(self._values, at, bytes_max)

    def _cut(self, end: int) -> None:
        """Remove the entries from `end` on."""
        at = max(end - self._first, 0)
        self._nbytes -= sum(map(len, self._values[at:]))
        del self._values[at:]

    def _make_room(self) -> None:
        """Remove the oldest entries beyond the limit."""
        gone = 0
        while self._nbytes > self._bytes_max and gone < len(self._values):
            self._nbytes -= len(self._values[gone])
            gone += 1
        del self._values[:gone]
        self._first += gone


def clear_oldest(logs: Iterable[RecentEntries], bytes_max: int) -> None:
    """Clear runs until all together fit into `bytes_max`, those of the least recently extended logs first."""
    found = sorted(logs, key=lambda recent: recent.used)
    total = sum(recent.nbytes for recent in found)
    for recent in found:
        if total <= bytes_max:
            return
        total -= recent.nbytes
        recent.clear()


def fit_values(values: Sequence[bytes], at: int, bytes_max: int) -> tuple[bytes, ...]:
    """Return the values from `at` on that fit into `bytes_max`, at least one if there is one."""
    found: list[bytes] = []
    left = bytes_max
    for i in range(at, len(values)):
        left -= len(values[i])
        if found and left < 0:
            break
        found.append(values[i])
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStanding:
    """State of a replica for every thread of the broker, replaced as a whole after each step of the replica.

    `refusal` says why writes are refused here; empty = they are accepted. `leader` is an address, if one is known.
    """

    term: int = 0
    leads: bool = False
    catches_up: bool = False  # this replica follows and is not in sync: no acknowledgement needs its disk
    hands_over: bool = False  # another broker leads soon: clients look for it, and do not count this one as lost
    refusal: str = "the cluster's records have not been read yet"
    leader: str = ""
    high: int = 0
    leads_until: float = 0.0  # no other broker leads before this time of the lease's clock; 0 = not leading
    needed_from: int = 2**63  # the first entry that a follower of this leader does not have
    doubted: tuple[int, ...] = ()  # unclean terms whose loss is not recorded yet


class ReplicatedLogs:
    """Logs of a replicated broker, as `SharedLog`. The host publishes standings, the commit thread reads them."""

    def __init__(self, *, backlog_bytes: int = 1 << 30) -> None:
        self._backlog_bytes = backlog_bytes
        self._standings: dict[str, ReplicaStanding] = {}
        self._recent: dict[str, RecentEntries] = {}
        self._written = self._written_bytes = 0  # number of extensions, and their size since the last check
        #: By name: the number of the business, and the newest order of its replica that was executed.
        self._done: dict[str, tuple[int, int]] = {}
        self._tell: TellLog = lambda _business, _position: None
        self._tell_halted: TellHalted = lambda _business, _reason: None

    # -- for the host ----------------------------------------------------------------------------------------------

    def subscribe(self, changed: TellLog, halted: TellHalted = lambda _business, _reason: None) -> None:
        """Subscribe: the commit thread calls `changed` with positions of logs, and `halted` when a replica stops."""
        self._tell, self._tell_halted = changed, halted

    def publish(self, business: str, standing: ReplicaStanding) -> None:
        """Publish the standing of a replica."""
        self._recent.setdefault(business, RecentEntries(RECENT_BYTES))
        self._standings[business] = standing

    def forget(self, business: str) -> None:
        """Remove the standing of a removed replica."""
        self._standings.pop(business, None)
        self._recent.pop(business, None)
        self._done.pop(business, None)

    def standing(self, business: str) -> ReplicaStanding:
        """Return the standing of a replica."""
        return self._standings.get(business) or ReplicaStanding()

    def recent(self, business: str) -> RecentEntries | None:
        """Return the newest entries of a replica."""
        return self._recent.get(business)

    # -- for the commit thread -------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Always True: the logs are replicated."""
        return True

    def watermark(self, business: Business) -> int:
        """Return the newest index known to be safe, at least the applied one."""
        standing = self._standings.get(business.name)
        return max(standing.high, business.log.applied) if standing is not None else business.log.applied

    def term(self, business: Business) -> int:
        """Return the term in which this broker leads. Raises NotLeader, Unavailable."""
        standing = self.standing(business.name)
        if standing.refusal:
            raise write_refusal(business.name, standing)
        if business.log.terms.newest != standing.term:
            raise Unavailable(f"{business.name}: this broker has just begun to lead", hint="try again in a moment")
        return standing.term

    def leads(self, business: Business) -> bool:
        """Whether this broker leads the business, as far as it knows."""
        return self.standing(business.name).leads

    def catches_up(self, business: Business) -> bool:
        """Whether this replica follows and is not in sync."""
        return self.standing(business.name).catches_up

    def knows_end(self, business: Business, now: float) -> bool:
        """Return whether this broker certainly leads, and has applied everything that was safe when its term began."""
        standing, terms = self.standing(business.name), business.log.terms
        if now >= standing.leads_until or terms.newest != standing.term or not terms.starts:
            return False
        return business.visible_through >= max(terms.starts[-1][1], standing.high)

    def on_halted(self, business: Business) -> None:
        """Notify the host that a replica has stopped."""
        self._tell_halted(business.name, business.halted)

    def backlog(self, business: Business) -> Backlog:
        """Return which entries the followers of this broker still need."""
        return Backlog(needed_from=self.standing(business.name).needed_from, bytes_max=self._backlog_bytes)

    def on_written(self, business: Business, first: int, stored: Sequence[bytes]) -> None:
        """Keep entries for the followers and report the new position; they are not on disk yet."""
        recent = self._recent.get(business.name)
        if recent is not None:
            self._written += 1
            recent.used = self._written
            recent.extend(first, stored)
            self._make_room(sum(map(len, stored)))
            self._tell(business.name, log_position(business, self._order_of(business)))

    def on_changed(self, business: Business) -> None:
        """Report the position of the log."""
        recent = self._recent.get(business.name)
        if recent is not None:
            recent.truncate(business.log.end)
            self._tell(business.name, log_position(business, self._order_of(business)))

    def _make_room(self, nbytes: int) -> None:
        """Check from time to time that all logs together keep to the memory limit."""
        self._written_bytes += nbytes
        if self._written_bytes > RECENTS_BYTES // 8:
            self._written_bytes = 0
            clear_oldest(list(self._recent.values()), RECENTS_BYTES)

    def _order_of(self, business: Business) -> int:
        """Return the number of the replica's newest order that the log has executed, 0 if there is none."""
        number, order = self._done.get(business.name, (0, 0))
        return order if number == business.number else 0

    def record_order(self, group: CommandGroup, business: Business, order: int) -> None:
        """Record that a group executes or drops an order of the replica; the position is reported after the group."""
        self._done[business.name] = business.number, order
        group.log_changed.add(business)


def write_refusal(business: str, standing: ReplicaStanding) -> Unavailable:
    """Return the error for a write that cannot be accepted now."""
    text = f"{business}: {standing.refusal}"
    if standing.leads and not standing.hands_over:
        return Unavailable(text, hint="writes resume when enough replicas are in sync: `venus status` shows them")
    return NotLeader(text, leader=standing.leader)


def log_position(business: Business, done: int = 0) -> LogChanged:
    """Return the position of a log, with the newest executed order of its replica."""
    log = business.log
    durable_end = min(log.durable_end, log.end)
    return LogChanged(start=log.start, end=log.end, durable_end=durable_end, terms=log.terms, done=done)


logger = logging.getLogger(__name__)

#: Sizes of a frame of entries. A follower that reconnects fetches every business at once, so with many businesses
#: each frame gets a share of the total, but no less than the minimum.
FRAME_BYTES = 1 << 20
FRAMES_BYTES = 32 << 20
FRAME_BYTES_MIN = 64 << 10
#: A follower that catches up syncs once for each frame, so frames of few businesses are larger. With more businesses
#: the others, which may be in sync, would wait for such a frame.
BULK_FRAME_BYTES = 4 << 20
#: Maximum number of entries in one read of the store.
READ_ENTRIES_MAX = 4096

Retired = Callable[[str, NotLeader], None]


class CoreLogs:
    """Logs of this broker, as `effects.Logs`. `retired` ends the streams of producers and consumers."""

    def __init__(
        self, core: Core, shared: ReplicatedLogs, *, me: str, background: Post, retired: Retired = lambda _b, _e: None
    ) -> None:
        self._core = core
        self._shared = shared
        self._me = me
        self._background = background
        self._retired = retired

    def open(self, business: str) -> tuple[LogChanged, int, bool]:
        """Return the state of a log, its applied index, and False if an installation was interrupted."""
        found = self._core.catalogue.adopt(business)
        if found.halted:
            self._shared.on_halted(found)
        whole = self._core.store.get(keys.STATE, keys.installing_key(business)) is None
        return log_position(found), found.log.applied, whole

    def has(self, business: str) -> bool:
        """Whether the business has a log."""
        return self._core.catalogue.has_stored(business)

    def append(self, business: str, effect: Append, sender: str) -> None:
        """Append a leader's entries."""
        found = self._core.catalogue.find(business)

        def append_entries(group: CommandGroup) -> None:
            self._shared.record_order(group, found, effect.order)
            append_stored(group, found, effect.first, effect.entries, sender)
            if found.halted:
                self._shared.on_halted(found)

        self._submit(found, append_entries)

    def truncate(self, business: str, effect: Truncate) -> None:
        """Remove every entry from an index on."""
        found = self._core.catalogue.find(business)
        ordered = partial(self._shared.record_order, business=found, order=effect.order)
        self._log_failure(self._core.commits.truncate(found, effect.end, ordered))

    def advance(self, business: str) -> None:
        """Apply the entries that the standing reports as safe."""
        self._core.commits.advance()

    def lead(self, business: str, term: int) -> None:
        """Append the entry that begins a term."""
        found = self._core.catalogue.find(business)

        def append_beginning(group: CommandGroup) -> None:
            standing = self._shared.standing(business)
            if standing.leads and standing.term == term:
                begin_term(group, found, term, self._me, self._core.clock_us(), doubted=standing.doubted)

        self._submit(found, append_beginning)

    def refuse(self, business: str) -> None:
        """Fail waiting requests. Their proposals stay, and are found when the request is repeated."""
        error = write_refusal(business, self._shared.standing(business))
        self._core.commits.refuse_waiting(self._core.catalogue.find(business), error)

    def retire(self, business: str, leader: str) -> None:
        """Fail waiting requests and end the streams."""
        error = NotLeader(f"{business}: another broker leads", leader=leader)
        found = self._core.catalogue.find(business)
        self._core.subscriptions.retire(found)
        self._core.commits.refuse_waiting(found, error, partial(end_term, self._core.store, found))
        self._retired(business, error)

    def recent(self, business: str, first: int, *, is_bulk: bool = False) -> tuple[bytes, ...] | None:
        """Return entries from memory."""
        recent = self._shared.recent(business)
        return recent.read(first, self._frame_bytes(is_bulk=is_bulk)) if recent is not None else None

    def _frame_bytes(self, *, is_bulk: bool) -> int:
        """Return the approximate size of an answer's entries."""
        businesses = max(1, len(self._core.catalogue.list_stored()))
        most = max(FRAME_BYTES, BULK_FRAME_BYTES // businesses) if is_bulk else FRAME_BYTES
        return max(FRAME_BYTES_MIN, min(most, FRAMES_BYTES // businesses))

    def read(
        self, business: str, first: int, then: Callable[[tuple[bytes, ...]], None], *, is_bulk: bool = False
    ) -> None:
        """Read entries from the store."""
        self._background(lambda: self._read_from_store(business, first, self._frame_bytes(is_bulk=is_bulk), then))

    def _read_from_store(
        self, business: str, first: int, frame_bytes: int, then: Callable[[tuple[bytes, ...]], None]
    ) -> None:
        """Read entries from the store, check them, and pass them to `then`."""
        found = self._core.catalogue.find(business)
        start, stop = keys.log_key(found.number, first), keys.log_key(found.number, found.log.durable_end)
        try:
            found_keys, values, _ = self._core.store.read_range(
                keys.RLOG, start, max(start, stop), rows_max=READ_ENTRIES_MAX, bytes_max=frame_bytes
            )
            dense = 0
            while dense < len(found_keys) and keys.log_index(found_keys[dense]) == first + dense:
                decode(
                    values[dense], first + dense, where=str(self._core.store.path)
                )  # followers would reject a damaged entry
                dense += 1
        except StorageError as error:
            self._core.commits.fail(error)
            return
        then(fit_values(values[:dense], 0, frame_bytes))

    def _submit(self, business: Business, work: Callable[[CommandGroup], None]) -> None:
        """Queue a command, and log its failure."""
        self._log_failure(self._core.commits.submit(work, line=business))

    @staticmethod
    def _log_failure(future: Future[Any]) -> None:
        """Log the error of a command once its future is done."""

        def on_done(finished: Future[Any]) -> None:
            if not finished.cancelled() and finished.exception() is not None:
                logger.warning("replication: %s", finished.exception())

        future.add_done_callback(on_done)
