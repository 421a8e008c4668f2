"""A replica that requests a copy again during its installation gets the copy that is being transferred, once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from venus.broker.replicas import installation
from venus.broker.replicas.installation import ReplicaInstaller
from venus.errors import Unavailable
from venus.replication.position import LogChanged, TermCache
from venus.replication.records import LiveBroker, Member

WAIT_S = 60.0
A, B = (LiveBroker(member=Member(broker=name, store="s"), address=f"{name}:1") for name in "ab")


class CopyingInstaller(ReplicaInstaller):
    """The product's installer, whose copies wait until the test lets them through."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, nothing, post=self._tell)
        self.under_way = threading.Semaphore(0)
        self.let_through = threading.Semaphore(0)
        self.copied: list[str] = []
        self.begun: list[str] = []
        self.fails: dict[str, Exception] = {}  # by business

    def _tell(self, call: Callable[[], None]) -> None:
        call()

    def _install(self, business: str, leader: LiveBroker) -> LogChanged:
        if business in self.fails:
            raise self.fails[business]
        self.copied.append(leader.member.broker)
        self.under_way.release()
        assert self.let_through.acquire(timeout=WAIT_S)
        return LogChanged(start=1, end=1, durable_end=1, terms=TermCache(()))

    def _remove(self, business: str, mark: object) -> None:
        """Do nothing: there are no data to remove."""

    def ask(self, leader: LiveBroker, name: str) -> None:
        self.begin("shop", leader, lambda _: self.begun.append(name))

    def join(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_a_second_request_for_the_same_copy_gets_the_one_in_progress() -> None:
    installer = CopyingInstaller()
    installer.ask(A, "first")
    assert installer.under_way.acquire(timeout=WAIT_S)
    installer.ask(A, "second")
    installer.let_through.release(2)
    installer.join()

    assert installer.copied == ["a"]  # a second copy would replace the log that the replica already follows
    assert installer.begun == ["second"]


def test_a_request_for_another_leaders_copy_is_answered_alone() -> None:
    installer = CopyingInstaller()
    installer.ask(A, "first")
    assert installer.under_way.acquire(timeout=WAIT_S)
    installer.ask(B, "second")
    installer.let_through.release(2)
    installer.join()

    assert installer.copied == ["a", "b"]
    assert installer.begun == ["second"]


def test_a_broker_that_removes_a_business_gets_no_copy() -> None:
    installer = CopyingInstaller()
    installer.ask(A, "first")
    assert installer.under_way.acquire(timeout=WAIT_S)
    removed: list[bool] = []
    installer.remove("shop", lambda: removed.append(True))
    installer.let_through.release()
    installer.join()

    assert (installer.begun, removed) == ([], [True])


def test_a_copy_may_be_requested_again_after_it_is_installed() -> None:
    installer = CopyingInstaller()
    installer.let_through.release(2)
    for name in ("first", "second"):
        installer.ask(A, name)
        installer.join()

    assert installer.copied == ["a", "a"]
    assert installer.begun == ["first", "second"]


@pytest.mark.parametrize(
    "error", [Unavailable("its leader is away"), TimeoutError()], ids=["a leader away", "an unexpected error"]
)
def test_a_copy_that_fails_blocks_no_other_business(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """An unexpected error ended the thread: replicas stayed out of sync until the broker was restarted."""
    monkeypatch.setattr(installation, "RETRY_S", 0.01)
    installer = CopyingInstaller()
    installer.fails["stuck"] = error
    installer.begin("stuck", B, lambda _: installer.begun.append("stuck"))
    installer.ask(A, "shop")
    assert installer.under_way.acquire(timeout=WAIT_S)
    installer.fails.clear()
    installer.let_through.release(2)
    installer.join()

    assert installer.begun == ["shop", "stuck"]


def test_a_slow_disk_is_waited_for_until_the_broker_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the removal were given up half way, an old copy would leave the catalogue, but stay in the store."""
    monkeypatch.setattr(installation, "LOOK_S", 0.01)
    installer, slow, never = CopyingInstaller(), Future[int](), Future[int]()
    timer = threading.Timer(0.1, slow.set_result, (7,))
    timer.start()
    assert installer._wait(slow) == 7
    failed = Future[int]()
    failed.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        installer._wait(failed)
    installer.stop()
    with pytest.raises(Unavailable, match="the installation was cancelled"):
        installer._wait(never)
