"""Admission of clients: a standalone broker admits all of them, a broker of a cluster redirects to the leader.

This module also has the tasks of a leader for clients: it removes a business from the cluster, and keeps the losses of
unclean elections in the coordinator's records.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol, TypeVar

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.loss import groups_to_verify, record_losses, record_verification, unrecorded_terms
from venus.broker.pipeline.home_commands import groups_with_targets
from venus.broker.replicas.effects import Coordination
from venus.broker.replicas.host import Host
from venus.broker.replicas.replicated_logs import ReplicaStanding, ReplicatedLogs, write_refusal
from venus.errors import Refused, Unavailable, VenusError
from venus.flow.degradation import Lane
from venus.replication.records import Coordinator, Leadership, LiveBroker, explain_hindrance
from venus.rpc.event_loop import LoopBridge

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A producer waits this long for a new business or for a leader before it is refused.
WAIT_S = 5.0
#: A producer waits only this long while too few brokers are alive: a broker may just be starting, but a longer wait
#: does not help.
HINDERED_S = 0.5
LOOK_EVERY_S = 0.02
#: `venus forget` waits this long for the report that a record is gone if the coordinator does not answer.
REPORT_S = 5.0
#: `venus forget` waits this long for the removal of this broker's data.
REMOVE_S = 300.0
#: Interval at which the record is read again if the answer to its removal was lost.
LOOK_AGAIN_S = 1.0
RESUMES_HINT = "it resumes by itself when enough brokers are back: `venus cluster status` lists them"
#: Interval between two tries to change the record of a business.
SWAP_EVERY_S = 0.5
CLOSE_WAIT_S = 10.0
CLOSE_LOOK_EVERY_S = 0.05


class Gate(Protocol):
    """Admits or redirects clients. Used in the service's event loop."""

    @property
    def address(self) -> str:
        """HOST:PORT at which the cluster knows this broker; empty if it has no cluster."""

    async def admit_producer(self, business: str) -> None:
        """Admit a producer; create the business if needed. Raises NotLeader, Unavailable."""

    def admit_consumer(self, business: str) -> None:
        """Admit a consumer group, whose position is logged. Raises NotLeader, Unavailable."""

    def admit_snapshot(self, business: str, holder: str) -> None:
        """Admit a snapshot. A named holder relies on the queue after the snapshot. Raises NotLeader."""

    def admit_reader(self, business: str) -> None:
        """Admit a client that only reads. Raises NotLeader if this broker has no replica of the business."""

    def read_replicas(self, business: str) -> list[LiveBroker]:
        """Return the other living brokers that are in sync for a business that this broker leads."""

    def term(self, business: str) -> int:
        """Return the term in which this broker leads, as far as it knows; 0 if it does not lead or has no cluster."""

    async def confirm_leadership(self, business: str, term: int) -> None:
        """Confirm that this broker led in the term at the time of the call. Raises Unavailable.

        A leader that does not know yet that it was deposed lacks entries that the new leader has acknowledged.
        """

    async def forget(self, business: str) -> bool:
        """Remove a business from the whole cluster. Return False if only this broker has it and must remove it."""

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Record that a group's target was repaired after unclean elections; return the groups still to compare."""


