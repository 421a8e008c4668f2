"""The broker without its network servers: creates its parts, and starts and stops them in order.

Core makes no decisions. Producers, consumers, loaders and operators each use their own part of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from venus.broker.listening.listening import Listening
from venus.broker.log.log import UPGRADES, check_format
from venus.broker.machine import consumers, machine, queue_index, records
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.consumers import kept_offsets
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.pipeline.commit_thread import CommitThread, guard_with
from venus.broker.pipeline.consumer_groups import ConsumerGroups
from venus.broker.pipeline.group import halt
from venus.broker.pipeline.home_commands import BusinessRemoval, HomeCommands, put_removal, put_state_removal
from venus.broker.pipeline.mirror_commands import MirrorCommands
from venus.broker.pipeline.producer_commands import Producers
from venus.broker.pipeline.publisher import Publisher
from venus.broker.pipeline.shared_log import SharedLog, StandaloneLog
from venus.broker.pipeline.subscriptions import FullDataService, Subscriptions
from venus.broker.pipeline.upkeep import Upkeep
from venus.broker.queue import reader
from venus.broker.queue.border_masks import border_for
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.snapshot import consistency, scrub
from venus.broker.snapshot.materialiser import Materialiser
from venus.broker.snapshot.scavenger import Scavenger
from venus.broker.snapshot.scrub import Scrub
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.broker.status.broker_status import StatusBuilder
from venus.broker.store import files, keys
from venus.broker.store.files import FreeBytes, FreeSpace, make_private
from venus.broker.store.rocks import Store, WriteHook
from venus.config import BrokerSettings
from venus.errors import StorageError
from venus.flow.precedence import Precedence
from venus.masking.border import Border

logger = logging.getLogger(__name__)
#: The first area of a copy (venus/broker/replicas/copies.py) that holds state. Areas before it hold log, queue and
#: rows.
FIRST_STATE_AREA = 3


class Core:
    """All parts of a broker but its servers. Thread-safe.

    One thread writes the log and the queue, a second one the full data.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: BrokerSettings,
        *,
        clock_us: Callable[[], int],
        monotonic: Callable[[], float],
        on_fatal: Callable[[BaseException], None],
        on_write: WriteHook | None = None,
        shared: SharedLog | None = None,
        free_bytes: FreeBytes = files.read_free_bytes,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self._settings = settings
        self.clock_us = clock_us
        self._monotonic = monotonic
        self._steady = steady or monotonic  # the clock of the lease at the coordinator
        self.on_fatal = on_fatal
        self._on_write = on_write
        self._shared = shared or StandaloneLog()
        self._free_bytes = free_bytes
        self._started_at_us = clock_us()
        self.precedence = Precedence(settings.limits.small_commit_ms / 1000)
        #: The ids of the network of broker sets that this store belongs to, as far as they are known.
        self.networks: tuple[str, ...] = ()
        #: The rules for columns at the border to the sets below, by business.
        self.borders: Mapping[str, Border] = {}

    def start(self) -> None:
        """Open the store, replay the log, start the threads. Raises Corruption, StorageError."""
        self._open_store()
        self._make_full_data()
        self._make_pipeline()
        self._make_interfaces()
        self._make_status()
        self._recover()
        self.materialiser.start(self.catalogue.list_stored())
        self.commits.start(self.catalogue.list_stored())

    def set_name(self, name: str) -> None:
        """Set the name of this broker set. Every rows identity that a consumer gets contains this name."""
        self.snapshots.set_name = self.subscriptions.rows.name = name

    def set_borders(self, borders: Mapping[str, Border]) -> None:
        """Set the rules for the columns that the sets below receive, before anything is served.

        A downstream set must not continue to read a snapshot if the rules have changed since it opened that snapshot.
        """
        self.borders = self.snapshots.borders = self.subscriptions.rows.borders = borders
        for pin in self.snapshots.all_leases():
            border = border_for(borders, self.catalogue.find_name(pin.business), pin.holder)
            if pin.border != (border.digest if border is not None else ""):
                self.snapshots.close(pin.snapshot_id)

    def stop(self) -> None:
        """Finish the submitted commands, stop the threads and close the store."""
        self.commits.submit(self.upkeep.finish)
        self.commits.stop()
        self.materialiser.stop()
        self.listening.stop()
        self.upkeep.close()
        self.snapshots.close_all()
        try:
            self.store.close()
        except StorageError:
            if not self.commits.has_failed:
                raise
            logger.info("closed after a failure of the store")

    # -- the parts, from the disk up ---------------------------------------------------------------------------

    def _open_store(self) -> None:
        """Open the store, and create what all parts share: free space, body buffer and catalogue."""
        settings = self._settings
        make_private(self.data_dir)
        self.store = Store(self.data_dir / "db", cache_bytes=settings.cache_bytes, on_write=self._on_write)
        self.space = FreeSpace(self.data_dir, settings.free_bytes_min, self._free_bytes)
        self.buffer = BodyBuffer(settings.buffer_bytes_max)
        self.catalogue = BusinessCatalogue(
            lambda number, name: Business(number, name, ReviewSchedule(first_s=settings.review_after_s))
        )

    def _make_full_data(self) -> None:
        """Create the parts that build, check and serve the full data."""
        self.scavenger = Scavenger(self.store, forget_below=self._forget_below, monotonic=self._monotonic)
        self.scrub = Scrub(self.store, businesses=self.catalogue.list_stored, clock_us=self.clock_us)
        self.materialiser = Materialiser(
            self.store,
            self.buffer,
            self.space,
            monotonic=self._monotonic,
            scavenger=self.scavenger,
            scrub=self.scrub,
            on_fatal=self._fail,
            precedence=self.precedence,
            catches_up=self._shared.catches_up,
        )
        limits = self._settings.limits
        self.listening = Listening(
            self.store,
            subscriptions_max=limits.subscriptions,
            values_max=limits.predicate_values,
            values_of_stream_max=limits.predicate_values_of_client,
        )
        self.materialiser.observe(self.listening)
        self.snapshots = SnapshotManager(
            self.data_dir / "snapshots",
            self.space,
            default_lease_s=self._settings.snapshot_lease_s,
            checkpoints_max=self._settings.limits.snapshots,
            leases_max=self._settings.limits.leases,
            clock_us=lambda: int(self._monotonic() * 1e6),
            checkpoint=self.materialiser.checkpoint,
            record=self._record_pin,
        )

    def _make_pipeline(self) -> None:
        """Create the commit thread, its periodic upkeep, and the publisher of its results."""
        self.upkeep = Upkeep(
            self.store,
            self.buffer,
            self._settings,
            catalogue=self.catalogue,
            snapshots=self.snapshots,
            clock_us=self.clock_us,
            monotonic=self._monotonic,
            on_fatal=self._fail,
            shared=self._shared,
        )
        self.publisher = Publisher(
            self.catalogue, self.buffer, notice=self.materialiser.notify, monotonic=self._monotonic
        )
        self.commits = CommitThread(
            self.store,
            self.buffer,
            monotonic=self._monotonic,
            slow_request_s=self._settings.limits.slow_request_ms / 1000,
            publish=self.publisher,
            maintain=self.upkeep,
            rest_s=self.upkeep.rest_s,
            on_fatal=self.on_fatal,
            linger_s=self._settings.group_commit_ms / 1000,
            shared=self._shared,
            precedence=self.precedence,
        )
        self.upkeep.wake = self.commits.wake

    def _make_interfaces(self) -> None:
        """Create the parts that serve producers, consumers, loaders, mirrors and operators."""
        guard = guard_with(self._fail)
        groups = ConsumerGroups(
            submit=self.commits.submit,
            is_stored=self.catalogue.is_stored,
            check_leads=self._check_leads,
            changed=self.upkeep.schedule_logging,
            clock_us=self.clock_us,
            monotonic=self._monotonic,
        )
        self.producers = Producers(
            self.catalogue,
            self.commits,
            self.space,
            self.store,
            clock_us=self.clock_us,
            monotonic=self._monotonic,
            knows_end=self._knows_end,
            is_shared=self._shared.is_shared,
        )
        self.homes = HomeCommands(self.catalogue, self.commits, clock_us=self.clock_us)
        self.mirrors = MirrorCommands(self.catalogue, self.commits, self.store, self.space, clock_us=self.clock_us)
        self.subscriptions = Subscriptions(
            self.catalogue,
            self.commits,
            groups,
            self.store,
            self.buffer,
            guard,
            knows_end=self._knows_end,
            networks=lambda: self.networks,
        )
        self.full_data = FullDataService(self.catalogue, self.snapshots, guard, networks=lambda: self.networks)
        self.forget_business = BusinessRemoval(
            self.catalogue, self.commits, self.materialiser, self.snapshots, self.store, guard
        )

    def _make_status(self) -> None:
        """Create the builder of the broker's status."""
        self.status = StatusBuilder(
            settings=self._settings,
            catalogue=self.catalogue,
            commits=self.commits,
            store=self.store,
            buffer=self.buffer,
            space=self.space,
            snapshots=self.snapshots,
            started_at_us=self._started_at_us,
            clock_us=self.clock_us,
            monotonic=self._monotonic,
        )

    def _knows_end(self, business: Business) -> bool:
        """Return whether no consumer can have read beyond the offsets visible here, not even from another broker."""
        return self._shared.knows_end(business, self._steady())

    def _check_leads(self, business: Business) -> None:
        """Raise NotLeader, which names the leader, unless this broker leads the business."""
        if not self._shared.leads(business):
            self._shared.term(business)  # raises NotLeader, with the leader

    def _recover(self) -> None:
        """Load and replay every business of the store, and check that the store is consistent."""
        found = recover(
            self.store,
            watermark=self._shared.watermark,
            review_after_s=self._settings.review_after_s,
            now=self._monotonic(),
            shared=self._shared.is_shared,
        )
        for business in found:
            self.scavenger.load(business)
            scrub.load_results(self.store, business)
        consistency.check_all(self.store, found)
        self.catalogue.load(self.store, found)
        self.snapshots.load(self.store)

    def load_copy(self, number: int) -> Business:
        """Load and check the business with this number, which was copied completely from another broker.

        The catalogue does not list it yet. Raises Corruption, StorageError.
        """
        value = self.store.get(keys.STATE, keys.core_key(number))
        if value is None:
            raise StorageError("it has no record")
        found = records.load(self.store, number, value, self._settings.review_after_s)
        replay_business(self.store, found, watermark=lambda business: business.log.applied, now=self._monotonic())
        self.scavenger.load(found)
        scrub.load_results(self.store, found)
        consistency.check_one(self.store, found)
        return found

    @property
    def review_after_s(self) -> float:
        """How long after a half message its first review is due."""
        return self._settings.review_after_s

    # -- callbacks between the parts ----------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Stop the broker permanently after an error in one of its parts."""
        self.commits.fail(error)

    def _record_pin(self, snapshot_id: str, content: bytes | None) -> Future[None]:
        """Store the lease of a snapshot; `content` None = remove it."""
        key, durable = keys.pin_key(snapshot_id), content is not None
        return self.commits.submit(lambda group: group.stage(keys.STATE, key, content, durable=durable), first=True)

    def _forget_below(self, business: Business) -> int:
        """Return the Sequence below which the tombstones of a business may be removed."""
        kept = kept_offsets(business.list_consumers())
        trim = consumers.trim_point(business.materialised.offset, kept, self.snapshots.offsets(business))
        return consumers.tombstone_limit(business.marks, trim, self.clock_us())


