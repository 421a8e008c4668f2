"""Removal of a business's record from the coordinator while no client can connect to the business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.service.loop_bridge import Lane, LoopBridge
from venus.errors import VenusError
from venus.replication.coordinator import Coordinator
from venus.replication.records import Leadership

T = TypeVar("T")

#: How often to read the record again if the answer to its removal was lost.
LOOK_AGAIN_S = 1.0


class RecordRemoval:
    """Removes records. Used in the service's event loop; `gone` is called once a record is removed.

    The coordinator may answer late. A producer admitted meanwhile would get its changes acknowledged, and they would
    be removed with the business.
    """

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        coordinator: Coordinator,
        bridge: LoopBridge,
        gone: Callable[[Leadership], None],
    ) -> None:
        self._catalogue, self._coordinator, self._bridge, self._gone = catalogue, coordinator, bridge, gone
        self._under_way: set[asyncio.Task[Any]] = set()

    async def __call__(self, known: Leadership) -> bool:
        """Remove a record. False means that the record has changed.

        Raises Refused while producers or consumers are connected, Unavailable.
        """
        self._catalogue.close(known.business)
        # the caller may be cancelled before the answer comes
        return await asyncio.shield(self._begin(self._remove(known)))

    def stop(self) -> None:
        """Cancel running removals: this process serves no clients any more."""
        for task in self._under_way:
            task.cancel()

    def _begin(self, what: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(what)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _remove(self, known: Leadership) -> bool:
        try:
            removed = await self._bridge.run_blocking(Lane.CONTROL, self._coordinator.remove, known)
        except BaseException:
            self._begin(self._resolve_removal(known))
            raise
        if removed:
            self._gone(known)
        self._catalogue.reopen(known.business)
        return removed

    async def _resolve_removal(self, known: Leadership) -> None:
        """Keep the business closed until the record is known to stay, or the local data is removed too."""
        while self._catalogue.has_stored(known.business) and not await self._is_kept(known):
            await asyncio.sleep(LOOK_AGAIN_S)
        self._catalogue.reopen(known.business)

    async def _is_kept(self, known: Leadership) -> bool:
        try:
            return await self._bridge.run_blocking(Lane.CONTROL, self._renew_record, known)
        except VenusError:
            return False

    def _renew_record(self, known: Leadership) -> bool:
        """Return whether the record exists, after giving it a new version: a delayed removal then fails."""
        found = self._coordinator.read(known.business)
        if found is not None and found.version == known.version:
            found = self._coordinator.swap(found, found)
        return found is not None
