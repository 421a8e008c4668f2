"""Live subscriptions of all businesses: a thread matches their predicates with every batch that the materialiser folds.

The materialiser hands over each batch of a watched table, with the previous rows. Matching never delays it: if more
than `QUEUE_BYTES_MAX` waits, the waiting batches of the business with the most bytes are dropped. Its subscriptions
read that part of the queue again, without the previous rows: only then may a reader get deletions of rows that it does
not have.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from venus.broker.listening.watched_table import WatchedTable
from venus.broker.machine.business import Business
from venus.broker.machine.records import load_schemas
from venus.broker.snapshot.watched_rows import FoldedBatch, FoldedSection
from venus.broker.store.rocks import Store
from venus.codec import schema as schemas_codec
from venus.codec.changed_rows import ChangeEncoder, ChangeVerdicts, encode_truncation
from venus.errors import Refused, VenusError
from venus.model import ChangeKind
from venus.network.matching.content import SharedInterests
from venus.predicates.ranges import Predicate, compile_predicate
from venus.wire import broker_pb2, change_pb2

logger = logging.getLogger(__name__)

#: Limit of the bytes of folded batches that wait to be matched, of all businesses.
QUEUE_BYTES_MAX = 32 << 20
#: At most this many waiting batches are judged together.
TOGETHER_MAX = 32
#: Pause after a judgement, for each stream that the judgement reached; no pause if `TOGETHER_MAX` batches wait. A frame
#: costs the event loop more than judging does, and batches that are judged together share frames.
PAUSE_OF_STREAM_S = 0.0015
PAUSE_MAX_S = 0.1
#: How long the thread waits for work before it ends.
IDLE_S = 10.0


class Listener(Protocol):
    """The stream of a client, as the key under which its subscriptions and their changes are kept."""


@dataclass(slots=True)
class JudgedBatch:
    """Result of matching a batch: changes and events for each stream, or a gap (a part of the queue not matched)."""

    business: int
    base_offset: int
    next_offset: int
    epoch: int = 0
    committed_at_us: int = 0
    at_cut_end: bool = True
    is_gap: bool = False  # a gap: nothing up to `next_offset` was judged
    changes: dict[Listener, list[broker_pb2.ChangedRows]] = field(default_factory=lambda: defaultdict(list))
    schemas: list[change_pb2.TableSchema] = field(default_factory=list)
    #: Subscriptions that ended, each with the error, and those that must take all rows again.
    ended: list[tuple[Listener, int, VenusError]] = field(default_factory=list)
    reloads: list[tuple[Listener, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Owner:
    """Owner of a subscription: its stream, the business, the table, and its number on the stream."""

    listener: Listener
    business: int
    table_id: int
    number: int
    columns: frozenset[int] | None  # the numbers of the wanted columns; None = all
    cost: int  # values in its predicate


@dataclass(frozen=True, slots=True)
class WantedSubscription:
    """A subscription of a stream, by the stream's number; an empty predicate stands for every row."""

    number: int
    predicate: str
    columns: frozenset[int] | None = None


