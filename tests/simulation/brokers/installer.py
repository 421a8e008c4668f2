"""The product's installer, whose thread waits in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.brokers.memory_store import only_read
from venus.broker.replicas import copies
from venus.broker.replicas.copies import BusinessCopy, CopyHeader, CopyMark, CopyPiece, CopyPlace
from venus.broker.replicas.installation import ReplicaInstaller
from venus.broker.store import keys
from venus.errors import Unavailable
from venus.replication.position import LogChanged
from venus.replication.records import LiveBroker

if TYPE_CHECKING:
    from tests.simulation.brokers.host import BrokerHost


class SimulatedInstaller(ReplicaInstaller):
    """Installs the leader's copy, piece by piece."""

    def __init__(self, host: BrokerHost) -> None:
        super().__init__(
            host.core,
            host.shared,
            _Source(host),
            post=lambda call: host.soon(0.0003, call),
            ended=lambda _, error: host.clients.end(error),
        )
        self._host = host
        self._stopping = _ProcessStop(host)  # type: ignore[assignment]

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy as work of this process."""
        self._host.loop.counts["reinstalled"] += 1
        self._host.world.judge.on_reinstall(self._host)
        super().begin(business, leader, done)

    def _wake(self) -> None:
        """Run the installer's next round soon, in the loop."""
        if self._thread is None:
            self._thread = threading.current_thread()  # the loop stands for its thread
            self._host.soon(0.05 * self._host.loop.random.random(), self._run)

    def _install(self, business: str, leader: LiveBroker) -> LogChanged:
        try:
            return super()._install(business, leader)
        except TimeoutError as error:  # the product's time limit does not use virtual time
            raise Unavailable(f"it takes too long: {error}") from error


class _Source:
    """Source of copies: the current store of a leader."""

    def __init__(self, host: BrokerHost) -> None:
        self._host = host

    def read_copy(
        self, leader: LiveBroker, business: str, mark: CopyMark | None
    ) -> Generator[CopyHeader | CopyPiece, None, None]:
        """Return a copy from its beginning; pieces of an earlier copy are not reused."""
        host = self._host
        source: BrokerHost = host.world.hosts[leader.member.broker]
        self._reach(source, leader)
        held = source.business
        if held is None:
            raise Unavailable("it has nothing of it")
        copy = BusinessCopy(
            name=f"{host.name}{host.loop.now}",
            path=Path("/simulated/copy"),
            store=only_read(source.core.memory.freeze()),
            number=held.number,
            log_stop=keys.log_key(held.number, held.log.applied + 1),
            records_expected=0,
        )
        yield CopyHeader(copy=copy.name)
        for piece in copies.read_pieces(copy, CopyPlace()):
            host.wait(lambda: False, 0.05 * host.loop.random.random())
            self._reach(source, leader)
            yield piece

    def release_copy(self, leader: LiveBroker, business: str, copy: str) -> None:
        """Do nothing: no copy is kept."""

    def _reach(self, source: BrokerHost, leader: LiveBroker) -> None:
        """Raise Unavailable if the leader cannot be reached."""
        links = {(self._host.name, source.name), (source.name, self._host.name)}
        if not source.up or source.me != leader.member or links & self._host.world.network.cut:
            raise Unavailable("no way there")


class _ProcessStop:
    """Event that is set when the process has ended; waiting for it takes virtual time."""

    def __init__(self, host: BrokerHost) -> None:
        self._host, self._life = host, host.life

    def is_set(self) -> bool:
        return self._host.life != self._life

    def wait(self, seconds: float) -> bool:
        self._host.wait(lambda: False, seconds)
        return self.is_set()

    def set(self) -> None:
        raise AssertionError("processes end by themselves here")
