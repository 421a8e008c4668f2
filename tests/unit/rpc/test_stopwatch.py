"""No peer is isolated for time in which the observing process itself stood still."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import cast

import grpc
import pytest

from tests.unit.rpc.test_errors import Failure
from venus.errors import Unavailable
from venus.flow.breaker import Stalls
from venus.rpc import broker_selection, connection, stopwatch
from venus.rpc.broker_selection import PROBE_EVERY_S, BrokerSelector
from venus.rpc.channel import CONNECT_TIMEOUT_S
from venus.rpc.connection import BrokerConnection
from venus.rpc.errors import from_rpc_error, to_status
from venus.rpc.stopwatch import BEAT_S, COARSE_BEAT_S, Pacemaker, Stopwatch


class ManualPacemaker(Pacemaker):
    """Pacemaker that beats on request, by a clock that the test advances."""

    def __init__(self, every_s: float = BEAT_S) -> None:
        super().__init__(lambda: self.now, every_s)
        self.now = 1000.0
        self._stalls = Stalls(every_s)
        self._stalls.record_beat(self.now)

    def keep_beating(self) -> None:
        pass

    def run_clock(self, seconds: float) -> None:
        """Advance the time, with every beat on time."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self._every_s)
            self._stalls.record_beat(self.now)

    def stop_clock(self, seconds: float) -> None:
        """Advance the time without a beat."""
        self.now += seconds


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> ManualPacemaker:
    found = ManualPacemaker()
    monkeypatch.setattr(stopwatch, "_pacemaker", found)
    return found


@pytest.fixture
def selector(observer: ManualPacemaker, monkeypatch: pytest.MonkeyPatch) -> BrokerSelector:
    found = BrokerSelector(("a:1", "b:1"), monotonic=lambda: observer.now)
    monkeypatch.setitem(broker_selection._known, "a:1,b:1", found)
    return found


class ConnectTimeout(Unavailable):
    """Error of a connection attempt that has timed out."""

    def __init__(self) -> None:
        super().__init__("cannot be reached")
        self.__cause__ = cast("Exception", _deadline())