class Listening:
    """The live subscriptions of a broker. Thread-safe."""

    def __init__(
        self, store: Store, *, subscriptions_max: int, values_max: int = 500_000, values_of_stream_max: int = 100_000
    ) -> None:
        self._store, self._most = store, subscriptions_max
        self._values_max, self._values_of_stream_max = values_max, values_of_stream_max
        self._lock = threading.Lock()  # guards the subscriptions
        self._tables: dict[tuple[int, int], WatchedTable] = {}
        self._owners: dict[int, _Owner] = {}
        self._costs: Counter[Listener] = Counter()  # values in the predicates of each stream
        self._cost = 0  # values in the predicates of all streams
        self._next = 1
        #: The watched tables by business, for the materialiser; replaced, never changed.
        self.watched_tables: dict[int, frozenset[int]] = {}
        self._work = threading.Condition()  # guards the waiting batches
        self._waiting: deque[tuple[int, FoldedBatch | JudgedBatch]] = deque()
        self._nbytes: Counter[int] = Counter()  # bytes of the waiting batches, by business
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        #: Called in the judging thread with each result, for each business in the order of its batches.
        self.deliver: Callable[[JudgedBatch], None] = lambda _: None
        #: Called with the number of a mirror that lost all rows.
        self.on_lost: Callable[[int], None] = lambda _: None
        #: Returns the object that shares a table's interests with other brokers, by the table's name, or None.
        self.shared_table: Callable[[str], SharedInterests | None] = lambda _: None
        self._gone: deque[int] = deque()
        self.judged_changes = self.gaps = 0

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be judged."""
        return self._nbytes.total()

    def stop(self) -> None:
        """End the thread."""
        with self._work:
            self._stopping.set()
            self._work.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    # -- subscriptions -------------------------------------------------------------------------------------------

    def subscribe(
        self, business: Business, table_id: int, wanted: Sequence[WantedSubscription], listener: Listener
    ) -> tuple[list[int], list[tuple[int, VenusError]]]:
        """Add subscriptions of a listener, from the next visible batch on.

        Return the numbers of the added subscriptions, and the client's number of each refused one with its error.
        Every batch that becomes visible after `subscribe` returns is matched with the added subscriptions.
        """
        compiled = self._compile(business, table_id, wanted)
        with self._lock:
            self._drop_ended()
            if len(self._owners) + len(wanted) > self._most:
                raise Refused(
                    f"this broker has {len(self._owners)} subscriptions and serves {self._most} at most",
                    hint="[broker.limits] subscriptions allows more",
                )
            table = self._tables.get((business.number, table_id))
            if table is None:
                shared = self.shared_table(f"{business.name}/{table_id}")
                described = load_schemas(self._store, business.number, table_id)
                table = WatchedTable((schema for _, schema in described), shared)
            made: list[int] = []
            refused: list[tuple[int, VenusError]] = []
            for one, found in zip(wanted, compiled, strict=True):
                try:
                    if isinstance(found, VenusError):
                        raise found
                    cost = found.cost if found is not None else 0
                    self._check_cost(self._costs[listener], cost, self._values_of_stream_max, "this stream")
                    self._check_cost(self._cost, cost, self._values_max, "this broker")
                    table.add(self._next, one.predicate, found)
                except VenusError as error:
                    refused.append((one.number, error))
                    continue
                self._owners[self._next] = _Owner(listener, business.number, table_id, one.number, one.columns, cost)
                self._costs[listener] += cost
                self._cost += cost
                made.append(self._next)
                self._next += 1
            if made:
                self._tables[business.number, table_id] = table
                self._publish()
        return made, refused

    def _compile(
        self, business: Business, table_id: int, wanted: Sequence[WantedSubscription]
    ) -> list[Predicate | VenusError | None]:
        """Compile predicates for the newest version; return each (None = every row) or the error that refuses it.

        Compiles without the lock, because long predicates would delay the matching of batches.
        """
        with self._lock:
            table = self._tables.get((business.number, table_id))
            newest = table.newest if table is not None else None
        newest = newest or load_schemas(self._store, business.number, table_id)[-1][1]
        found: list[Predicate | VenusError | None] = []
        cost = 0
        for one in wanted:
            try:
                self._check_cost(cost, 1 if one.predicate else 0, self._values_of_stream_max, "this stream")
                predicate = compile_predicate(one.predicate, newest) if one.predicate else None
                cost += predicate.cost if predicate is not None else 0
                found.append(predicate)
            except VenusError as error:
                found.append(error)
        return found

    @staticmethod
    def _check_cost(had: int, cost: int, most: int, whose: str) -> None:
        """Raise Refused if one more predicate would give a stream or the broker too many values."""
        if cost and had + cost > most:
            option = "predicate_values_of_client" if whose == "this stream" else "predicate_values"
            raise Refused(
                f"the predicates of {whose} have {had} values, {cost} more would exceed {most}",
                hint=f"[broker.limits] {option} allows more",
            )

    def unsubscribe(self, numbers: Iterable[int]) -> None:
        """Remove subscriptions; ended ones are ignored. Never waits for a running match: the event loop calls this."""
        self._gone.extend(numbers)
        if self._lock.acquire(blocking=False):
            try:
                self._drop_ended()
            finally:
                self._lock.release()

    def _drop_ended(self) -> None:
        """Drop ended subscriptions, before a batch is matched or a subscription begins. The caller holds the lock."""
        if not self._gone:
            return
        while self._gone:
            number = self._gone.popleft()
            if number in self._owners:
                owner = self._pop_owner(number)
                self._tables[owner.business, owner.table_id].remove(number)
        self._publish()

    def _pop_owner(self, number: int) -> _Owner:
        owner = self._owners.pop(number)
        self._cost -= owner.cost
        self._costs[owner.listener] -= owner.cost
        if not self._costs[owner.listener]:
            del self._costs[owner.listener]
        return owner

    def _publish(self) -> None:
        """Drop tables without subscriptions, and publish the watched ones to the materialiser."""
        self._tables = {at: table for at, table in self._tables.items() if len(table)}
        watched: defaultdict[int, set[int]] = defaultdict(set)
        for business, table_id in self._tables:
            watched[business].add(table_id)
        if (found := {business: frozenset(tables) for business, tables in watched.items()}) != self.watched_tables:
            self.watched_tables = found

    # -- the materialiser's thread -------------------------------------------------------------------------------

    def on_folded(self, business: Business, folded: Sequence[FoldedBatch]) -> None:
        """Queue batches; if too many bytes wait, drop the waiting batches of the business with the most bytes."""
        with self._work:
            self._waiting.extend((business.number, batch) for batch in folded)
            self._nbytes[business.number] += sum(batch.nbytes for batch in folded)
            while self._nbytes.total() > QUEUE_BYTES_MAX:
                self._replace_waiting_by_gap(max(self._nbytes, key=self._nbytes.__getitem__))
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="venus-judge", daemon=True)
                self._thread.start()
            self._work.notify()

    def _replace_waiting_by_gap(self, business: int) -> None:
        dropped = [batch for number, batch in self._waiting if number == business]
        places = [batch.place if isinstance(batch, FoldedBatch) else batch for batch in dropped]
        first, last = places[0], places[-1]
        gap = JudgedBatch(business, first.base_offset, last.next_offset, last.epoch, is_gap=True)
        for batch in dropped:
            gap.schemas += batch.schemas
        self._waiting = deque(item for item in self._waiting if item[0] != business)
        self._waiting.append((business, gap))
        del self._nbytes[business]
        self.gaps += 1

    def on_refill(self, business: Business) -> None:
        """Handle the loss of all rows of a mirror: the streams end, and their clients connect again."""
        self.on_lost(business.number)

    # -- the judging thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Judge waiting batches and deliver the results, until none has come for a while."""
        while (item := self._take_batches()) is not None:
            number, batch = item
            began = time.monotonic()
            judged = self.skip(batch) if isinstance(batch, JudgedBatch) else self.judge(number, batch)
            pause_s = find_pause_s(len(judged.changes))  # computed first, because the event loop takes the changes out
            self.deliver(judged)
            if len(self._waiting) < TOGETHER_MAX and (rest_s := began + pause_s - time.monotonic()) > 0:
                self._stopping.wait(rest_s)

    def _take_batches(self) -> tuple[int, FoldedBatch | JudgedBatch] | None:
        """Wait for batches; return the next gap, or the next batches joined. None = the thread ends."""
        with self._work:
            while not self._waiting:
                if self._stopping.is_set() or (not self._work.wait(IDLE_S) and not self._waiting):
                    self._thread = None
                    return None
            number, batch = self._waiting.popleft()
            if not isinstance(batch, FoldedBatch):
                return number, batch
            together = [batch]
            while (
                self._waiting and len(together) < TOGETHER_MAX and _can_follow(number, together[-1], self._waiting[0])
            ):
                follower = self._waiting.popleft()[1]
                assert isinstance(follower, FoldedBatch)
                together.append(follower)
            self._nbytes[number] -= sum(one.nbytes for one in together)
            if not self._nbytes[number]:
                del self._nbytes[number]
            return number, join_batches(together)

    def skip(self, gap: JudgedBatch) -> JudgedBatch:
        """Add the table versions of a gap, which is not matched; return it with the subscriptions that they end."""
        with self._lock:
            self._drop_ended()
            for schema in gap.schemas:
                self._add_table_version(gap, schema)
        return gap

    def judge(self, business: int, batch: FoldedBatch) -> JudgedBatch:
        """Match a batch with the subscriptions; return the changes and events for each stream."""
        place = batch.place
        judged = JudgedBatch(
            business,
            place.base_offset,
            place.next_offset,
            place.epoch,
            place.committed_at_us,
            at_cut_end=place.cut_end,
            schemas=list(batch.schemas),
        )
        with self._lock:
            self._drop_ended()
            try:
                for schema in batch.schemas:
                    self._add_table_version(judged, schema)
                for section in batch.sections:
                    self._judge_section(judged, section)
            except Exception:  # `judged` keeps the subscriptions that ended or reload: no table has them any more
                logger.exception("judging failed; the subscriptions read the queue again")
                judged.changes.clear()
                judged.is_gap = judged.at_cut_end = True
                for schema in batch.schemas:
                    self._add_table_version(judged, schema)
            self._drop_ended()
        return judged

    def _add_table_version(self, judged: JudgedBatch, schema: change_pb2.TableSchema) -> None:
        table = self._tables.get((judged.business, schema.table_id))
        if table is None:
            return
        for number, error in table.describe(schemas_codec.from_wire(schema)).items():
            owner = self._pop_owner(number)
            judged.ended.append((owner.listener, owner.number, error))
        self._publish()

    def _judge_section(self, judged: JudgedBatch, section: FoldedSection) -> None:
        table = self._tables.get((judged.business, section.table_id))
        if table is None:
            return
        if not section.is_exact:
            self._end_for_reload(judged, table)
        elif section.kind is ChangeKind.TRUNCATE:
            for listener, numbers in self._group_by_listener(table.numbers).items():
                judged.changes[listener].append(encode_truncation(section.table_id, numbers))
        elif section.kind is ChangeKind.CHANGES:
            self.judged_changes += len(section.after)
            self._distribute_verdicts(judged, section, table.judge(section.before, section.after))

    def _end_for_reload(self, judged: JudgedBatch, table: WatchedTable) -> None:
        """End the live subscriptions to a table, because they must load all its rows again."""
        for number in table.numbers:
            owner = self._pop_owner(number)
            table.remove(number)
            judged.reloads.append((owner.listener, owner.number))
        self._publish()

    def _group_by_listener(self, numbers: Iterable[int]) -> dict[Listener, list[int]]:
        found: defaultdict[Listener, list[int]] = defaultdict(list)
        for number in numbers:
            owner = self._owners[number]
            found[owner.listener].append(owner.number)
        return found

    def _distribute_verdicts(self, judged: JudgedBatch, section: FoldedSection, verdicts: ChangeVerdicts) -> None:
        """Add the changes that match to the result, for each stream under its own subscription numbers."""
        if not len(verdicts):
            return
        encoder = ChangeEncoder(section.table_id, section.after)
        owners = [self._owners[number] for number in verdicts.subscriptions.tolist()]
        place: dict[tuple[Listener, frozenset[int] | None], int] = {}
        whose = np.fromiter(
            (place.setdefault((owner.listener, owner.columns), len(place)) for owner in owners), np.int64, len(owners)
        )
        own = np.fromiter((owner.number for owner in owners), np.int64, len(owners))
        order = np.argsort(whose, kind="stable")
        bounds = np.searchsorted(whose[order], np.arange(len(place) + 1))
        for n, (listener, columns) in enumerate(place):
            mine = order[bounds[n] : bounds[n + 1]]
            part = ChangeVerdicts(verdicts.changes[mine], own[mine], verdicts.operations[mine])
            judged.changes[listener].append(encoder.encode(part, columns))


