"""Removal of a business: all data under its number, in one write batch of the commit thread."""

from __future__ import annotations

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.pipeline.commit_thread import CommitThread, Guard
from venus.broker.pipeline.group import CommandGroup
from venus.broker.snapshot.materialiser import Materialiser
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.errors import Unavailable

_NUMBERED = (keys.RLOG, keys.QUEUE, keys.ROW)


def forget(group: CommandGroup, business: Business, catalogue: BusinessCatalogue) -> None:
    """Put the removal of a business. Raises Unavailable if the same group writes to the business.

    Entries above the high watermark are removed too: the brokers that could move it may be gone.
    """
    if business in group.touched_businesses():
        raise Unavailable(f"business {business.name!r} is being written", hint="try again")
    if business.pending:
        error = Unavailable(f"business {business.name!r} is being forgotten", hint="try again in a moment")
        group.refused.append((business, business.pending[0].index, error))
        business.pending.clear()
    put_removal(group.batch, business.number)
    catalogue.save_number(group.batch)
    group.durable = True


def put_removal(batch: StoreBatch, number: int) -> None:
    """Put the removal of everything under a business's number."""
    start = keys.number_prefix(number)
    for family in _NUMBERED:
        batch.delete_range(family, start, keys.after_prefix(start))
    put_state_removal(batch, number)


def put_state_removal(batch: StoreBatch, number: int) -> None:
    """Put the removal of a business's state alone."""
    for prefix in keys.state_prefixes(number):
        batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))


class Forgetting:
    """Removes a business while the broker runs."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        commits: CommitThread,
        materialiser: Materialiser,
        snapshots: SnapshotManager,
        store: Store,
        guard: Guard,
    ) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._materialiser = materialiser
        self._snapshots = snapshots
        self._store = store
        self._guard = guard

    def __call__(self, business: str) -> None:
        """Remove a business for good: its log, queue, rows, state and snapshots; free the space before returning.

        Raises Unavailable for an unknown one, Refused while a producer or a consumer is connected.
        """
        found = self._catalogue.begin_forgetting(business)
        try:
            self._commits.submit(lambda _: None, line=found).result()  # earlier commands of the business are done
            self._materialiser.forget(found).result()
            self._snapshots.forget(found)
            self._commits.submit(lambda group: forget(group, found, self._catalogue), line=found).result()
        except BaseException:
            found.is_forgotten = False
            self._catalogue.cancel_forgetting(found)
            self._materialiser.notify(found)
            raise
        self._catalogue.finish_forgetting(business)
        with self._guard():
            give_back(self._store, found)


def give_back(store: Store, business: Business) -> None:
    """Compact the key ranges of a removed business to free their space."""
    start, stop = _range(business)
    for family in _NUMBERED:
        store.compact(family, start, stop)


def _range(business: Business) -> tuple[bytes, bytes]:
    prefix = keys.number_prefix(business.number)
    return prefix, keys.after_prefix(prefix)
