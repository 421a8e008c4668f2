"""The gRPC server of the broker: Ingest, Delivery, Admin, health and reflection on one port, in one event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from venus.broker.core import Core
from venus.broker.matching.overlay import MatchingOverlay
from venus.broker.mirrors.directory_exchange import DirectoryExchange
from venus.broker.replicas.gate import Gate, StandaloneGate
from venus.broker.replicas.replication import Replication
from venus.broker.service.access import AccessControl, AccessInterceptor
from venus.broker.service.admin import AdminService
from venus.broker.service.delivery import DeliveryService
from venus.broker.service.in_process import InProcessServer
from venus.broker.service.ingest import IngestService, ask_for_reviews
from venus.broker.service.local_streams import LocalServer
from venus.broker.service.network_service import NetworkService
from venus.broker.service.overlay_service import OverlayService
from venus.broker.service.replica_service import ReplicaService
from venus.broker.service.service_status import ServiceStatus
from venus.broker.service.traffic import Traffic
from venus.errors import ConfigError, VenusError
from venus.rpc.address import is_loopback_address
from venus.rpc.channel import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, MESSAGE_BYTES_MAX, REPLICA_BYTES_MAX, channel_options
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import LISTEN, PRODUCE, SUBSCRIBE, handlers
from venus.security.certificate_files import grpc_credentials
from venus.wire import broker_pb2

_KNOWN = tuple(service.full_name for service in broker_pb2.DESCRIPTOR.services_by_name.values())
NAMES = tuple(f"venus.wire.{name}" for name in ("Ingest", "Delivery", "Admin"))
STOP_GRACE_S = 2.0
HANDSHAKE_TIMEOUT_MS = 10_000
IDLE_MS = 600_000
#: Streams of one connection. A comparison looks up some thirty keys at once.
STREAMS_MAX = 256
PATIENCE_MARGIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """Keepalive times that detect a dead connection. Tests use shorter ones than these defaults."""

    every_s: float = KEEPALIVE_S
    timeout_s: float = KEEPALIVE_TIMEOUT_S


class GrpcServer:
    """The gRPC server with its services and its review task."""

    def __init__(
        self,
        core: Core,
        bridge: LoopBridge,
        service_status: ServiceStatus,
        keepalive: Keepalive,
        access: AccessControl,
        traffic: Traffic,
        directory: DirectoryExchange,
        replication: Replication | None = None,
        overlay: MatchingOverlay | None = None,
    ) -> None:
        gate: Gate = replication.gate if replication is not None else StandaloneGate()
        self._core, self._bridge, self._access = core, bridge, access
        own = [
            ("grpc.so_reuseport", 0),  # two brokers on one port would share the clients
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),  # gRPC's 120 s would hold descriptors
            ("grpc.max_connection_idle_ms", IDLE_MS),  # closes connections without calls; clients reconnect
            ("grpc.max_concurrent_streams", STREAMS_MAX),
        ]
        self._server = grpc.aio.server(
            interceptors=[AccessInterceptor(access)],
            options=channel_options(
                keepalive.every_s,
                keepalive.timeout_s,
                send_bytes_max=MESSAGE_BYTES_MAX if replication is None else REPLICA_BYTES_MAX,
            )
            + own,
        )
        patience_s = keepalive.every_s + keepalive.timeout_s + PATIENCE_MARGIN_S  # by then a dead one is closed
        self.ingest = IngestService(core, bridge, service_status, traffic=traffic, patience_s=patience_s, gate=gate)
        self.delivery = DeliveryService(core, bridge, service_status, traffic, gate)
        #: Streams of clients in this process, and in other processes of this machine.
        served = {PRODUCE: self.ingest.serve, SUBSCRIBE: self.delivery.serve, LISTEN: self.delivery.serve_listener}
        self.in_process = InProcessServer(bridge, served)
        self.local = LocalServer(served, silence_s=keepalive.every_s, timeout_s=keepalive.timeout_s)
        self._health = health.aio.HealthServicer()
        admin = AdminService(core, bridge, service_status, self.ingest, gate)
        services: dict[str, object] = {"Ingest": self.ingest, "Delivery": self.delivery, "Admin": admin}
        services["Network"] = NetworkService(bridge, directory)
        if replication is not None:
            services["Replica"] = ReplicaService(
                core, bridge, traffic, replication.host, replication.lines, replication.copies
            )
        if overlay is not None:
            services["Overlay"] = OverlayService(overlay)
        self._server.add_generic_rpc_handlers([handlers(name, servicer) for name, servicer in services.items()])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection([*_KNOWN, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        self._reviews: asyncio.Task[None] | None = None
        core.homes.add_listener(lambda business, error: bridge.post(self.end_streams, business, error))

    def open_port(self, listen: str) -> int:
        """Listen for gRPC; return the port."""
        try:
            return self._open_port(listen)
        except RuntimeError as error:
            raise ConfigError(
                f"broker.listen {listen} cannot be used",
                hint="Is another broker running, or is it not an address of this machine?",
            ) from error

    async def start_local(self, own: str, port: int) -> None:
        """Serve streams of this machine, if there is no TLS and its clients connect to the broker's own port.

        Local streams are served before the broker reports that it serves, so that no client stays with gRPC by chance.
        """
        if self._access.files is None and is_loopback_address(own) and int(own.rpartition(":")[2]) == port:
            await self.local.start(own)

    async def start(self) -> None:
        """Serve."""
        await self._server.start()
        for name in ("", *NAMES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._reviews = asyncio.create_task(
            ask_for_reviews(self._core, self._bridge, self.ingest, first_s=self._core.review_after_s)
        )

    def _open_port(self, listen: str) -> int:
        """Add a port to the gRPC server, with TLS if the broker has certificates; return its number."""
        files = self._access.files
        if files is None:
            return self._server.add_insecure_port(listen)
        return self._server.add_secure_port(listen, grpc_credentials(files, self._access.refusals.on_connection_begin))

    def end_streams(self, business: str, error: VenusError) -> None:
        """End the streams of a business that another broker or set serves now; readers may stay."""
        if (stream := self.ingest.live.get(business)) is not None:
            stream.end(error)
        self.delivery.end_groups(business, error)

    async def stop(self) -> None:
        """Report that the broker stops, end the streams, then close."""
        await self._health.enter_graceful_shutdown()
        if self._reviews is not None:
            self._reviews.cancel()
        self.in_process.refuse_streams()
        self.local.refuse_streams()
        self.ingest.end_all()
        self.delivery.end_all()
        await self.in_process.stop()
        await self.local.stop()
        await self._server.stop(STOP_GRACE_S)