class StandaloneGate:
    """The gate of a standalone broker: it admits every client."""

    address = ""

    async def admit_producer(self, business: str) -> None:
        """Admit a producer."""

    def admit_consumer(self, business: str) -> None:
        """Admit a consumer group."""

    def admit_snapshot(self, business: str, holder: str) -> None:
        """Admit a snapshot."""

    def admit_reader(self, business: str) -> None:
        """Admit a reader."""

    def read_replicas(self, business: str) -> list[LiveBroker]:
        """Return none: there is no other broker."""
        return []

    def term(self, business: str) -> int:
        """Return 0: a standalone broker has no terms."""
        return 0

    async def confirm_leadership(self, business: str, term: int) -> None:
        """Return at once: no other broker could lead."""

    async def forget(self, business: str) -> bool:
        """Return False: only this broker has the business."""
        return False

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Return no groups: a standalone broker has no elections."""
        return []


class ClusterGate:
    """The gate of a broker in a cluster: it redirects to leaders, and creates and removes businesses."""

    def __init__(
        self,
        core: Core,
        shared: ReplicatedLogs,
        bridge: LoopBridge,
        coordinator: Coordinator,
        host: Host,
        coordination: Coordination,
    ) -> None:
        self._core, self._shared, self._bridge = core, shared, bridge
        self._coordinator, self._host, self._coordination = coordinator, host, coordination
        self.losses = LossTracker(core, shared, host, coordination)
        self._remove = RecordRemoval(core.catalogue, coordinator, bridge, self._on_removed)
        self._asking = asyncio.Lock()  # one at a time: the coordinator may be slow

    @property
    def address(self) -> str:
        """HOST:PORT at which the cluster knows this broker."""
        return self._host.me.address

    def stop(self) -> None:
        """Cancel running removals: this process serves no clients any more."""
        self._remove.stop()

    async def admit_producer(self, business: str) -> None:
        """Wait until this broker leads the business; create it if needed. Raises NotLeader, Unavailable.

        The producer is refused soon if no write is possible until a broker comes back.
        """
        began, made = time.monotonic(), False
        while True:
            waited_s = time.monotonic() - began
            standing = self._shared.standing(business)
            replica = self._host.replicas.get(business)
            if replica is not None and not standing.refusal and self._has_begun(business):
                return
            if waited_s > HINDERED_S and (hindrance := self._hindrance(business)):
                raise Unavailable(f"{business}: {hindrance}", hint=RESUMES_HINT)
            if self._is_led_elsewhere(business, standing) or waited_s > WAIT_S:
                raise write_refusal(business, standing)
            if not made and self._can_begin(business, waited_s):
                made = True
                self._host.create(business)
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_led_elsewhere(self, business: str, standing: ReplicaStanding) -> bool:
        """Return whether a live broker other than this one leads. A dead leader is replaced by an election."""
        known = self._host.records.get(business)
        if known is None or known.leader is None or standing.leads or not standing.leader:
            return False
        return known.leader in self._host.brokers.live

    def _hindrance(self, business: str) -> str:
        """Return why no write is possible until a broker returns; empty = no reason is known."""
        known = self._host.records.get(business)
        return explain_hindrance(known, self._host.brokers.live) if known is not None else ""

    def _can_begin(self, business: str, waited_s: float) -> bool:
        """Return whether a business of this name can be created now: no record and no data of a removed one is left.

        Raises Refused.
        """
        if business in self._host.records or not self._host.brokers.live or self._host.is_dropping(business):
            return False
        if waited_s < HINDERED_S and self._core.catalogue.has_stored(business):
            return False  # the coordinator has yet to answer whether it was removed
        self._check_new(business)
        return True

    def _check_new(self, business: str) -> None:
        """Raise Refused where a business must not be created."""
        if self._core.catalogue.has_stored(business):
            raise Refused(
                f"broker {self._host.me.member.broker} has data of {business!r} that the cluster does not know",
                hint=f"`venus forget --business {business}` at this broker removes it",
            )

    def _has_begun(self, business: str) -> bool:
        """Return whether this broker leads the business and accepts writes."""
        try:
            self._shared.term(self._core.catalogue.find(business))
        except Unavailable:
            return False
        return True

    def admit_consumer(self, business: str) -> None:
        """Admit a consumer group at the leader, which logs its position. Raises NotLeader, Unavailable."""
        standing = self._shared.standing(business)
        if not standing.leads and self._is_known(business):
            raise write_refusal(business, standing)

    def _is_known(self, business: str) -> bool:
        """Return whether the business exists, even before the cluster is read. The core refuses unknown names."""
        return business in self._host.records or self._core.catalogue.has_stored(business)

    def admit_reader(self, business: str) -> None:
        """Admit a reader wherever there is a replica. Raises NotLeader."""
        standing = self._shared.standing(business)
        if business not in self._host.replicas and business in self._host.records and standing.leader:
            raise write_refusal(business, standing)

    def read_replicas(self, business: str) -> list[LiveBroker]:
        """Return the other living brokers whose replicas are in sync with this leader."""
        replica, live = self._host.replicas.get(business), self._host.brokers.live
        known = replica.known if replica is not None and replica.leads else None
        able = sorted((known.in_sync & live.keys()) - {self._host.me.member}) if known is not None else []
        return [live[member] for member in able]

    def term(self, business: str) -> int:
        """Return the term in which this broker leads, as far as it knows; 0 if it does not lead."""
        standing = self._shared.standing(business)
        return standing.term if standing.leads else 0

    async def confirm_leadership(self, business: str, term: int) -> None:
        """Read the record at the coordinator. Raises Unavailable unless this broker led in the term at the call.

        The lease is no proof: a paused virtual machine may not notice that its lease has ended, and a new lease
        begins before the record is read again.
        """
        async with self._asking:
            known = await self._bridge.run_blocking(Lane.CONTROL, self._coordinator.read, business)
        if known is None or (known.term, known.leader) != (term, self._host.me.member):
            self._coordination.read_soon()
            raise Unavailable(f"{business}: another broker leads by now", hint="try again in a moment")

    def admit_snapshot(self, business: str, holder: str) -> None:
        """Admit a load at the leader, which keeps the queue from the cut on; admit a reader at any replica.

        Raises NotLeader.
        """
        standing = self._shared.standing(business)
        if holder and not standing.leads and self._is_known(business):
            raise write_refusal(business, standing)
        self.admit_reader(business)

    async def forget(self, business: str) -> bool:
        """Remove a business from the whole cluster. Return False if only this broker has it.

        Raises NotLeader, Refused while producers or consumers are connected, Unavailable.
        """
        end = time.monotonic() + WAIT_S
        had_replica = False
        while (known := self._host.records.get(business)) is not None:
            had_replica = business in self._host.replicas
            standing = self._shared.standing(business)
            if not standing.leads:
                raise write_refusal(business, standing)
            if await self._remove_or_wait(known):
                logger.info("%s: removed from the cluster", business)
                break
            if time.monotonic() > end:
                raise Unavailable(f"{business}: its record keeps changing", hint="try again")
            self._coordination.read_soon()
            await asyncio.sleep(LOOK_EVERY_S)
        return await self._wait_for_removal(business) or had_replica  # it went with its record, perhaps earlier

    async def _remove_or_wait(self, known: Leadership) -> bool:
        """Remove a record; without an answer, wait for a report that it is gone. Return False if it has changed."""
        try:
            return await self._remove(known)
        except Unavailable:
            self._coordination.read_soon()
            for _ in range(round(REPORT_S / LOOK_EVERY_S)):
                await asyncio.sleep(LOOK_EVERY_S)
                if known.business not in self._host.records:
                    return True
            raise

    def _on_removed(self, known: Leadership) -> None:
        """Handle the removal of a record: remove this broker's data of the business."""
        if (found := self._host.records.get(known.business)) and found.term <= known.term:  # else created again
            del self._host.records[known.business]
        self._host.on_forgotten_term(known.business, known.term)

    async def _wait_for_removal(self, business: str) -> bool:
        """Wait until this broker's data of the business is removed; return whether it was being removed."""
        was_dropped = self._host.is_dropping(business)
        end = time.monotonic() + REMOVE_S
        while self._host.is_dropping(business):
            if time.monotonic() > end:
                raise Unavailable(f"{business}: the removal has not ended yet", hint="`venus status` shows it")
            await asyncio.sleep(LOOK_EVERY_S)
        return was_dropped

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Record that a group's target was compared and repaired; return the groups still to compare."""
        return await self.losses.close(business, group, terms)