def _deadline() -> grpc.RpcError:
    class DeadlineError(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.DEADLINE_EXCEEDED

    return DeadlineError()


class SlowChannel:
    """Channel whose opening takes `seconds`; `passes` advances the clock."""

    def __init__(self, passes: Callable[[float], None] = lambda _: None, seconds: float = 0.0) -> None:
        passes(seconds)

    def close(self) -> None:
        pass


def test_only_time_in_which_the_process_ran_counts(observer: ManualPacemaker) -> None:
    watch = Stopwatch()
    observer.run_clock(0.2)
    observer.stop_clock(3.0)
    assert watch.awake_s() == pytest.approx(0.2 + BEAT_S, abs=0.01)
    observer.run_clock(0.1)
    assert watch.awake_s() == pytest.approx(0.3 + BEAT_S, abs=0.06)
    assert watch.missed_s() == pytest.approx(3.0, abs=0.06)


def test_an_answer_that_came_while_this_process_stood_still_isolates_no_peer(
    observer: ManualPacemaker, selector: BrokerSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "open_channel", lambda *_, **__: SlowChannel(observer.stop_clock, 4.0))
    BrokerConnection("a:1,b:1").close()
    assert selector.isolated_brokers() == {}

    monkeypatch.setattr(connection, "open_channel", lambda *_, **__: SlowChannel(observer.run_clock, 4.0))
    BrokerConnection("a:1,b:1").close()
    assert "a:1" in selector.isolated_brokers(), "the same time, but it ran"


def test_silence_while_this_process_stood_still_isolates_no_peer_and_the_next_one_is_asked(
    observer: ManualPacemaker, selector: BrokerSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_slowly(address: str, **_: object) -> SlowChannel:
        if str(address) == "a:1":
            wait(2.5)
            raise ConnectTimeout
        return SlowChannel()

    monkeypatch.setattr(connection, "open_channel", open_slowly)
    wait = observer.stop_clock
    with_stall = BrokerConnection("a:1,b:1")
    assert (with_stall.address, selector.isolated_brokers()) == ("b:1", {})
    assert selector.in_order("") == ["b:1", "a:1"]

    selector.try_last("b:1")  # a:1 is the first again
    wait = observer.run_clock
    assert BrokerConnection("a:1,b:1").address == "b:1"
    assert set(selector.isolated_brokers()) == {"a:1"}


def test_a_probe_without_a_result_is_due_again(observer: ManualPacemaker, selector: BrokerSelector) -> None:
    selector.record_lost("a:1", "refused")
    observer.run_clock(PROBE_EVERY_S)
    assert selector.patience_s("a:1") is not None
    assert "a:1" in selector.isolated_brokers(), "the probe is out"
    selector.record_unknown("a:1")
    assert selector.isolated_brokers() == {}
    assert selector.patience_s("a:1") is not None


def test_a_broker_that_reports_it_cannot_serve_is_asked_last_and_not_isolated(
    selector: BrokerSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "open_channel", lambda *_, **__: SlowChannel())
    said = from_rpc_error(
        cast("grpc.RpcError", Failure(*to_status(Unavailable("main: 1 of 3 replicas are alive, 2 are needed"))))
    )
    made = BrokerConnection("a:1,b:1")
    made.record_error("main", said)
    assert (selector.isolated_brokers(), selector.in_order("main")) == ({}, ["b:1", "a:1"])

    gone = from_rpc_error(cast("grpc.RpcError", Failure(grpc.StatusCode.UNAVAILABLE, "Connection reset", ())))
    made.record_error("main", gone)
    assert set(selector.isolated_brokers()) == {"a:1"}, "it has not answered: it is away"


def test_a_set_whose_brokers_all_refuse_is_left() -> None:
    found = BrokerSelector(("a:1", "b:1"), ("c:1",), monotonic=lambda: 0.0)
    found.record_refusal("a:1")
    assert found.place == 0
    found.record_refusal("b:1")
    assert (found.place, found.isolated_brokers()) == (1, {})


def test_a_thread_beats_during_a_measurement_also_in_a_forked_process() -> None:
    maker = Pacemaker(every_s=0.01)
    watch = Stopwatch(maker)
    time.sleep(0.1)
    assert watch.missed_s() < 0.1
    assert any(thread.name == "venus-beat" for thread in threading.enumerate())
    child = os.fork()
    if not child:
        Stopwatch(maker)
        os._exit(0 if any(thread.name == "venus-beat" for thread in threading.enumerate()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_stall_is_known_to_a_second_in_coarse_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target is isolated from five seconds on, but not because its adapter was suspended for ten."""
    maker = ManualPacemaker(COARSE_BEAT_S)
    monkeypatch.setattr(stopwatch, "_coarse_pacemaker", maker)
    maker.run_clock(30.4)
    watch = Stopwatch.coarse()
    maker.stop_clock(10.0)
    assert watch.awake_s() <= COARSE_BEAT_S

    watch = Stopwatch.coarse()
    maker.run_clock(6.0)
    assert watch.awake_s() == pytest.approx(6.0, abs=COARSE_BEAT_S), "it ran, and the target took so long"


class MomentRecorder:
    """A clock that advances only during a sleep, and ends the sleeper after a minute."""

    def __init__(self) -> None:
        self.now = 0.0
        self.beats = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.beats += 1


@pytest.mark.parametrize(("every_s", "most"), [(COARSE_BEAT_S, 61), (BEAT_S, 202)])
def test_a_minute_of_measuring_wakes_the_process_as_rarely_as_possible(
    monkeypatch: pytest.MonkeyPatch, every_s: float, most: int
) -> None:
    moments = MomentRecorder()
    monkeypatch.setattr(stopwatch, "time", moments)
    kept = stopwatch._coarse_pacemaker if every_s == COARSE_BEAT_S else stopwatch._pacemaker
    maker = Pacemaker(moments.monotonic, kept._every_s, kept._linger_s)
    maker._run()  # like the thread of the first stopwatch, which ends after a long time without a measurement
    assert moments.beats <= most
    assert moments.now >= CONNECT_TIMEOUT_S, "no connection takes longer"
