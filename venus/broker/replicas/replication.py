"""Replication in one broker of a cluster: builds, starts and stops the replicas, connections and the coordinator."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import venus
from venus.broker.core import Core
from venus.broker.replicas.broker_load import BrokerHealth, BrokerLoad
from venus.broker.replicas.connections import BrokerConnections
from venus.broker.replicas.coordinator_thread import CoordinatorThread
from venus.broker.replicas.copies import CopyPool
from venus.broker.replicas.gate import ClusterGate
from venus.broker.replicas.host import Host
from venus.broker.replicas.installation import ReplicaInstaller
from venus.broker.replicas.placement import ReplicaPlacement
from venus.broker.replicas.replicated_logs import CoreLogs, ReplicatedLogs
from venus.broker.replicas.replication_status import ReplicationStatus
from venus.broker.replicas.store_identity import (
    CLUSTER_FILE,
    NewestWriteSaver,
    continue_alone,
    enroll_store,
    join_cluster,
    read_identity,
)
from venus.config import ClusterSettings
from venus.coordination.etcd import EtcdCoordinator
from venus.coordination.login import build_login
from venus.errors import ConfigError, NotLeader, Refused, VenusError
from venus.flow.degradation import Lane
from venus.model import is_every_interface
from venus.process.system import steady_clock_s
from venus.replication.position import ReplicationTimes
from venus.replication.records import LiveBroker, Policy
from venus.rpc.address import ClientCredentials
from venus.rpc.event_loop import LoopBridge

logger = logging.getLogger(__name__)

TICK_S = 0.1
LOOK_EVERY_S = 0.02
EXPIRE_EVERY_S = 10.0
HAND_OVER_S = 3.0

EndStreams = Callable[[str, VenusError], None]


class Replication:
    """One broker's part of a cluster. Used in the service's event loop."""

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
        self._proof = proof
        self._pool = ThreadPoolExecutor(1, "venus-replica-read")
        self.health = BrokerHealth(core.store, core.space)
        self._ticking: asyncio.Task[None] | None = None
        self._clients: tuple[EndStreams, EndStreams] | None = None
        self._wanted = ReplicaPlacement(
            replicas=settings.replicas,
            policy=Policy(settings.policy),
            min_in_sync=settings.min_in_sync_effective
            if settings.policy == "consistency"
            else settings.min_in_sync or 1,
        )

    def enter(self) -> None:
        """Join the cluster with this store. Blocks. Raises Refused, Unavailable."""
        settings, core = self.settings, self._core
        cluster = join_cluster(self._coordinator, core.data_dir, settings.name)
        member, topology = enroll_store(core, self._coordinator, cluster, settings.broker_id, self._wanted)
        me = LiveBroker(
            member=member, address="", site=settings.site, priority=settings.priority, version=venus.__version__
        )
        self.lines = BrokerConnections(cluster, member, self._proof)
        self.coordination = CoordinatorThread(
            self._coordinator,
            lease_s=settings.lease_s,
            monotonic=steady_clock_s,
            post=self._bridge.post,
            on_fatal=core.on_fatal,
        )
        self.copies = CopyPool(core, time.monotonic)
        self.installer = ReplicaInstaller(
            core, self._shared, self.lines, post=self._bridge.post, ended=self._on_install
        )
        self.host = self._build_host(me)
        self.host.record_created(topology)
        self.gate = ClusterGate(core, self._shared, self._bridge, self._coordinator, self.host, self.coordination)
        self.lines.host = self.host
        self.status = ReplicationStatus(
            settings.name, self.host, self._shared, self.coordination, self.installer.progress, self.health
        )

    def _build_host(self, me: LiveBroker) -> Host:
        """Build the host of the replicas with its logs, connections and coordinator."""
        core = self._core
        logs = CoreLogs(
            core,
            self._shared,
            me=str(me.member),
            background=lambda call: self._run_in_background(call),
            retired=self._on_retired,
        )
        return Host(
            me,
            logs=logs,
            shared=self._shared,
            transport=self.lines,
            coordination=self.coordination,
            installations=self.installer,
            wanted=self._wanted,
            patience=ReplicationTimes(silence_s=self.settings.silence_s),
            monotonic=steady_clock_s,
            post=self._bridge.post,
            health=self.health,
            load=BrokerLoad(core.data_dir),
            rebalance=self.settings.rebalance,
        )

    async def start(self, address: str, retire: EndStreams, end_readers: EndStreams) -> None:
        """Register under an address and start replication. Raises Refused if another broker has this one's id.

        `retire` ends the streams that only a leader serves, `end_readers` every stream of consumers.
        """
        if is_every_interface(address):
            raise ConfigError(
                f"broker.listen {address} is not an address that other brokers can use",
                hint="set broker.address to a HOST:PORT that the other brokers can reach",
            )
        self._clients = retire, end_readers
        self.host.me = replace(self.host.me, address=address)
        await asyncio.get_running_loop().run_in_executor(None, self.coordination.start, self.host, self.host.me)
        self.noting = NewestWriteSaver(self._core, self.coordination, self.host.me.member.store, time.monotonic)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Hand over the businesses that this broker leads, then deregister the broker."""
        end = time.monotonic() + HAND_OVER_S
        if self._ticking is not None:
            while self.host.hand_over() and time.monotonic() < end:
                await asyncio.sleep(LOOK_EVERY_S)
            self._ticking.cancel()
        self.gate.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.coordination.stop)
        await asyncio.get_running_loop().run_in_executor(None, self.installer.stop)
        await self.lines.close()
        await asyncio.get_running_loop().run_in_executor(None, self.copies.close)
        self._pool.shutdown()

    async def _tick(self) -> None:
        """Advance the timers of the host and the other parts until cancelled."""
        expire_at = time.monotonic() + EXPIRE_EVERY_S
        while True:
            await asyncio.sleep(TICK_S)
            if time.monotonic() >= expire_at:
                expire_at += EXPIRE_EVERY_S
                self._bridge.run_in_background(Lane.CONTROL, self.copies.expire)
            try:
                self.host.tick()
                self.gate.losses.tick()
                self.noting.tick()
            except Exception:
                logger.exception("a periodic step of the replicas failed")

    def _run_in_background(self, call: object) -> None:
        self._pool.submit(call)  # type: ignore[arg-type]

    def _on_install(self, business: str, error: VenusError) -> None:
        """End every stream of a business whose copy is replaced. Called in the installer's thread."""
        clients = self._clients
        if clients is not None:
            self._bridge.post(lambda: clients[1](business, error))

    def _on_retired(self, business: str, error: NotLeader) -> None:
        """End the streams that only the leader of a business serves."""
        if self._clients is not None:
            self._clients[0](business, error)


def prepare_standalone(core: Core) -> None:
    """Prepare a store for serving without a cluster. Blocks. Raises Refused if the store belongs to a cluster."""
    known = read_identity(core)
    if (core.data_dir / CLUSTER_FILE).exists() or (known is not None and known.cluster):
        raise Refused(
            f"{core.data_dir} belongs to a cluster, and [cluster] is not set",
            hint="set [cluster]; to let this broker continue alone: `venus cluster dissolve`, with [cluster] still set",
        )
    if known is not None:
        continue_alone(core, known)
