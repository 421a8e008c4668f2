"""The interface of producers to the commit thread, and due reviews (VENUS 3.2, 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.pipeline import producer_commands
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.pipeline.group import CommandGroup
from venus.broker.pipeline.producer_commands import HalvesResult, ShippedHalf
from venus.broker.store.data_directory import FreeSpace
from venus.broker.store.rocks import Store
from venus.errors import Diverged, Unavailable
from venus.model import Verdict
from venus.wire import broker_pb2

REVIEWED_AT_ONCE_MAX = 64


class Producers:
    """Commands of producers. Thread-safe. Futures are resolved once the command is on disk."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        commits: CommitThread,
        space: FreeSpace,
        store: Store,
        *,
        clock_us: Callable[[], int],
        monotonic: Callable[[], float],
        knows_end: Callable[[Business], bool],
    ) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._space = space
        self._store = store
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._knows_end = knows_end

    def init(
        self, business: str, producer: str, source_epoch: int, source_last_batch: int, *, insists: bool = False
    ) -> Future[broker_pb2.InitAck]:
        """Fence older producers and hold the business until `leave`.

        Fails with Diverged if this broker lost batches that the source has committed, with Unavailable if another
        broker may have them, with NotLeader if another set is the home. With `insists` the producer takes over anyway.
        """
        found = self._catalogue.enter(business)

        def work(group: CommandGroup) -> broker_pb2.InitAck:
            self._space.check_decision()
            try:
                return producer_commands.init(
                    group, found, producer, source_epoch, source_last_batch, self._clock_us(), insists=insists
                )
            except Diverged as error:
                if self._knows_end(found):
                    raise
                raise Unavailable(
                    f"{business}: the source has committed batches that are not here, and another broker may lead now",
                    hint="try again in a moment",
                ) from error

        return self._commits.submit(work, business=found)

    def leave(self, business: str) -> None:
        """End what `init` began, whether it failed or not."""
        self._commits.release(self._catalogue, self._catalogue.find(business))

    def take_halves(
        self, business: str, epoch: int, halves: Sequence[ShippedHalf | broker_pb2.Half]
    ) -> Future[HalvesResult]:
        """Persist half messages. The caller has checked their digests."""
        found = self._catalogue.find(business)
        shipped = [half if isinstance(half, ShippedHalf) else _to_shipped(half) for half in halves]
        nbytes = sum(len(half.body) for half in shipped)

        def work(group: CommandGroup) -> HalvesResult:
            return producer_commands.take_halves(
                group, found, epoch, shipped, self._clock_us(), self._space, self._store
            )

        return self._commits.submit(work, nbytes, business=found)

    def decide(self, business: str, epoch: int, batch_no: int, digest: int, verdict: int) -> Future[broker_pb2.Decided]:
        """COMMIT every half message up to `batch_no`, or ROLLBACK every one from it on."""
        found = self._catalogue.find(business)

        def work(group: CommandGroup) -> broker_pb2.Decided:
            self._space.check_decision()
            return producer_commands.decide(group, found, epoch, batch_no, digest, Verdict(verdict), self._clock_us())

        return self._commits.submit(work, business=found)

    def pass_over(self, business: str, said: broker_pb2.Committed) -> Future[broker_pb2.Decided]:
        """Continue behind changes that the source has committed and this broker lost in an unclean election."""
        found = self._catalogue.find(business)

        def work(group: CommandGroup) -> broker_pb2.Decided:
            self._space.check_decision()
            return producer_commands.pass_over(group, found, said, self._clock_us())

        return self._commits.submit(work, business=found)

    def operator_decide(self, business: str, batch_no: int, verdict: int) -> Future[broker_pb2.Decided]:
        """Decide in place of the producer, and fence a connected one."""
        found = self._catalogue.find(business)

        def work(group: CommandGroup) -> broker_pb2.Decided:
            self._space.check_decision()
            return producer_commands.operator_decide(group, found, batch_no, Verdict(verdict), self._clock_us())

        return self._commits.submit(work, business=found)

    @property
    def has_undecided(self) -> bool:
        """Whether any half message may need a review. Never blocks."""
        return any(business.reviews.asked for business in self._catalogue.list_all())

    def due_reviews(self) -> list[tuple[str, int, list[broker_pb2.HalfRef]]]:
        """Return the epoch and the half messages to review now, for each business."""
        now = self._monotonic()
        found = []
        for business in self._catalogue.list_all():
            current = business.committed
            with business.lock:
                due = business.reviews.due_batches(now)[:REVIEWED_AT_ONCE_MAX]
                halves = [half for n in due if (half := current.find_undecided(n)) is not None]
                refs = [producer_commands.describe_half(business, half) for half in halves]
            if refs:
                found.append((business.name, current.epoch, refs))
        return found

    def count_delivered_reviews(self, business: str, batch_nos: Sequence[int]) -> None:
        """Count reviews that reached a producer. Others do not count."""
        found = self._catalogue.find(business)
        with found.lock:
            found.counters["reviews_sent"] += found.reviews.record_delivered(batch_nos, self._monotonic())

    def count(self, business: str, counter: str, n: int = 1) -> None:
        """Add to a counter of a business. It is stored with the next write."""
        self._catalogue.find(business).add_to_counter(counter, n)


def _to_shipped(half: broker_pb2.Half) -> ShippedHalf:
    return ShippedHalf(batch_no=half.batch_no, digest=half.digest, body=half.body)
