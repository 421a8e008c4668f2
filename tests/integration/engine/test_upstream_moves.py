"""A replicator moves to another set: it acknowledges the received data, and the next session continues there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import mirrored
from tests.support.engines.engines import BUSINESS, WAIT_S, Producer, full_data, make, queue, rows
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.mirrors import session_requests
from venus.broker.mirrors.replication_plan import ReplicationPlan
from venus.broker.mirrors.upstream_selection import UpstreamEndpoint
from venus.errors import OffsetDiverged, Unavailable, VenusError
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration
BATCHES = 40


def upstream_endpoint(name: str) -> UpstreamEndpoint:
    return UpstreamEndpoint(reach=f"{name}:1", set=name, network="n", group="mirror/test")


class ScriptedChoice:
    """Choice of the upstream set that the test controls; it counts the recorded successes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tried = False
        self.confirmed = 0
        self.reasons: list[Exception] = []

    def choose_upstream(self) -> UpstreamEndpoint:
        return upstream_endpoint(self.name)

    def is_current(self, at: UpstreamEndpoint) -> bool:
        return at.set == self.name

    def record_success(self) -> None:
        self.confirmed += 1
        self.tried = False

    def record_end(self, at: UpstreamEndpoint, error: Exception) -> bool:
        assert at.set == self.name
        self.reasons.append(error)
        return self.tried


class UpstreamConnection:
    """Connection to the sets above. A frame has two batches; after `moves_after` frames another set is chosen."""

    def __init__(
        self,
        sets: dict[str, Core],
        choice: ScriptedChoice,
        moves_after: int | None = None,
        to: str = "",
        settling: threading.Event | None = None,
    ) -> None:
        self._sets, self._choice, self._moves_after, self._to = sets, choice, moves_after, to
        self.opened: list[tuple[str, int]] = []
        self.asked: list[session_requests.Call] = []
        self.acknowledged: list[tuple[str, int]] = []
        self.sent = 0  # end offset of the received increments
        self._offset = self._frames = 0
        self._at = ""
        self._has_all = False
        self._settling = settling or threading.Event()

    @property
    def _set(self) -> Core:
        return self._sets[self._at]

    def answer(self, call: session_requests.Call) -> Any:
        self.asked.append(call)
        match call:
            case session_requests.OpenStream():
                self._at = self._choice.name
                opened = self._set.subscriptions.check_position(BUSINESS, call.offset, call.epoch)
                self._offset = call.offset
                self.opened.append((self._at, call.offset))
                return self._at, opened
            case session_requests.WaitForIncrements():
                return self._next()
            case session_requests.Acknowledge():
                self.acknowledged.append((self._at, call.offset))
                return None
            case session_requests.WaitForCommit():
                self._settling.set()
                return call.future.result(WAIT_S)
        raise Unavailable("nothing else is answered here")

    def _next(self) -> tuple[list[broker_pb2.Increment], int]:
        if self._frames == self._moves_after:
            self._choice.name = self._to
        self._frames += 1
        found = self._set.subscriptions.read(BUSINESS, self._offset, 1 << 20)
        increments = found.increments[:2]
        if not increments and self._moves_after is None:
            if self._has_all:
                raise Unavailable("the test has seen enough")
            self._has_all = True
        if increments:
            self._offset = self.sent = increments[-1].base_offset + increments[-1].count
        return increments, self._offset


@pytest.fixture
def sets(tmp_path: Path) -> Iterator[dict[str, Core]]:
    """Make north and south with the home's history and a lower start; other has another history of the same length."""
    made = {name: make(tmp_path / name) for name in ("hq", "north", "south", "lower", "other")}
    home, other = Producer(made["hq"]), Producer(made["other"])
    for producer in (home, other):
        producer.commit(rows(0, 10))
    for name in ("north", "south", "lower"):
        mirrored.fill(made["hq"], made[name])
    for n in range(BATCHES):
        home.commit(rows(10 * n, 10, b"later"))
        other.commit(rows(10 * n, 10, b"otherwise"))
        if not n:
            mirrored.follow(made["hq"], made["lower"])
    for name in ("north", "south"):
        mirrored.follow(made["hq"], made[name])
    eventually(lambda: all(mirrored.business_of(made[name]).is_filled for name in ("north", "south", "lower")))
    yield made
    for engine in made.values():
        engine.stop()


def drive(pulling: ReplicationPlan, line: UpstreamConnection) -> VenusError:
    """Execute what the session requests until it ends; return the error that ended it."""
    session = pulling.session()
    try:
        call = next(session)
        while True:
            try:
                answer = line.answer(call)
            except VenusError as error:
                call = session.throw(error)
            else:
                call = session.send(answer)
    except VenusError as ended:
        return ended


def plan_at(lower: Core, choice: ScriptedChoice) -> ReplicationPlan:
    times = count()
    return ReplicationPlan(lower, BUSINESS, (), choice, lambda _: None, lambda: float(next(times)))


def check_equal(lower: Core, home: Core) -> None:
    start = mirrored.business_of(lower).log_start
    assert queue(lower, start) == queue(home, start)
    assert mirrored.business_of(lower).log_start == 10, "no full data again"
    eventually(lambda: full_data(lower) == full_data(home))


def test_received_data_is_durable_and_acknowledged_before_another_set_is_pulled_from(sets: dict[str, Core]) -> None:
    lower, choice, settling = sets["lower"], ScriptedChoice("north"), threading.Event()
    pulling = plan_at(lower, choice)
    held = lower.commits.submit(lambda _group: settling.wait(WAIT_S))  # data becomes durable when a thread waits for it
    line = UpstreamConnection(sets, choice, moves_after=10, to="south", settling=settling)

    error = drive(pulling, line)

    assert held.result(WAIT_S)
    assert "set north is no longer in use" in str(error)
    assert line.sent > 150
    assert mirrored.business_of(lower).committed.next_offset == line.sent
    assert line.acknowledged[-1] == ("north", line.sent)
    assert {name for name, _ in line.acknowledged} == {"north"}
    assert not pulling.on_end(error)
    assert (pulling.wait_s, choice.reasons) == (0.0, []), "nothing is wrong, and nothing waits"

    begins_at = line.sent - 10
    line = UpstreamConnection(sets, choice)
    pulling.on_end(drive(pulling, line))

    newest = mirrored.business_of(lower)
    assert line.opened == [("south", begins_at)], "at the newest batch that is here"
    assert not any(isinstance(call, session_requests.OpenSnapshot) for call in line.asked)
    assert newest.counters["duplicate_batches"] == 2, "the newest batch, once for each session"
    assert choice.confirmed
    check_equal(lower, sets["hq"])


@pytest.mark.parametrize("tried", [True, False])
def test_probing_a_set_with_another_history_does_not_cost_a_new_fill(sets: dict[str, Core], tried: bool) -> None:
    lower, choice = sets["lower"], ScriptedChoice("other")
    pulling, choice.tried = plan_at(lower, choice), tried

    error = drive(pulling, UpstreamConnection(sets, choice))

    assert isinstance(error, OffsetDiverged)
    assert choice.confirmed == 0
    pulling.on_end(error)
    assert [type(reason) for reason in choice.reasons] == [OffsetDiverged]
    choice.name = "north"
    line = UpstreamConnection(sets, choice)
    pulling.on_end(drive(pulling, line))
    if tried:
        assert line.opened == [("north", 10)]
        check_equal(lower, sets["hq"])
    else:
        assert isinstance(line.asked[0], session_requests.OpenSnapshot), "who has no other choice takes what there is"