def recover(
    store: Store, *, watermark: Callable[[Business], int], review_after_s: float, now: float, shared: bool = False
) -> list[Business]:
    """Return every business, with its log applied up to the high watermark. Raises Corruption, StorageError.

    With a `shared` log, a business with an entry that cannot be applied is halted; the others continue.
    """
    check_format(store, UPGRADES)
    remove_unfinished(store)
    found = list(records.load_all(store, review_after_s))
    places = min(queue_index.TAIL_PLACES, queue_index.TAILS_PLACES // max(1, len(found)))
    for business in found:
        replay_business(store, business, watermark=watermark, now=now, shared=shared, places=places)
    return found


def replay_business(
    store: Store,
    business: Business,
    *,
    watermark: Callable[[Business], int],
    now: float,
    shared: bool = False,
    places: int = queue_index.TAIL_PLACES,
) -> None:
    """Replay a business's log on top of its stored record; load the newest `places` batches of its queue."""
    business.log.find_end(store)
    business.log.committed = watermark(business)
    entries = 0
    try:
        entries = machine.replay(store, business)
        machine.propose_rest(store, business)
    except StorageError:
        raise
    except Exception as error:
        if not shared:
            raise
        halt(business, (business.pending[-1].index if business.pending else business.log.applied) + 1, error)
        machine.stop_applying(store, business)
    business.rows_may_reach = business.proposed.last_sequence
    business.described_from = min(business.described_from, business.proposed.end_sequence)
    if entries:
        logger.info("%s: replayed %d log entries", business.name, entries)
    reader.load_tail(store, business, places)
    for undecided in business.committed.halves:
        business.reviews.expect(undecided.batch_no, now)


def remove_unfinished(store: Store) -> None:
    """Remove the state of businesses that are only partly copied; otherwise they would look complete.

    Their log, queue and rows stay, and their markers record that the state must be copied again. A copy whose marker
    does not record its progress is removed completely.
    """
    batch = store.batch()
    for key, value in store.scan_prefix(keys.STATE, keys.INSTALLING):
        mark = json.loads(value)
        if not mark.get("copy"):
            put_removal(batch, int(mark["number"]))
            continue
        put_state_removal(batch, int(mark["number"]))
        if mark["area"] >= FIRST_STATE_AREA:
            batch.put(keys.STATE, key, json.dumps(mark | {"area": FIRST_STATE_AREA, "after": None}).encode())
    if len(batch):
        store.write(batch, durable=True)
