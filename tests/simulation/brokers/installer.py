"""The product's installer, whose thread waits in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tests.simulation.brokers.memory_store import only_read
from venus.broker.replicas import copies
from venus.broker.replicas.copies import Piece
from venus.broker.replicas.installing import Installer
from venus.errors import Unavailable
from venus.replication.messages import LogChanged
from venus.replication.records import LiveBroker

if TYPE_CHECKING:
    from tests.simulation.brokers.host import BrokerHost


class SimulatedInstaller(Installer):
    """Copies of leaders, piece by piece."""

    def __init__(self, host: BrokerHost) -> None:
        super().__init__(
            host.core,
            host.shared,
            self._copy,
            post=lambda call: host.soon(0.0003, call),
            ended=lambda _, error: host.clients.end(error),
        )
        self._host = host
        self._runs = False
        self._stopping = _Stopping(host)  # type: ignore[assignment]

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy, in a thread of this process."""
        host = self._host
        host.loop.counts["reinstalled"] += 1
        host.world.judge.reinstalls(host)
        self._wanted[business] = leader, done
        if not self._runs:
            self._runs = True
            host.soon(0.05 * host.loop.random.random(), self._in_thread)

    def _in_thread(self) -> None:
        self._run()
        self._runs = False

    def _install(self, business: str, leader: LiveBroker) -> LogChanged:
        try:
            return super()._install(business, leader)
        except TimeoutError as error:  # virtual time is not what the product waits for
            raise Unavailable(f"it takes too long: {error}") from error

    def _copy(self, leader: LiveBroker, business: str) -> Iterator[Piece]:
        host = self._host
        source: BrokerHost = host.world.hosts[leader.member.broker]
        self._reach(source, leader)
        held = source.business
        if held is None:
            raise Unavailable("it has nothing of it")
        for piece in copies._read(only_read(source.core.memory.frozen()), held):
            host.wait(lambda: False, 0.05 * host.loop.random.random())
            self._reach(source, leader)
            yield piece

    def _reach(self, source: BrokerHost, leader: LiveBroker) -> None:
        links = {(self._host.name, source.name), (source.name, self._host.name)}
        if not source.up or source.me != leader.member or links & self._host.world.network.cut:
            raise Unavailable("no way there")


class _Stopping:
    """An event that is set when the process has ended, and waits in virtual time."""

    def __init__(self, host: BrokerHost) -> None:
        self._host, self._life = host, host.life

    def is_set(self) -> bool:
        return self._host.life != self._life

    def wait(self, seconds: float) -> bool:
        self._host.wait(lambda: False, seconds)
        return self.is_set()

    def set(self) -> None:
        raise AssertionError("processes end by themselves here")
