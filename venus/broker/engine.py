"""The broker's durable half: everything between a frame that arrives and a frame that leaves, without gRPC.

Thread-safe. One storage thread writes the log and the queue, one thread the full data; what producers ask is a
future that is resolved after the fsync of its group; what consumers ask is answered in the caller's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import venus
from venus.broker.log.upgrade import UPGRADES
from venus.broker.machine import machine, retention, state
from venus.broker.machine.catalogue import Catalogue
from venus.broker.machine.consumers import kept_for
from venus.broker.machine.review_schedule import Reviews
from venus.broker.machine.state import Business
from venus.broker.pipeline import commit_thread, forgetting, producer_commands
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.pipeline.consumer_groups import ConsumerGroups
from venus.broker.pipeline.group import Group
from venus.broker.pipeline.producer_commands import HalvesResult, Shipped
from venus.broker.pipeline.upkeep import Upkeep
from venus.broker.queue import early_delivery, places, reader
from venus.broker.queue.buffer import Buffer
from venus.broker.queue.early_delivery import Sent
from venus.broker.queue.reader import ReadResult
from venus.broker.service import figures
from venus.broker.snapshot.materialiser import Materialiser
from venus.broker.snapshot.scavenger import Scavenger
from venus.broker.snapshot.snapshots import Snapshots
from venus.broker.store import keys
from venus.broker.store.format import check_format
from venus.broker.store.rocks import Store, WriteHook
from venus.broker.store.space import Space
from venus.codec.chunk import Sealed
from venus.config import Broker
from venus.errors import StorageError, StoreFull
from venus.model import Verdict
from venus.wire import broker_pb2

__all__ = ["Engine", "HalvesResult", "ReadResult"]

logger = logging.getLogger(__name__)

OnCommit = Callable[[str, int], None]

#: A half message that is undecided for so many review times is an alarm.
HALF_ALARM_REVIEWS = 10
HALF_ALARM_MIN_S = 60.0
REVIEWED_AT_ONCE_MAX = 64


class Engine:
    """Half messages, the queue, the full data and the consumers of every business."""

    def __init__(
        self,
        data_dir: Path,
        settings: Broker,
        *,
        clock_us: Callable[[], int],
        monotonic: Callable[[], float],
        on_fatal: Callable[[BaseException], None],
        on_write: WriteHook | None = None,
        watermark: Callable[[Business], int] = commit_thread.alone,
    ) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._on_fatal = on_fatal
        self._on_write = on_write
        self._watermark = watermark
        self.catalogue = Catalogue(self._new_business)
        self._callbacks: list[OnCommit] = []
        self._started_at_us = clock_us()

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the store, replay the log, start the threads. Raises Corruption, StorageError."""
        settings = self._settings
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._store = Store(self._data_dir / "db", cache_bytes=settings.cache_bytes, on_write=self._on_write)
        self._buffer = Buffer(settings.buffer_bytes_max)
        self._space = Space(self._data_dir, settings.free_bytes_min)
        self._scavenger = Scavenger(self._store, forget_below=self._forget_below, monotonic=self._monotonic)
        self._materialiser = Materialiser(
            self._store,
            self._buffer,
            self._space,
            behind_bytes_max=settings.buffer_bytes_max,
            monotonic=self._monotonic,
            scavenger=self._scavenger,
            on_fatal=lambda error: self.commits.fail(error),
        )
        self._upkeep = Upkeep(
            self._store,
            self._buffer,
            settings,
            catalogue=self.catalogue,
            snapshots=lambda: self._snapshots,
            clock_us=self._clock_us,
            monotonic=self._monotonic,
            on_fatal=lambda error: self.commits.fail(error),
        )
        self.commits = CommitThread(
            self._store,
            self._buffer,
            throttle=self._materialiser.slow_down,
            publish=self._publish,
            maintain=self._upkeep,
            on_fatal=self._on_fatal,
            linger_s=settings.group_commit_ms / 1000,
            watermark=self._watermark,
        )
        self._groups = ConsumerGroups(
            submit=self.commits.submit,
            is_stored=self.catalogue.is_stored,
            changed=self._upkeep.acknowledged,
            clock_us=self._clock_us,
        )
        self._snapshots = Snapshots(
            self._data_dir / "snapshots",
            self._space,
            default_lease_s=settings.snapshot_lease_s,
            clock_us=lambda: int(self._monotonic() * 1e6),
            checkpoint=self._materialiser.checkpoint,
            record=self._record_pin,
        )
        self._load()
        self._materialiser.start(self.catalogue.stored())
        self.commits.start(self.catalogue.stored())

    def stop(self) -> None:
        """Finish what is queued and close everything."""
        self.commits.submit(self._upkeep.finish)
        self.commits.stop()
        self._materialiser.stop()
        self._upkeep.close()
        self._snapshots.close_all()
        try:
            self._store.close()
        except StorageError:
            if not self.commits.failed:
                raise
            logger.info("closed after a failure of the store")

    def _load(self) -> None:
        check_format(self._store, UPGRADES)
        found = list(state.load_all(self._store, self._settings.review_after_s))
        for business in found:
            business.log.find_end(self._store)
            business.log.committed = self._watermark(business)
            entries = machine.replay(self._store, business)
            machine.pend_rest(self._store, business)
            if entries:
                logger.info("%s: replayed %d log entries", business.name, entries)
            places.load_tail(self._store, business)
            for undecided in business.committed.halves:
                business.reviews.expect(undecided.batch_no, self._monotonic())
            for table_id in business.materialised.floors:
                self._scavenger.notice(business, table_id)
        self.catalogue.load(self._store, found)
        self._snapshots.load(self._store)

    # -- producers ---------------------------------------------------------------------------------------------

    def init(
        self, business: str, producer: str, source_epoch: int, source_last_batch: int
    ) -> Future[broker_pb2.InitAck]:
        """Fence older producers, and be connected until `leave`.

        Fails with Diverged if this broker lost what the source has committed.
        """
        found = self.catalogue.enter(business)

        def work(group: Group) -> broker_pb2.InitAck:
            self._space.check_decision()
            return producer_commands.init(group, found, producer, source_epoch, source_last_batch, self._clock_us())

        return self.commits.submit(work, business=found)

    def leave(self, business: str) -> None:
        """End what `init` began, whether it failed or not."""
        self._release(self.catalogue.known(business))

    def halves(self, business: str, epoch: int, halves: Sequence[Shipped | broker_pb2.Half]) -> Future[HalvesResult]:
        """Persist half messages whose digests the caller has checked."""
        found = self.catalogue.known(business)
        shipped = [half if isinstance(half, Shipped) else _shipped(half) for half in halves]
        nbytes = sum(len(half.body) for half in shipped)

        def work(group: Group) -> HalvesResult:
            return producer_commands.take_halves(group, found, epoch, shipped, self._clock_us(), self._space)

        return self.commits.submit(work, nbytes, business=found)

    def decide(self, business: str, epoch: int, batch_no: int, digest: int, verdict: int) -> Future[broker_pb2.Decided]:
        """COMMIT every half up to `batch_no`, or ROLLBACK every one from it on."""
        found = self.catalogue.known(business)

        def work(group: Group) -> broker_pb2.Decided:
            self._space.check_decision()
            return producer_commands.decide(group, found, epoch, batch_no, digest, Verdict(verdict), self._clock_us())

        return self.commits.submit(work, business=found)

    def operator_decide(self, business: str, batch_no: int, verdict: int) -> Future[broker_pb2.Decided]:
        """Decide in the place of a producer, and fence off the one that is connected."""
        found = self.catalogue.known(business)

        def work(group: Group) -> broker_pb2.Decided:
            self._space.check_decision()
            return producer_commands.operator_decide(group, found, batch_no, Verdict(verdict), self._clock_us())

        return self.commits.submit(work, business=found)

    def due_reviews(self) -> list[tuple[str, int, list[broker_pb2.HalfRef]]]:
        """Return, per business, the epoch and the half messages to ask its producer about now."""
        now = self._monotonic()
        found = []
        for business in self.catalogue.present():
            current = business.committed
            with business.lock:
                due = business.reviews.due(now)[:REVIEWED_AT_ONCE_MAX]
                halves = [half for n in due if (half := current.undecided(n)) is not None]
                refs = [producer_commands.half_ref(business, half) for half in halves]
            if refs:
                found.append((business.name, current.epoch, refs))
        return found

    def review_delivered(self, business: str, batch_nos: Sequence[int]) -> None:
        """Count reviews that reached a producer; others do not count."""
        found = self.catalogue.known(business)
        with found.lock:
            found.counters["reviews_sent"] += found.reviews.delivered(batch_nos, self._monotonic())

    # -- consumers ---------------------------------------------------------------------------------------------

    def read(self, business: str, offset: int, max_bytes: int, table_ids: Sequence[int] = ()) -> ReadResult:
        """Return committed increments from `offset` on. Raises OffsetTrimmed, OffsetDiverged."""
        found = self.catalogue.known(business)
        with self._fail_stop():
            return reader.read(self._store, self._buffer, found, offset, max_bytes, frozenset(table_ids))

    def read_ahead(self, business: str, sent: Sent, max_bytes: int) -> list[broker_pb2.Increment]:
        """Return half messages that follow what a consumer has been sent, or a withdrawal of that; [] = no news."""
        found = self.catalogue.known(business)
        with self._fail_stop():
            return early_delivery.read(self._store, self._buffer, found, sent, max_bytes)

    def check_position(self, business: str, offset: int, epoch: int) -> broker_pb2.Opened:
        """Say whether a consumer may go on from here. Raises OffsetTrimmed, OffsetDiverged."""
        return reader.check(self.catalogue.known(business), offset, epoch)

    def on_commit(self, callback: OnCommit) -> None:
        """Call back, from the storage thread, when a business has a new end; must not block."""
        self._callbacks.append(callback)

    def attach(
        self, business: str, group: str, offset: int, *, kept: int | None = None, transient: bool = False
    ) -> int:
        """Note that a stream of a group reads from `offset` on, having applied everything below, until `detach`.

        Return its token.
        """
        found = self.catalogue.hold(business)
        try:
            return self._groups.attach(found, group, offset, kept=kept, transient=transient)
        except BaseException:
            self._release(found)
            raise

    def acknowledge(self, business: str, group: str, token: int, offset: int, kept: int | None = None) -> bool:
        """Note that a group has applied what is below `offset` and needs what is from `kept` on; never goes back."""
        return self._groups.acknowledge(self.catalogue.known(business), group, token, offset, kept)

    def detach(self, business: str, group: str, token: int) -> None:
        """Note that a stream has ended; a transient reader is forgotten."""
        found = self.catalogue.known(business)
        self._release(found)
        self._groups.detach(found, group, token)

    def kept(self, business: str, group: str, token: int) -> int:
        """Return from which offset on the queue is kept for a stream."""
        return self._groups.kept(self.catalogue.known(business), group, token)

    def forget(self, business: str, group: str) -> None:
        """Stop keeping increments for a group that will not come back. Raises Refused, Unavailable."""
        self._groups.forget(self.catalogue.known(business), group)

    def forget_business(self, business: str) -> None:
        """Remove a business for good: its log, queue, rows, state and snapshots; frees the space before it returns.

        Raises Unavailable for an unknown one, Refused while a producer or a consumer is connected.
        """
        found = self.catalogue.take_out(business)
        try:
            self.commits.submit(lambda _: None).result()  # what was asked for it before has been done
            self._materialiser.forget(found).result()
            self._snapshots.forget(found)
            self.commits.submit(lambda group: forgetting.forget(group, found, self.catalogue)).result()
        except BaseException:
            found.is_forgotten = False
            self.catalogue.put_back(found)
            self._materialiser.notice(found)
            raise
        self.catalogue.forgotten(found)
        with self._fail_stop():
            forgetting.give_back(self._store, found)

    # -- full data ---------------------------------------------------------------------------------------------

    def open_snapshot(self, request: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        """Cut the full data at the end of a source transaction; holds everything that is visible now."""
        with self._fail_stop():
            return self._snapshots.open(self.catalogue.filled(request.business), request)

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[Sealed]:
        """Read a key range of a snapshot. Raises SnapshotExpired; a damaged file raises, it never ends early."""
        with self._fail_stop():
            yield from self._snapshots.read_split(request)

    def sum_snapshot(self, snapshot_id: str) -> broker_pb2.SnapshotTotals:
        """Sum up the planned splits of a snapshot. Raises SnapshotExpired."""
        with self._fail_stop():
            return self._snapshots.sums(snapshot_id)

    def renew(self, snapshot_id: str) -> broker_pb2.Snapshot:
        """Extend the lease of a snapshot. Raises SnapshotExpired."""
        return self._snapshots.renew(snapshot_id)

    def close_snapshot(self, snapshot_id: str) -> None:
        """End the lease of a snapshot."""
        self._snapshots.close(snapshot_id)

    # -- what operators see ------------------------------------------------------------------------------------

    def count(self, business: str, counter: str, n: int = 1) -> None:
        """Add to a counter of a business; kept with the next write."""
        self.catalogue.known(business).count(counter, n)

    def status(self, business: str = "") -> broker_pb2.BrokerStatus:
        """Describe the broker, and one business or all of them."""
        free = self._space.free()
        buffer = self._buffer.status()
        settings = self._settings
        alarms = []
        if self._space.refusing or free < settings.free_bytes_min:
            alarms.append(f"{self._data_dir} has only {free >> 20} MiB free: half messages are refused")
        if self.commits.failed:
            alarms.append("the store has failed: the broker must be restarted")
        chosen = [found for found in self.catalogue.present() if business in ("", found.name)]
        return broker_pb2.BrokerStatus(
            version=venus.__version__,
            started_at_us=self._started_at_us,
            free_bytes=free,
            buffer_bytes=buffer.nbytes,
            buffer_limit_bytes=self._buffer.bytes_max,
            alarms=alarms,
            businesses=[
                figures.business_status(
                    self._store,
                    found,
                    now_us=self._clock_us(),
                    half_alarm_s=max(HALF_ALARM_MIN_S, HALF_ALARM_REVIEWS * settings.review_after_s),
                    behind_bytes_max=settings.buffer_bytes_max,
                    held_bytes_max=settings.retain_bytes,
                )
                for found in chosen
            ],
        )

    # -- inside ------------------------------------------------------------------------------------------------

    def _new_business(self, number: int, name: str) -> Business:
        return Business(number, name, Reviews(first_s=self._settings.review_after_s))

    def _release(self, business: Business) -> None:
        """Let a business go behind everything that was asked for it."""
        self.commits.submit(lambda group: self.catalogue.release(business, storing=business in group.touched()))

    @contextmanager
    def _fail_stop(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if not isinstance(error, StoreFull):
                self.commits.fail(error)
            raise

    def _record_pin(self, snapshot_id: str, content: bytes | None) -> Future[None]:
        def work(group: Group) -> None:
            group.stage(keys.STATE, keys.pin_key(snapshot_id), content)
            group.durable = group.durable or content is not None

        return self.commits.submit(work)

    def _forget_below(self, business: Business) -> int:
        kept = kept_for(business.attached())
        trim = retention.trim_point(business.materialised.offset, kept, self._snapshots.offsets(business))
        return retention.forget_tombstones_below(business.marks, trim, self._clock_us())

    # -- in the storage thread ---------------------------------------------------------------------------------

    def _publish(self, group: Group) -> None:
        now = self._monotonic()
        for business, pending in group.appended:
            if pending.content is not None:
                self._buffer.save((business.number, pending.index), pending.entry.body)
        for business, applied in group.applied.items():
            with business.lock:
                business.reviews.settle(applied.settled)
                for batch_no in applied.expected:
                    business.reviews.expect(batch_no, now)
            business.tail.extend(applied.placed)
        for business in group.changed:
            business.committed = business.applying
        for business in (business for business, applied in group.applied.items() if applied.placed):
            business.visible_offset = business.committed.next_offset
            self._materialiser.notice(business)
            self._call_back(business)
        for business in group.changed:
            self.catalogue.keep(business)
            undecided = early_delivery.published(business)
            if undecided != business.undecided:
                business.undecided = undecided
                self._call_back(business)

    def _call_back(self, business: Business) -> None:
        for callback in self._callbacks:
            try:
                callback(business.name, business.visible_offset)
            except Exception:
                logger.exception("a listener failed; what it was told about is committed all the same")


def _shipped(half: broker_pb2.Half) -> Shipped:
    return Shipped(batch_no=half.batch_no, digest=half.digest, body=half.body)
