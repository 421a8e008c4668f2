"""One broker process: the core's threads, and one event loop with gRPC and HTTP.

A storage error ends the process at once. The process ends no stream cleanly, because none of its answers would be
certain. A supervisor restarts the process, and recovery from the log restores the true state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from venus.alarms.notifier import ALARMS_FILE, Notifier
from venus.alarms.recipients import build_recipients
from venus.broker.core import Core
from venus.broker.matching.overlay import MatchingOverlay
from venus.broker.mirrors.directory_exchange import ClusterPeers, DirectoryExchange
from venus.broker.mirrors.network_membership import NetworkMembership
from venus.broker.replicas.replicated_logs import ReplicatedLogs
from venus.broker.replicas.replication import Replication, prepare_standalone
from venus.broker.service.access import AccessControl
from venus.broker.service.alarm_monitor import AlarmMonitor, run_checks
from venus.broker.service.http import HttpServer, Pages
from venus.broker.service.server import GrpcServer, Keepalive
from venus.broker.service.service_status import HealthCheck, ServiceStatus
from venus.broker.service.traffic import Traffic
from venus.broker.service.traffic_status import TrafficStatus
from venus.broker.service.traffic_watch import TrafficWatch
from venus.broker.store.files import UMASK
from venus.config import BrokerSettings, Settings
from venus.errors import Fenced, VenusError
from venus.process.system import freeze_objects, raise_descriptor_limit, share_heaps, steady_clock_s, stop_signals
from venus.replication.records import LiveBroker
from venus.rpc import event_loop
from venus.rpc.address import broker_address
from venus.rpc.event_loop import LoopBridge
from venus.rpc.in_process import register_broker
from venus.security import audit
from venus.security.audit import Refusals
from venus.security.certificate_files import CertificateFiles, check_listeners, open_files

logger = logging.getLogger(__name__)

THREAD_TIMEOUT_S = 30.0
MAY_PULL_S = 30.0

#: The loop and the commit thread alternate: Python's default of 5 ms halves the rate of one-row batches. With this
#: value large transactions take a fifth longer in `venus run`.
SWITCH_INTERVAL_S = 0.0005


def clock_us() -> int:
    """Return Unix time in microseconds."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of a broker."""

    grpc: str
    http: str
    tls: bool = False

    @property
    def page(self) -> str:
        """The URL of the status page."""
        return f"http{'s' if self.tls else ''}://{self.http}/"


async def run(
    settings: Settings,
    keepalive: Keepalive,
    stop: asyncio.Event,
    ready: Callable[[Addresses], None],
    on_fatal: Callable[[BaseException], None],
    *,
    in_process: bool = False,
) -> None:
    """Serve until `stop`. Stop the started parts in the opposite order, even after an error.

    With `in_process` clients of this process use the broker without a connection (venus/rpc/in_process.py).
    """
    loop, broker, cluster = asyncio.get_running_loop(), settings.broker, settings.cluster
    check_listeners(settings)
    files = load_files(settings)
    notifier = Notifier(build_recipients(settings.alarms), broker_name(settings))
    shared = ReplicatedLogs(backlog_bytes=cluster.follower_backlog_bytes) if cluster.name else None
    core = Core(
        broker.data_dir,
        broker,
        clock_us=clock_us,
        monotonic=time.monotonic,
        on_fatal=on_fatal,
        shared=shared,
        steady=steady_clock_s,
    )
    await loop.run_in_executor(None, core.start)
    bridge = LoopBridge(loop)
    path, heartbeat_s = broker.data_dir / ALARMS_FILE, settings.capture.heartbeat_s
    watch = AlarmMonitor(settings.alarms, notifier, path, heartbeat_s=heartbeat_s)
    notifier.start()
    try:
        replication = Replication(core, shared, bridge, cluster, broker_address(settings).proof) if shared else None
        network = build_network(settings, core, replication, loop)
        who = build_access(settings, core, files)
        await loop.run_in_executor(
            None, replication.enter if replication is not None else lambda: prepare_standalone(core)
        )
        directory = build_directory(settings, core, network, replication)
        serving = await _build_services(settings, keepalive, core, bridge, replication, who, watch, network, directory)
        try:
            addresses = await serving.start(settings.broker)
            with register_here(broker, addresses, serving) if in_process else nullcontext():
                ready(addresses)
                await stop.wait()
        finally:
            await serving.end()
    finally:
        await loop.run_in_executor(None, notifier.stop)
        await loop.run_in_executor(None, bridge.close)
        await loop.run_in_executor(None, core.stop)


