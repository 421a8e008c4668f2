"""Overlays of real brokers, and one access broker in the test, which owns subscriptions and has its own port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.forked_brokers import ForkedBroker
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.matching.overlay import MatchingOverlay
from venus.broker.service.overlay_service import OverlayService
from venus.config import BrokerSettings, ClusterSettings, Settings
from venus.config.sections import MatchingSettings
from venus.network.matching.interests import Events, Interest, Matches
from venus.rpc.address import NONE, ClientCredentials
from venus.rpc.admin import AdminClient
from venus.rpc.event_loop import EventLoop, LoopBridge
from venus.rpc.sealed import handlers
from venus.wire import broker_pb2

T = TypeVar("T")
#: The name of the overlay and of the broker set.
NAME = "core"


def matching(join: Sequence[str], **options: Any) -> MatchingSettings:
    """Return settings of an overlay with short intervals."""
    quick = {"exchange_s": 0.25, "lease_s": 3.0, "local_interests_max": 10}
    return MatchingSettings(**{"overlay": True, "join": join, **quick, **options})


class BrokerOverlay:
    """Broker processes that share matching work; each knows the addresses of two others, or finds them in `etcd`."""

    def __init__(self, folder: Path, count: int, *, etcd: EtcdCluster | None = None, **options: Any) -> None:
        self._etcd, self._cluster = etcd, etcd.new_name() if etcd is not None else ""
        self.ports = [free_port() for _ in range(count)]
        self.addresses = [f"127.0.0.1:{port}" for port in self.ports]
        self.folder, self._options = folder, options
        self.brokers: dict[str, ForkedBroker] = {}
        for number in range(count):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a broker."""
        address = self.addresses[number]
        join, cluster = [self.addresses[(number + step) % len(self.addresses)] for step in (1, 2)], ClusterSettings()
        if self._etcd is not None:
            join, known = [], tuple(self._etcd.addresses)
            cluster = ClusterSettings(name=self._cluster, broker_id=f"b{number}", etcd=known, set=NAME, lease_s=4.0)
        folder = self.folder / f"b{number}"
        folder.mkdir(parents=True, exist_ok=True)
        chosen = Settings(
            broker=BrokerSettings(listen=address, http="", data_dir=folder, free_bytes_min=1 << 20),
            cluster=cluster,
            matching=matching(join, **self._options),
        )
        self.brokers[address] = ForkedBroker(chosen, folder / "log")

    def status(self, address: str) -> broker_pb2.OverlayStatus:
        """Return a broker's status of the overlay."""
        with AdminClient(address) as admin:
            return admin.status().overlay

    def statuses(self) -> dict[str, broker_pb2.OverlayStatus]:
        """Return the status of all living brokers."""
        return {address: self.status(address) for address, broker in self.brokers.items() if broker.is_alive}

    def is_whole(self, *others: str) -> bool:
        """Whether all brokers know exactly the living members of their top clusters; `others` are members too."""
        found = self.statuses()
        clusters: dict[str, set[str]] = {}
        for address, status in found.items():
            clusters.setdefault(status.cluster, set()).add(address)
        return all(
            status.cycles and set(status.members) - set(others) == clusters[status.cluster] for status in found.values()
        )

    def matched_pairs(self) -> dict[str, int]:
        """Return how many pairs each living broker has compared; wait until all have reported everything.

        A broker reports at the end of a cycle, so its second report from now on includes everything until now.
        """
        seen = [self.statuses()]

        def is_still() -> bool:
            found, before = self.statuses(), seen[-1]
            if any(found[address].cycles < before[address].cycles + 2 for address in found):
                return False
            seen.append(found)
            return all(found[address].pairs == before[address].pairs for address in found)

        eventually(is_still, "brokers that have reported everything", every_s=0.2)
        return {address: status.pairs for address, status in seen[-1].items()}

    def wait_until_whole(self, *others: str, timeout_s: float = 60.0) -> None:
        """Wait until the overlay is whole."""
        eventually(lambda: self.is_whole(*others), "a whole overlay", timeout_s=timeout_s, every_s=0.2)

    def kill(self, count: int) -> list[str]:
        """Kill the first brokers at once; return their addresses."""
        chosen = [address for address, broker in self.brokers.items() if broker.is_alive][:count]
        for address in chosen:
            self.brokers[address].kill()
        return chosen

    def __enter__(self) -> BrokerOverlay:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.kill()


class AccessBroker:
    """The overlay part of a broker in a thread of the test, which owns subscriptions."""

    def __init__(self, join: Sequence[str], proof: ClientCredentials = NONE, **options: Any) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._loop = EventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.overlay: MatchingOverlay
        self._server: grpc.aio.Server
        self.call(self._start(matching(join, **options), proof))

    async def _start(self, settings: MatchingSettings, proof: ClientCredentials) -> None:
        self._bridge = LoopBridge(self._loop)
        self.overlay = MatchingOverlay(settings, NAME, proof, self._bridge)
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([handlers("Overlay", OverlayService(self.overlay))])
        self._server.add_insecure_port(self.address)
        await self._server.start()
        self.overlay.start(self.address)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        """Run a coroutine in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def subscribe(self, table: str, interests: Sequence[Interest], first: int = 0) -> None:
        """Add interests, numbered from `first` on."""
        for number, one in enumerate(interests, first):
            self.overlay.remote.add(table, number, one)

    def match(self, table: str, events: Events) -> Matches:
        """Match changes."""
        return self.overlay.remote.match(table, events)

    def wait_for_rounds(self, count: int) -> None:
        """Wait for rounds of installation, which assign subspaces by the matched load."""
        last = self.overlay.remote.rounds + count
        eventually(lambda: self.overlay.remote.rounds >= last, "rounds of installation", every_s=0.05)

    def wait_until_installed(self, timeout_s: float = 60.0) -> None:
        """Wait until all subspaces are installed at other brokers."""
        count = self.overlay.remote.count_subspaces
        eventually(lambda: not count()[1], "installed subscriptions", timeout_s=timeout_s, every_s=0.05)

    def __enter__(self) -> AccessBroker:
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            await self.overlay.stop()
            await self._server.stop(None)

        self.call(stop())
        self._bridge.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
