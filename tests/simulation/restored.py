"""Histories in which data directories are restored from backups; other histories keep their results for each seed.

A store that is older than before counts as a new member (venus/broker/replicas/store_identity.py). Its log begins like
the others', and may end with entries that the others have since truncated.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.simulation import faults
from tests.simulation.brokers.world import BrokerWorld
from tests.simulation.world import World
from venus.replication.records import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 1.5
AWAY_S = 1.0


class Backups:
    """Takes and restores backups of a world's disks, as they are with the power off."""

    def __init__(self, world: Any) -> None:
        self._world, self._kept = world, dict[str, Any]()
        world.loop.at(1.0, self._operate)

    def _operate(self) -> None:
        """Take or restore a backup, as an operator does, from time to time until all faults end."""
        world, random = self._world, self._world.loop.random
        if world.loop.now < world.cruel_until:
            host = random.choice(list(world.hosts.values()))
            if host.name in self._kept and random.random() < 0.6:
                self._restore(host)
            elif getattr(world, "damaged", "") != host.disk.store:
                self._kept[host.name] = self._copy_disk(host)
        world.loop.after(EVERY_S * random.random(), self._operate)

    def _copy_disk(self, host: Any) -> Any:
        """Return a copy of a disk, as a power loss would leave it."""
        process, host.disk.host = getattr(host.disk, "host", None), None
        try:
            found = copy.deepcopy(host.disk)
        finally:
            host.disk.host = process
        found.lose_power(self._world.loop.random)
        return found

    def _restore(self, host: Any) -> None:
        """Replace a broker's disk by its backup, unless no other broker is complete."""
        world = self._world
        record = world.coordinator.record
        others = {other.me for other in world.hosts.values() if other is not host}
        if not host.up or (record.policy is Policy.CONSISTENCY and not record.candidates & others):
            return
        world.loop.counts["restored from a backup"] += 1
        host.end()
        host.disk = copy.deepcopy(self._kept[host.name])
        if world.set_back_is_another:
            host.stores += 1
            host.disk.store = f"{host.name}{host.stores}"
        faults.restart_after(world, host, AWAY_S * world.loop.random.random())


class RestoringWorld(World):
    """The log protocol with restored backups."""

    set_back_is_another = True

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, say)
        Backups(self)


class RestoringBrokers(BrokerWorld):
    """Whole brokers with restored backups."""

    set_back_is_another = True

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, say)
        Backups(self)
