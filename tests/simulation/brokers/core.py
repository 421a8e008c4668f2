"""The product's core without threads and files: the loop runs the work of its commit thread and materialiser."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.brokers.memory_store import MemoryCheckpoints, MemoryDisk, MemoryStore
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.replicas.replicated_logs import ReplicatedLogs
from venus.broker.store.files import FreeSpace
from venus.config import BrokerSettings

if TYPE_CHECKING:
    from tests.simulation.brokers.host import BrokerHost

#: Small, so that histories of seconds fill a buffer, trim a queue and expire leases.
SETTINGS = BrokerSettings(
    free_bytes_min=1 << 20, buffer_bytes_max=8 << 10, retain_bytes=1500, review_after_s=0.6, snapshot_lease_s=5.0
)
#: Longer than any wait for an answer that arrives.
PATIENCE_S = 3.0


class ProcessKilled(BaseException):
    """The process of a waiting caller has been killed."""


class PatientFuture(Future[Any]):
    """A future of the core; the simulation continues while a caller waits for the result."""

    host: BrokerHost

    def result(self, timeout: float | None = None) -> Any:
        """Let the simulation continue until the result is there, and return it."""
        if not self.done():
            self.host.wait(self.done, PATIENCE_S)
        return super().result(0)


class SimulatedCore(Core):
    """A core on a disk in memory. `_write` and `materialise` each do one round of work of one of its two threads."""

    def __init__(
        self, host: BrokerHost, disk: MemoryDisk, shared: ReplicatedLogs | None, settings: BrokerSettings = SETTINGS
    ) -> None:
        super().__init__(
            Path("/simulated"),
            settings,
            clock_us=host.clock_us,
            monotonic=lambda: host.loop.now,
            on_fatal=host.fails,
            shared=shared,
            free_bytes=lambda _: host.free_bytes,
        )
        self._host, self._disk = host, disk
        self._busy = False

    def start(self) -> None:
        """Open the store and replay the log. Raises Corruption."""
        self._open_store()
        self._make_full_data()
        self._make_pipeline()
        self._make_interfaces()
        self._recover()
        self.materialiser._pending.update(self.catalogue.list_stored())
        self.commits.writer.lagging.update(business for business in self.catalogue.list_stored() if business.pending)

    def _open_store(self) -> None:
        settings = self._settings
        self.store = self.memory = MemoryStore(self._disk)
        self.space = FreeSpace(self.data_dir, settings.free_bytes_min, self._free_bytes)
        self.buffer = BodyBuffer(settings.buffer_bytes_max)
        self.catalogue = BusinessCatalogue(
            lambda number, name: Business(number, name, ReviewSchedule(first_s=settings.review_after_s))
        )

    def _make_full_data(self) -> None:
        super()._make_full_data()
        self.snapshots._holding.checkpoints = MemoryCheckpoints(self.memory)  # type: ignore[assignment]
        self.snapshots._checkpoint = self._make_patient(self.materialiser.checkpoint)
        self.materialiser.forget = self._make_patient(self.materialiser.forget)  # type: ignore[method-assign]

    def _make_pipeline(self) -> None:
        super()._make_pipeline()
        submit = self._make_patient(self.commits.submit)

        def submit_and_write(*arguments: Any, **named: Any) -> Any:
            future = submit(*arguments, **named)
            self._schedule_write()
            return future

        self.commits.submit = submit_and_write  # type: ignore[method-assign]

    def _make_patient(self, call: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        """Return the call with futures that let the simulation continue while a caller waits."""

        def call_patiently(*arguments: Any, **named: Any) -> Future[Any]:
            future = call(*arguments, **named)
            future.__class__ = PatientFuture
            assert isinstance(future, PatientFuture)
            future.host = self._host
            return future

        return call_patiently

    # -- the threads -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Schedule the commit thread's upkeep and the materialiser's next round."""
        self._schedule_write()
        self._host.soon(0.001, self.materialise)

    def _schedule_write(self) -> None:
        """Schedule a round of the commit thread, unless one is in progress."""
        if not self._busy:
            self._busy = True
            self._host.soon(0.003 * self._host.loop.random.random(), self._write)

    def _write(self) -> None:
        """Do one round of the commit thread: write a group of commands; its sync ends later."""
        commits = self.commits
        taken = (commits._take() or []) if commits._waiting else []
        commands = [command for command in taken if command.future.set_running_or_notify_cancel()]
        try:
            written = commits.writer.write(commits._refuse_late(commands))
        except Exception as error:
            commits.fail(error)
            return
        delay = 0.003 * self._host.loop.random.random() + self._host.disk.lag_s
        self._host.soon(delay, self._finish, written)

    def _finish(self, written: Any) -> None:
        """End a round of the commit thread: publish the written group."""
        try:
            if written is not None:
                self.commits.writer.finish(written)
        except Exception as error:
            self.commits.fail(error)
            return
        self._busy = False
        if self.commits._waiting:
            self._schedule_write()
        self._host.soon(0.02 * self._host.loop.random.random(), self.materialise)

    def materialise(self) -> None:
        """Do one round of the materialiser, if it has work."""
        materialiser = self.materialiser
        if not materialiser._pending and not materialiser._leaving and not materialiser._wanted:
            return
        try:
            materialiser._drop_leaving()
            if self.space.has_room_for_data():
                materialiser._run_round()
        except Exception as error:
            self.commits.fail(error)
