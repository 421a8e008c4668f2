"""What the puller of a mirror asks, as commands of the commit thread (Minos 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import Catalogue
from venus.broker.machine.records import encode_heard
from venus.broker.pipeline import mirror_commands
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.pipeline.group import Group
from venus.broker.pipeline.mirror_commands import Arrived
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.broker.store.space import Space
from venus.network.rows_identity import Levels
from venus.wire import broker_pb2, mirror_pb2


class Mirrors:
    """Thread-safe. Futures are resolved once what they say is applied."""

    def __init__(
        self, catalogue: Catalogue, commits: CommitThread, store: Store, space: Space, *, clock_us: Callable[[], int]
    ) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._store = store
        self._space = space
        self._clock_us = clock_us

    def enter(self, business: str) -> Business:
        """Return the business that is mirrored, a new one if need be, and hold it until `leave`.

        A new one is empty until its full data begins. That says nothing about what a consumer has applied.
        """
        found = self._catalogue.enter(business)
        found.awaits_full_data |= found.is_new
        return found

    def leave(self, business: Business) -> None:
        """End what `enter` began."""
        self._commits.release(self._catalogue, business)

    def begin_full(self, business: Business, said: mirror_pb2.MirrorBegin) -> Future[int]:
        """Begin the full data; the answer names it in what follows."""

        def work(group: Group) -> int:
            mirror_commands.begin_full(group, business, said, self._clock_us(), self._space)
            return business.log.end - 1

        return self._commits.submit(work, business=business)

    def full_rows(self, business: Business, begin: int, number: int, body: bytes) -> Future[None]:
        """Take a chunk of the full data: the one of this number, from 0 on."""

        def work(group: Group) -> None:
            mirror_commands.full_rows(group, business, begin, number, body, self._clock_us(), self._space)

        return self._commits.submit(work, business=business)

    def heard(self, business: Business, begin: int, above: str, levels: Levels) -> Future[None]:
        """Keep by which filters the sets above choose, for the full data that began with the entry `begin`."""
        value = encode_heard(begin, above, levels)

        def work(group: Group) -> None:
            group.stage(keys.STATE, keys.levels_key(business.number), value)
            group.durable = True

        return self._commits.submit(work)

    def end_full(self, business: Business, begin: int, rows: int) -> Future[None]:
        """End the full data."""
        business.awaits_full_data = False  # its beginning has been applied
        return self._commits.submit(
            lambda group: mirror_commands.end_full(group, business, begin, rows, self._clock_us()), business=business
        )

    def take(
        self, business: Business, increments: Sequence[broker_pb2.Increment], position: int, *, sparse: bool,
        follows: int = 0,
    ) -> Future[int]:  # fmt: skip
        """Take what has arrived; the answer is the next offset that is wanted, everything below it is safe.

        `follows`: where what came before it ended. If that could not be taken, this is not either.
        """
        arrived = Arrived(increments=increments, position=position, sparse=sparse, follows=follows)

        def work(group: Group) -> int:
            return mirror_commands.take(group, business, arrived, self._store, self._clock_us(), self._space)

        return self._commits.submit(work, business=business)