class RecordRemoval:
    """Removes records. Used in the service's event loop; `gone` is called once a record is removed.

    The coordinator may answer late. Until the coordinator answers, no producer is admitted, because its changes would
    be acknowledged and then removed with the business.
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
        return await asyncio.shield(self._start_task(self._remove(known)))

    def stop(self) -> None:
        """Cancel running removals: this process serves no clients any more."""
        for task in self._under_way:
            task.cancel()

    def _start_task(self, what: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that `stop` cancels."""
        task = asyncio.get_running_loop().create_task(what)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _remove(self, known: Leadership) -> bool:
        """Remove a record; if the outcome is unknown, resolve it in the background."""
        try:
            removed = await self._bridge.run_blocking(Lane.CONTROL, self._coordinator.remove, known)
        except BaseException:
            self._start_task(self._resolve_removal(known))
            raise
        if removed:
            self._gone(known)
        self._catalogue.reopen(known.business)
        return removed

    async def _resolve_removal(self, known: Leadership) -> None:
        """Keep the business closed until it is known that the record stays, or until the local data is removed."""
        while self._catalogue.has_stored(known.business) and not await self._try_keep_record(known):
            await asyncio.sleep(LOOK_AGAIN_S)
        self._catalogue.reopen(known.business)

    async def _try_keep_record(self, known: Leadership) -> bool:
        """Return whether the record is known to exist; False = it is gone, or etcd does not answer."""
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