@dataclass(slots=True, kw_only=True, eq=False)
class BrokerServices:
    """The serving parts of a broker: gRPC, HTTP, replication and monitors, in its event loop."""

    access: AccessControl
    replication: Replication | None
    network: NetworkMembership
    directory: DirectoryExchange
    health: HealthCheck
    service: GrpcServer
    traffic_watch: TrafficWatch
    pages: Pages
    watching: asyncio.Task[None]
    overlay: MatchingOverlay | None = None
    http: HttpServer | None = None

    async def start(self, broker: BrokerSettings) -> Addresses:
        """Start serving; return the addresses."""
        if broker.http:
            self.http = HttpServer(broker.http, self.pages)
        port = self.service.open_port(broker.listen)
        host = broker.listen.rpartition(":")[0]
        own, replication = broker.address or f"{host}:{port}", self.replication
        if broker.local_streams and replication is None:
            await self.service.start_local(own, port)
        await self.service.start()
        if self.http is not None:
            self.http.start()
        if replication is not None:
            await replication.start(own, self.service.end_streams, self.service.delivery.end_business)
        if self.overlay is not None:
            self.overlay.start(own)
        self.service.in_process.start(own)
        self.traffic_watch.start()
        cluster = replication.lines.cluster if replication is not None else ""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.network.start, broker.addresses or (own,), cluster)
        await loop.run_in_executor(None, self.directory.start, broker.addresses or (own,), cluster)
        page = self.http.address if self.http is not None else ""
        return Addresses(grpc=f"{host}:{port}", http=page, tls=self.access.files is not None)

    async def end(self) -> None:
        """Stop every part, started or not."""
        self.health.stopping = True
        self.watching.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self.directory.stop)
        await asyncio.get_running_loop().run_in_executor(None, self.network.stop)
        if self.overlay is not None:
            await self.overlay.stop()
        if self.replication is not None:
            await self.replication.stop()
        await self.service.stop()
        self.traffic_watch.stop()
        if self.http is not None:
            await self.http.stop()


def register_here(
    broker: BrokerSettings, addresses: Addresses, serving: BrokerServices
) -> AbstractContextManager[None]:
    """Let clients of this process find the broker at its address, in which port 0 has become a real one."""
    return register_broker(broker.model_copy(update={"listen": addresses.grpc}).reach, serving.service.in_process)


async def _build_services(
    settings: Settings,
    keepalive: Keepalive,
    core: Core,
    bridge: LoopBridge,
    replication: Replication | None,
    access: AccessControl,
    watch: AlarmMonitor,
    network: NetworkMembership,
    directory: DirectoryExchange,
) -> BrokerServices:
    """Build the serving parts and connect them."""
    broker, status = settings.broker, ServiceStatus(core)
    status.other_alarms, status.watch, status.network = access.problems, watch, network
    status.directory = directory
    if replication is not None:
        status.replication = replication.status
    health = HealthCheck(status, core.space)
    traffic = Traffic(core, broker)
    directory.load = lambda: traffic.load_now
    if replication is not None:
        replication.health.facts, replication.health.lanes = traffic.health, traffic.admission.degradation
    overlay = build_overlay(settings, bridge, replication)
    status.overlay = overlay
    if overlay is not None:
        core.listening.shared_table = overlay.shared_table
    service = GrpcServer(core, bridge, status, keepalive, access, traffic, directory, replication, overlay)
    windows, frames = service.delivery.window_of, service.delivery.frames
    status.traffic = TrafficStatus(traffic, core, bridge, windows, frames, lambda: service.local.streams)
    trouble = (lambda: replication.coordination.unreachable) if replication is not None else None
    return BrokerServices(
        access=access,
        replication=replication,
        network=network,
        directory=directory,
        overlay=overlay,
        health=health,
        service=service,
        traffic_watch=TrafficWatch(traffic, core, bridge, service.delivery.all_streams, trouble),
        pages=Pages(bridge, status, health, access, service.delivery),
        watching=asyncio.create_task(run_checks(watch, bridge, status.status_without_tables, settings.alarms.check_s)),
    )


def live_brokers(replication: Replication | None) -> list[LiveBroker]:
    """Return the live brokers of the cluster; [] without one. Works in any thread."""
    return list(replication.host.brokers.live.copy().values()) if replication is not None else []


def build_overlay(settings: Settings, bridge: LoopBridge, replication: Replication | None) -> MatchingOverlay | None:
    """Return this broker's part in the overlay, None if it is off. Brokers of a cluster know each other's addresses."""

    def known_addresses() -> list[str]:
        """Return the addresses of the live brokers of the cluster."""
        return [one.address for one in live_brokers(replication)]

    if not settings.matching.overlay:
        return None
    return MatchingOverlay(
        settings.matching, settings.cluster.set_name, broker_address(settings).proof, bridge, known_addresses
    )


def build_directory(
    settings: Settings, core: Core, network: NetworkMembership, replication: Replication | None
) -> DirectoryExchange:
    """Return the directory of this broker."""
    peers = ClusterPeers(
        addresses=lambda: [one.address for one in live_brokers(replication) if one.address],
        loads=lambda: [one.load.used for one in live_brokers(replication) if one.load is not None],
    )
    return DirectoryExchange(core, settings.cluster, network, proof=broker_address(settings).proof, peers=peers)


