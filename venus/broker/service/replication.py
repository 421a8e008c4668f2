"""Replication in one broker of a cluster: replicas, connections, the coordinator, and admission of clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import venus
from venus.broker.core import Core
from venus.broker.replicas import store_identity
from venus.broker.replicas.broker_load import BrokerHealth, BrokerLoad
from venus.broker.replicas.connections import BrokerConnections
from venus.broker.replicas.coordinator_thread import CoordinatorThread
from venus.broker.replicas.copies import CopyPool
from venus.broker.replicas.core_logs import CoreLogs
from venus.broker.replicas.host import Host
from venus.broker.replicas.installation import ReplicaInstaller
from venus.broker.replicas.placement import ReplicaPlacement
from venus.broker.replicas.replicated_logs import ReplicaStanding, ReplicatedLogs, write_refusal
from venus.broker.replicas.store_identity import NewestWriteSaver
from venus.broker.service.delivery import DeliveryService
from venus.broker.service.ingest import IngestService
from venus.broker.service.loop_bridge import Lane, LoopBridge
from venus.broker.service.loss_windows import LossTracker
from venus.broker.service.record_removal import RecordRemoval
from venus.broker.service.replication_status import ReplicationStatus
from venus.config import ClusterSettings
from venus.coordination.cluster_membership import FILE, join_cluster
from venus.coordination.etcd import EtcdCoordinator
from venus.coordination.login import build_login
from venus.errors import ConfigError, NotLeader, Refused, Unavailable, VenusError
from venus.network.scheduling import ALL, Scheduler
from venus.process.system import steady_clock_s
from venus.replication import election
from venus.replication.position import ReplicationTimes
from venus.replication.records import Leadership, LiveBroker, Policy
from venus.rpc.address import ClientCredentials

logger = logging.getLogger(__name__)

TICK_S = 0.1
#: A producer waits so long for a new business or for a leader before it is refused.
WAIT_S = 5.0
#: The same while too few brokers are alive. Waiting longer does not help, but a broker may be starting.
HINDERED_S = 0.5
LOOK_EVERY_S = 0.02
EXPIRE_EVERY_S = 10.0
HAND_OVER_S = 3.0
#: `venus forget` waits so long for the removal of this broker's data.
REMOVE_S = 300.0
RESUMES_HINT = "it resumes by itself when enough brokers are back: `venus cluster status` lists them"
EVERYWHERE = ("0.0.0.0", "[::]")


class Replication:
    """One broker's part of a cluster, and its `Gate` for clients. Used in the service's event loop."""

    def __init__(
        self,
        core: Core,
        shared: ReplicatedLogs,
        bridge: LoopBridge,
        settings: ClusterSettings,
        proof: ClientCredentials,
    ) -> None:
        self.settings = settings
        self._core, self._shared, self._bridge = core, shared, bridge
        self._coordinator = EtcdCoordinator(
            settings.etcd, settings.name, lease_s=settings.lease_s, login=build_login(settings)
        )
        self._remove = RecordRemoval(core.catalogue, self._coordinator, bridge, self._on_removed)
        self._proof = proof
        self._pool = ThreadPoolExecutor(1, "venus-replica-read")
        self._asking = asyncio.Lock()  # one at a time: the coordinator may be slow
        self._ticking: asyncio.Task[None] | None = None
        self._clients: tuple[IngestService, DeliveryService] | None = None
        self._wanted = ReplicaPlacement(
            replicas=settings.replicas,
            policy=Policy(settings.policy),
            min_in_sync=settings.min_in_sync_effective
            if settings.policy == "consistency"
            else settings.min_in_sync or 1,
            scheduler=Scheduler(choices=ALL),  # the placement is in records that every broker reads
        )

    def enter(self) -> None:
        """Join the cluster with this store. Blocks. Raises Refused, Unavailable."""
        settings, core = self.settings, self._core
        cluster = join_cluster(self._coordinator, core.data_dir, settings.name)
        member, topology = store_identity.enroll_store(
            core, self._coordinator, cluster, settings.broker_id, self._wanted
        )
        me = LiveBroker(
            member=member, address="", site=settings.site, priority=settings.priority, version=venus.__version__
        )
        self.lines = BrokerConnections(cluster, member, self._proof)
        self.coordination = CoordinatorThread(
            self._coordinator, lease_s=settings.lease_s, monotonic=steady_clock_s, post=self._bridge.post,
            on_fatal=core.on_fatal,
        )  # fmt: skip
        self.copies = CopyPool(core, time.monotonic)
        self.installer = ReplicaInstaller(
            core, self._shared, self.lines, post=self._bridge.post, ended=self._on_install
        )
        logs = self._build_logs(str(member))
        self.host = Host(
            me,
            logs=logs,
            shared=self._shared,
            transport=self.lines,
            coordination=self.coordination,
            installations=self.installer,
            wanted=self._wanted,
            patience=ReplicationTimes(silence_s=settings.silence_s),
            monotonic=steady_clock_s,
            post=self._bridge.post,
            health=BrokerHealth(core.store, core.space),
            load=BrokerLoad(core.data_dir),
        )
        self.host.record_created(topology)
        self.losses = LossTracker(core, self._shared, self.host, self.coordination)
        self.lines.host = self.host
        self.status = ReplicationStatus(
            settings.name, self.host, self._shared, self.coordination, self.installer.progress
        )

    def _build_logs(self, me: str) -> CoreLogs:
        return CoreLogs(
            self._core,
            self._shared,
            me=me,
            background=lambda call: self._run_in_background(call),
            retired=self._on_retired,
        )

    async def start(self, address: str, ingest: IngestService, delivery: DeliveryService) -> None:
        """Register under an address and start replication. Raises Refused if another broker has this one's id."""
        if address.rpartition(":")[0] in EVERYWHERE:
            raise ConfigError(
                f"broker.listen {address} is not an address that other brokers can use",
                hint="set broker.address to a HOST:PORT that the other brokers can reach",
            )
        self._clients = ingest, delivery
        self.host.me = replace(self.host.me, address=address)
        await asyncio.get_running_loop().run_in_executor(None, self.coordination.start, self.host, self.host.me)
        self.noting = NewestWriteSaver(self._core, self.coordination, self.host.me.member.store, time.monotonic)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Hand over the businesses that this broker leads, then deregister it."""
        end = time.monotonic() + HAND_OVER_S
        if self._ticking is not None:
            while self.host.hand_over() and time.monotonic() < end:
                await asyncio.sleep(LOOK_EVERY_S)
            self._ticking.cancel()
        self._remove.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.coordination.stop)
        await asyncio.get_running_loop().run_in_executor(None, self.installer.stop)
        await self.lines.close()
        await asyncio.get_running_loop().run_in_executor(None, self.copies.close)
        self._pool.shutdown()

    async def _tick(self) -> None:
        expire_at = time.monotonic() + EXPIRE_EVERY_S
        while True:
            await asyncio.sleep(TICK_S)
            if time.monotonic() >= expire_at:
                expire_at += EXPIRE_EVERY_S
                self._bridge.run_in_background(Lane.CONTROL, self.copies.expire)
            try:
                self.host.tick()
                self.losses.tick()
                self.noting.tick()
            except Exception:
                logger.exception("a periodic step of the replicas failed")

    def _run_in_background(self, call: object) -> None:
        self._pool.submit(call)  # type: ignore[arg-type]

    # -- clients -------------------------------------------------------------------------------------------------

    async def admit_producer(self, business: str) -> None:
        """Wait until this broker leads the business; create it if needed. Raises NotLeader, Unavailable.

        The producer is refused soon if no write is possible until a broker comes back.
        """
        began, made = time.monotonic(), False
        while True:
            waited_s = time.monotonic() - began
            standing = self._shared.standing(business)
            replica = self.host.replicas.get(business)
            if replica is not None and not standing.refusal and self._has_begun(business):
                return
            if waited_s > HINDERED_S and (hindrance := self._hindrance(business)):
                raise Unavailable(f"{business}: {hindrance}", hint=RESUMES_HINT)
            if self._is_led_elsewhere(business, standing) or waited_s > WAIT_S:
                raise write_refusal(business, standing)
            if not made and self._can_begin(business, waited_s):
                made = True
                self.host.create(business)
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_led_elsewhere(self, business: str, standing: ReplicaStanding) -> bool:
        """Return whether a live broker other than this one leads. A dead leader is replaced by an election."""
        known = self.host.records.get(business)
        if known is None or known.leader is None or standing.leads or not standing.leader:
            return False
        return known.leader in self.host.brokers.live

    def _hindrance(self, business: str) -> str:
        known = self.host.records.get(business)
        return election.explain_hindrance(known, self.host.brokers.live) if known is not None else ""

    def _can_begin(self, business: str, waited_s: float) -> bool:
        """Return whether a business of this name can be created now; a removed one must be gone first.

        Raises NotLeader, Refused.
        """
        if business in self.host.records or not self.host.brokers.live or self.host.is_dropping(business):
            return False
        if waited_s < HINDERED_S and self._core.catalogue.has_stored(business):
            return False  # the coordinator has yet to answer whether it was removed
        self._check_new(business)
        return True

    def _check_new(self, business: str) -> None:
        """Raise NotLeader or Refused where a business must not be created."""
        live = self.host.brokers.live
        own = live.get(self.host.me.member)
        others = sorted((member for member in live if not live[member].draining), key=self.host.brokers.leader_order)
        if own is not None and own.draining and others:
            raise NotLeader(f"{business}: this broker is draining", leader=self.host.brokers.address_of(others[0]))
        if self._core.catalogue.has_stored(business):
            raise Refused(
                f"broker {own.member.broker if own else '?'} has data of {business!r} that the cluster does not know",
                hint=f"`venus forget --business {business}` at this broker removes it",
            )

    def _has_begun(self, business: str) -> bool:
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
        """Return whether the business exists, even before the cluster was read. The core refuses unknown ones."""
        return business in self.host.records or self._core.catalogue.has_stored(business)

    def admit_reader(self, business: str) -> None:
        """Admit a reader wherever there is a replica. Raises NotLeader."""
        standing = self._shared.standing(business)
        if business not in self.host.replicas and business in self.host.records and standing.leader:
            raise write_refusal(business, standing)

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
        if known is None or (known.term, known.leader) != (term, self.host.me.member):
            self.coordination.read_soon()
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
        """Remove a business from the whole cluster. False means that only this broker has it.

        Raises NotLeader, Refused while producers or consumers are connected, Unavailable.
        """
        end = time.monotonic() + WAIT_S
        while (known := self.host.records.get(business)) is not None:
            standing = self._shared.standing(business)
            if not standing.leads:
                raise write_refusal(business, standing)
            if await self._remove(known):
                logger.info("%s: removed from the cluster", business)
            elif time.monotonic() > end:
                raise Unavailable(f"{business}: its record keeps changing", hint="try again")
            else:
                self.coordination.read_soon()
                await asyncio.sleep(LOOK_EVERY_S)
        return await self._wait_for_removal(business)

    def _on_removed(self, known: Leadership) -> None:
        self.host.records.pop(known.business, None)
        self.host.on_forgotten_term(known.business, known.term)

    async def _wait_for_removal(self, business: str) -> bool:
        """Wait until this broker's data of the business is removed; return whether it was being removed."""
        was_dropped = self.host.is_dropping(business)
        end = time.monotonic() + REMOVE_S
        while self.host.is_dropping(business):
            if time.monotonic() > end:
                raise Unavailable(f"{business}: the removal has not ended yet", hint="`venus status` shows it")
            await asyncio.sleep(LOOK_EVERY_S)
        return was_dropped

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Record that a group's target was compared and repaired; return the groups still to compare."""
        return await self.losses.close(business, group, terms)

    def _on_install(self, business: str, error: VenusError) -> None:
        """End every stream of a business whose copy is replaced. Called in the installer's thread."""
        clients = self._clients
        if clients is not None:
            self._bridge.post(lambda: clients[1].end_business(business, error))

    def _on_retired(self, business: str, error: NotLeader) -> None:
        if self._clients is None:
            return
        ingest, delivery = self._clients
        stream = ingest.live.get(business)
        if stream is not None:
            stream.end(error)
        delivery.end_groups(business, error)


def prepare_standalone(core: Core) -> None:
    """Prepare a store for serving without a cluster. Blocks. Raises Refused if it belongs to one."""
    known = store_identity.read_identity(core)
    if (core.data_dir / FILE).exists() or (known is not None and known.cluster):
        raise Refused(
            f"{core.data_dir} belongs to a cluster, and [cluster] is not set",
            hint="set [cluster]; to let this broker go on alone: `venus cluster dissolve`, with [cluster] still set",
        )
    if known is not None:
        store_identity.continue_alone(core, known)