class LossTracker:
    """Keeps loss windows in the records until every group is repaired. Used in the host's loop."""

    def __init__(self, core: Core, shared: ReplicatedLogs, host: Host, coordination: Coordination) -> None:
        self._core, self._shared, self._host, self._coordination = core, shared, host, coordination
        self._swapped_at: dict[str, float] = {}
        self._shown: dict[str, Leadership] = {}

    def tick(self) -> None:
        """Write loss windows from the logs of led businesses to the coordinator's records."""
        for name, replica in self._host.replicas.items():
            known = replica.known
            if not replica.leads or known is None or not known.unclean_terms:
                continue
            after = record_losses(known, self._core.catalogue.find(name).committed.losses)
            if after is not None:
                self._save_losses(known, after)

    def _save_losses(self, known: Leadership, after: Leadership) -> None:
        """Replace a record by one with other loss windows and log the difference, at most every few seconds."""
        now = time.monotonic()
        if now < self._swapped_at.get(known.business, 0.0) + SWAP_EVERY_S:
            return
        self._swapped_at[known.business] = now
        for window in after.losses:
            if window not in known.losses:
                logger.error(
                    "%s: the unclean election of term %d may have lost %s", known.business, window.term, window
                )
        for term in set(known.unclean_terms) - set(after.unclean_terms):
            logger.warning("%s: the loss window of the unclean election of term %d is closed", known.business, term)
        self._coordination.swap(known, after)

    async def close(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Record that a group's target equals source and full data; return the groups still to compare.

        Raises NotLeader, Unavailable; Refused until the producer has reported what is missing.
        """
        end = time.monotonic() + CLOSE_WAIT_S
        while time.monotonic() < end:
            replica = self._host.replicas.get(business)
            if replica is None or not replica.leads or replica.known is None:
                raise write_refusal(business, self._shared.standing(business))
            known = replica.known
            if open_terms := set(terms) & set(unrecorded_terms(known)):
                raise Refused(
                    f"{business}: the losses of the unclean election of term {min(open_terms)} are not known yet",
                    hint="`venus sync` reports it; then compare again",
                )
            groups = _target_groups(self._core.catalogue.find(business))
            after = record_verification(known, group, terms, groups)
            if after == known:
                return sorted({g for w in known.losses if w.term in terms for g in groups_to_verify(w, groups)})
            self._save_losses(known, after)
            await asyncio.sleep(CLOSE_LOOK_EVERY_S)
        raise Unavailable(f"{business}: the coordinator did not take the change within {CLOSE_WAIT_S:g} s")


def _target_groups(business: Business) -> list[str]:
    """Return the groups that have targets here. Transient readers and downstream sets have none."""
    with business.lock:
        return groups_with_targets(business.consumers)
