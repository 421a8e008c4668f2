"""A replica that disconnects while its copy is made or read leaves nothing behind at the leader."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engines import engines
from venus.broker.core import Core
from venus.broker.replicas.copies import BusinessCopy, CopyPiece, CopyPlace, CopyPool
from venus.broker.service.replica_service import ReplicaService
from venus.broker.store.rocks import Store
from venus.errors import StorageError
from venus.replication.records import LiveBroker, Member
from venus.rpc.event_loop import LoopBridge
from venus.wire import replica_pb2

ME, OTHER = Member(broker="a", store="1"), Member(broker="b", store="2")
LATER_S = 0.01


class _CopyStream:
    """The leader's end of a call that transfers a copy."""

    def __init__(self) -> None:
        self.frames: list[replica_pb2.CopyFrame] = []
        self.done = lambda: False

    async def write(self, frame: replica_pb2.CopyFrame) -> None:
        self.frames.append(frame)


class _Traffic:
    async def pace_full_data(self, business: str, nbytes: int) -> None:
        """Do not throttle anything."""


class _BlockingCall:
    """Blocks the thread that calls it until the test releases it."""

    def __init__(self) -> None:
        self.entered, self._go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._go.wait(engines.WAIT_S)

    def release(self) -> None:
        self._go.set()


def _service(engine: Core, copies: CopyPool, bridge: LoopBridge) -> ReplicaService:
    host: Any = SimpleNamespace(
        replicas={engines.BUSINESS: SimpleNamespace(leads=True)},
        brokers=SimpleNamespace(find=lambda _: LiveBroker(member=OTHER, address="b:1")),
    )
    lines: Any = SimpleNamespace(cluster="cluster", me=ME)
    traffic: Any = _Traffic()
    return ReplicaService(engine, bridge, traffic, host, lines, copies)


def _request() -> replica_pb2.CopyRequest:
    sender, receiver = (replica_pb2.ClusterMember(broker=m.broker, store=m.store) for m in (OTHER, ME))
    greeting = replica_pb2.Greeting(cluster="cluster", sender=sender, receiver=receiver)
    return replica_pb2.CopyRequest(greeting=greeting, business=engines.BUSINESS)


@contextmanager
def _leader(path: Path) -> Iterator[Core]:
    engine = engines.make(path)
    engines.Producer(engine).commit(engines.rows(0, 5))
    try:
        yield engine
    finally:
        engine.stop()


async def _wait_until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(engines.WAIT_S):
        while not true():
            await asyncio.sleep(LATER_S)


def _run(engine: Core, play: Callable[[ReplicaService, CopyPool], Awaitable[None]]) -> None:
    async def main() -> None:
        bridge, copies = LoopBridge(asyncio.get_running_loop()), CopyPool(engine, time.monotonic)
        try:
            await play(_service(engine, copies, bridge), copies)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, bridge.close)
            copies.close()

    asyncio.run(main())


async def _hang_up(call: asyncio.Task[None]) -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


def test_a_copy_whose_replica_disconnects_before_it_is_made_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise four such copies would block every later installation, because a copy in use is never removed."""
    made, make = _BlockingCall(), Store.checkpoint

    def read_slowly(store: Store, path: Path) -> None:
        made()
        make(store, path)

    monkeypatch.setattr(Store, "checkpoint", read_slowly)

    async def abandon_copy(service: ReplicaService, copies: CopyPool) -> None:
        line: Any = _CopyStream()
        call = asyncio.create_task(service.Copy(_request(), line))
        await _wait_until(made.entered.is_set)
        await _hang_up(call)
        made.release()
        await _wait_until(lambda: [users for _, users in copies.active_copies()] == [0])
        assert not line.frames

    with _leader(tmp_path) as engine:
        _run(engine, abandon_copy)


@pytest.mark.parametrize("hung_up_at", [1, 2])
def test_a_copy_is_released_only_after_its_last_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung_up_at: int
) -> None:
    """A released copy may be removed at once, while a thread still reads it."""
    reading, after, reads = _BlockingCall(), BusinessCopy.read_after, [0]

    def read_slowly(copy: BusinessCopy, place: CopyPlace) -> CopyPiece | None:
        reads[0] += 1
        if reads[0] == hung_up_at:
            reading()
        return after(copy, place)

    monkeypatch.setattr(BusinessCopy, "read_after", read_slowly)

    async def abandon_copy(service: ReplicaService, copies: CopyPool) -> None:
        line: Any = _CopyStream()
        call = asyncio.create_task(service.Copy(_request(), line))
        await _wait_until(reading.entered.is_set)
        call.cancel()
        for _ in range(10):  # turns of the loop, enough for all callbacks that run at once
            await asyncio.sleep(0)
        is_done = call.done()
        reading.release()
        assert not is_done
        await _wait_until(lambda: [users for _, users in copies.active_copies()] == [0])
        with suppress(asyncio.CancelledError):
            await call

    with _leader(tmp_path) as engine:
        _run(engine, abandon_copy)


@pytest.mark.parametrize("step", ["get", "checkpoint", "open"])
def test_a_copy_that_cannot_be_made_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its files stayed until the broker restarted; each retry made further ones, which kept old files from deletion."""
    broken = StorageError("the disk has a bad block")
    make, begin, get = Store.checkpoint, Store.__init__, Store.get

    def checkpoint(store: Store, path: Path) -> None:
        make(store, path)
        if step == "checkpoint":  # as if there were no room for the seal
            raise broken

    def open_store(store: Store, path: Path, **options: Any) -> None:
        if step == "open":
            raise broken
        begin(store, path, **options)

    def read(store: Store, family: str, key: bytes, **options: Any) -> bytes | None:
        if step == "get" and store.path.name.startswith("copy-"):
            raise broken
        return get(store, family, key, **options)

    with _leader(tmp_path) as engine:
        copies = CopyPool(engine, time.monotonic)
        with monkeypatch.context() as patched:
            patched.setattr(Store, "checkpoint", checkpoint)
            patched.setattr(Store, "__init__", open_store)
            patched.setattr(Store, "get", read)
            with pytest.raises(StorageError, match="bad block"):
                copies.acquire(engines.the_business(engine), "")
        assert copies.active_copies() == []
        assert list((tmp_path / "snapshots").iterdir()) == []
        copies.release(copies.acquire(engines.the_business(engine), ""))
        copies.close()
