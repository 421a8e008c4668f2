"""Removing a business's record from the coordinator, while nobody can begin to use the business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from venus.broker.machine.catalogue import Catalogue
from venus.broker.service.loop_bridge import Lane, LoopBridge
from venus.errors import VenusError
from venus.replication.coordinator import Coordinator
from venus.replication.records import Leadership

T = TypeVar("T")

#: How often the coordinator is asked what has become of a record, if the answer to its removal was lost.
LOOK_AGAIN_S = 1.0


class Removing:
    """In the service's event loop. `gone` takes up that a record was removed.

    The coordinator may answer late. Whoever came in meanwhile would be told that his changes are safe, and they would
    go with the business.
    """

    def __init__(
        self, catalogue: Catalogue, coordinator: Coordinator, bridge: LoopBridge, gone: Callable[[Leadership], None]
    ) -> None:
        self._catalogue, self._coordinator, self._bridge, self._gone = catalogue, coordinator, bridge, gone
        self._under_way: set[asyncio.Task[Any]] = set()

    async def __call__(self, known: Leadership) -> bool:
        """Remove a record; False = it is another one by now.

        Raises Refused while producers or consumers are connected, Unavailable.
        """
        self._catalogue.close(known.business)
        # whoever asked may not wait for the answer any more
        return await asyncio.shield(self._begin(self._remove(known)))

    def stop(self) -> None:
        """End what is under way: this process serves nobody any more."""
        for task in self._under_way:
            task.cancel()

    def _begin(self, what: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(what)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _remove(self, known: Leadership) -> bool:
        try:
            removed = await self._bridge.blocking(Lane.CONTROL, self._coordinator.remove, known)
        except BaseException:
            self._begin(self._find_out(known))
            raise
        if removed:
            self._gone(known)
        self._catalogue.reopen(known.business)
        return removed

    async def _find_out(self, known: Leadership) -> None:
        """Let nobody in before the record is known to stay, or what is here was removed as well."""
        while self._catalogue.has(known.business) and not await self._stays(known):
            await asyncio.sleep(LOOK_AGAIN_S)
        self._catalogue.reopen(known.business)

    async def _stays(self, known: Leadership) -> bool:
        try:
            return await self._bridge.blocking(Lane.CONTROL, self._renewed, known)
        except VenusError:
            return False

    def _renewed(self, known: Leadership) -> bool:
        """Whether the record is there, as another one: a removal that is still on its way will not find it."""
        found = self._coordinator.read(known.business)
        if found is not None and found.version == known.version:
            found = self._coordinator.swap(found, found)
        return found is not None