def build_network(
    settings: Settings, core: Core, replication: Replication | None, loop: asyncio.AbstractEventLoop
) -> NetworkMembership:
    """Return the network of this broker's set. In a cluster, the leader of a business pulls it from upstream."""

    def may_pull(business: str) -> None:
        """Wait until this broker leads the business. Raises NotLeader, Unavailable."""
        if replication is not None:
            asyncio.run_coroutine_threadsafe(replication.gate.admit_producer(business), loop).result(MAY_PULL_S)

    return NetworkMembership(
        core, settings.cluster, settings.labels, proof=broker_address(settings).proof, may_pull=may_pull
    )


def broker_name(settings: Settings) -> str:
    """Return the name of this broker in messages."""
    return settings.cluster.broker_id or settings.broker.address or f"{socket.gethostname()} {settings.broker.listen}"


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def load_files(settings: Settings) -> CertificateFiles | None:
    """Return the broker's certificates, None without TLS. Raises ConfigError."""
    if not settings.security.certificate:
        return None
    return open_files(settings.security, settings.broker.address or settings.broker.listen, utc_now)


def build_access(settings: Settings, core: Core, files: CertificateFiles | None) -> AccessControl:
    """Return the access control of this broker."""
    path = Path(settings.security.audit_file) if settings.security.audit_file else settings.broker.data_dir / audit.NAME
    return AccessControl(files, audit.AuditLog(path, utc_now), Refusals(time.monotonic), core.full_data.business_of)


def end_process(error: BaseException) -> None:
    """End the process now, from any thread. The last line of the log gives the reason."""
    logger.critical("venus broker: fatal: %s", str(error) or type(error).__name__)  # without logging set up: on stderr
    os._exit(Fenced.exit_code if isinstance(error, Fenced) else VenusError.exit_code)


def announcer(data_dir: Path) -> Callable[[Addresses], None]:
    """Return a function that prints the addresses of a broker to standard output."""

    def announce_addresses(addresses: Addresses) -> None:
        page = f", status page {addresses.page}" if addresses.http else ""
        sys.stdout.write(f"broker listens on {addresses.grpc}{page}, data in {data_dir.resolve()}\n")
        sys.stdout.flush()

    return announce_addresses


def prepare_process() -> None:
    """Set the process-wide options that a broker needs. Call it before any broker thread starts."""
    raise_descriptor_limit()  # connections must not use up the store's descriptors
    share_heaps()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.umask(UMASK)  # RocksDB creates its files itself


def serve(settings: Settings, announce: Callable[[Addresses], None] | None = None) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP. Raises a VenusError if it cannot start."""
    broker = settings.broker
    prepare_process()

    def on_ready(addresses: Addresses) -> None:
        """Announce the addresses once the broker serves."""
        freeze_objects()
        (announce or announcer(broker.data_dir))(addresses)

    async def main() -> None:
        """Run the broker until a stop signal."""
        stop = asyncio.Event()
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        keepalive = Keepalive()
        await run(settings, keepalive, stop, on_ready, end_process)

    event_loop.run(main())
    return 0


class RunningBroker:
    """A broker in a thread of this process."""

    def __init__(
        self,
        settings: Settings,
        keepalive: Keepalive,
        on_fatal: Callable[[BaseException], None],
        *,
        in_process: bool = False,
    ) -> None:
        self._settings, self._limits, self._on_fatal = settings, keepalive, on_fatal
        self._in_process = in_process
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="venus-broker", daemon=True)
        self.address = self.http_address = ""
        #: The URL of the status page.
        self.page = ""

    def start(self) -> RunningBroker:
        """Start the broker and wait until it serves. Raises the error of the broker's thread."""
        self._thread.start()
        if not self._ready.wait(THREAD_TIMEOUT_S):
            raise VenusError("the broker did not start in time")
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def stop(self) -> None:
        """Stop the broker cleanly. A second call does nothing."""
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(THREAD_TIMEOUT_S)

    def _main(self) -> None:
        """Run the broker in its thread; keep the error that ends it."""
        try:
            event_loop.run(self._run())
        except BaseException as error:  # `start` raises it in its thread
            self._error = error
            if self._ready.is_set():  # clients of this process would wait for ever
                self._on_fatal(error)
        finally:
            self._ready.set()

    async def _run(self) -> None:
        """Run the broker until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await run(self._settings, self._limits, self._stop, self._on_ready, self._on_fatal, in_process=self._in_process)

    def _on_ready(self, addresses: Addresses) -> None:
        """Record the addresses of the broker, and let `start` return."""
        self.address, self.http_address, self.page = addresses.grpc, addresses.http, addresses.page
        self._ready.set()


def start_in_thread(
    settings: Settings,
    *,
    keepalive: Keepalive | None = None,
    on_fatal: Callable[[BaseException], None] = end_process,
    in_process: bool = False,
) -> RunningBroker:
    """Start a broker in a thread. With `listen = "127.0.0.1:0"` it uses a free port, which `address` names.

    With `in_process`, producers and consumers of this process use the broker without a connection.
    """
    own = keepalive or Keepalive()
    return RunningBroker(settings, own, on_fatal, in_process=in_process).start()