def find_pause_s(streams: int) -> float:
    """Return the least time from the start of one judgement to the next, by the number of streams that it reached."""
    return min(PAUSE_MAX_S, PAUSE_OF_STREAM_S * streams)


def _can_follow(business: int, batch: FoldedBatch, item: tuple[int, FoldedBatch | JudgedBatch]) -> bool:
    """Return whether a batch may be judged together with `item`, which follows it in the queue."""
    number, follower = item
    return (
        number == business
        and isinstance(follower, FoldedBatch)
        and batch.place.cut_end
        and _has_changes_only(batch)
        and _has_changes_only(follower)
    )


def _has_changes_only(batch: FoldedBatch) -> bool:
    return not batch.schemas and all(one.is_exact and one.kind is ChangeKind.CHANGES for one in batch.sections)


def join_batches(some: Sequence[FoldedBatch]) -> FoldedBatch:
    """Join consecutive batches, so that a thread that lags judges and sends them together.

    A subscription that became live between the batches gets the earlier changes twice; its final rows are the same.
    """
    if len(some) == 1:
        return some[0]
    before: defaultdict[int, list[bytes | None]] = defaultdict(list)
    after: defaultdict[int, list[bytes]] = defaultdict(list)
    for section in (section for batch in some for section in batch.sections):
        before[section.table_id] += section.before
        after[section.table_id] += section.after
    sections = [
        FoldedSection(table_id=table_id, kind=ChangeKind.CHANGES, before=before[table_id], after=values)
        for table_id, values in after.items()
    ]
    first, last = some[0].place, some[-1].place
    place = replace(last, base_offset=first.base_offset, count=last.next_offset - first.base_offset)
    return FoldedBatch(place=place, sections=sections, schemas=())
