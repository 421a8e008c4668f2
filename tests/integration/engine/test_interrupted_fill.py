"""A mirror whose fill was interrupted continues it at its position, also after a restart of either side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import mirrored
from tests.support.engines.engines import BUSINESS, WAIT_S, Producer, full_data, make, rows
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.mirror import Home
from venus.broker.mirrors import session_requests
from venus.broker.mirrors.replication_plan import ReplicationPlan
from venus.broker.mirrors.session_requests import MirrorState
from venus.broker.mirrors.upstream_selection import UpstreamEndpoint
from venus.codec.stored_rows import Chunk, decode_chunk
from venus.errors import IllegalTransition, SnapshotExpired, Unavailable
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration
ROWS = 2000
CHUNK_BYTES = 1 << 14


class SingleUpstream:
    """Choice with a single upstream set."""

    def __init__(self, found: Callable[[], UpstreamEndpoint]) -> None:
        self.choose_upstream = found

    def is_current(self, above: UpstreamEndpoint) -> bool:
        """Return True."""
        return True

    def record_success(self) -> None:
        """Do nothing."""

    def record_end(self, above: UpstreamEndpoint, error: Exception) -> bool:
        """Return False."""
        return False


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Core]:
    engine = make(tmp_path / "home")
    producer = Producer(engine)
    producer.commit(rows(0, ROWS, b"x" * 60))
    producer.commit(rows(0, ROWS, b"y" * 60), table_id=2)
    yield engine
    engine.stop()


class BreakingConnection:
    """Connection to a home that breaks at chunk number `lost_at`."""

    def __init__(self, home: Core, lost_at: int | None = None) -> None:
        self._home, self._lost_at = home, lost_at
        self.chunks = 0
        self.asked: list[session_requests.Call] = []
        self._reading: tuple[Any, Iterator[Chunk]] = (None, iter(()))

    def answer(self, call: session_requests.Call) -> Any:
        self.asked.append(call)
        full = self._home.full_data
        match call:
            case session_requests.OpenSnapshot():
                return full.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, splits=1, lease_s=60))
            case session_requests.RenewSnapshot():
                return full.renew(call.snapshot_id)
            case session_requests.CloseSnapshot():
                return full.close(call.snapshot_id)
            case session_requests.NextChunk():
                return self._next(call)
            case session_requests.WaitForCommit():
                return call.future.result(WAIT_S)
            case session_requests.OpenStream():
                raise Unavailable("it is whole")

    def _next(self, call: session_requests.NextChunk) -> Chunk:
        if self.chunks == self._lost_at:
            raise Unavailable("the line is lost")
        self.chunks += 1
        if self._reading[0] is not call.at:
            request = broker_pb2.ReadSplitRequest(
                snapshot_id=call.snapshot_id, split=call.split, after=call.at.after, chunk_bytes=CHUNK_BYTES
            )
            found = self._home.full_data.read_split(request)
            self._reading = call.at, (decode_chunk(sealed.body) for sealed in found)
        chunk = next(self._reading[1])
        call.at.take(chunk)
        return chunk


def drive(session: session_requests.Calls[None], line: BreakingConnection) -> None:
    """Execute what the session requests until it ends."""
    call = next(session)
    while True:
        try:
            answer = line.answer(call)
        except (Unavailable, SnapshotExpired) as error:
            call = session.throw(error)
        else:
            call = session.send(answer)


def pull(mirror: Core, line: BreakingConnection) -> ReplicationPlan:
    """Run one session until the connection breaks, or all rows have arrived."""
    above = UpstreamEndpoint(reach="home:1", set="home", network="n", group="mirror/test")
    times = count()
    pulling = ReplicationPlan(
        mirror, BUSINESS, (), SingleUpstream(lambda: above), lambda _: None, lambda: float(next(times))
    )
    with pytest.raises(Unavailable) as ended:
        drive(pulling.session(), line)
    pulling.on_end(ended.value)
    return pulling


def check_complete(home: Core, mirror: Core) -> None:
    eventually(lambda: mirrored.business_of(mirror).is_filled)
    assert full_data(mirror) == full_data(home)


@pytest.mark.parametrize("lost_at", [0, 1, 7, 15])
def test_a_fill_continues_after_the_last_received_chunk(tmp_path: Path, home: Core, lost_at: int) -> None:
    wanted = BreakingConnection(home)
    once = make(tmp_path / "once")
    pull(once, wanted)
    check_complete(home, once)
    once.stop()
    assert wanted.chunks > 15

    mirror = make(tmp_path / "mirror")
    assert pull(mirror, BreakingConnection(home, lost_at)).progress.status.state is MirrorState.WAITING
    mirror.stop()
    mirror = make(tmp_path / "mirror")
    line = BreakingConnection(home)
    pulling = pull(mirror, line)

    assert isinstance(line.asked[0], session_requests.RenewSnapshot)
    assert line.chunks == wanted.chunks - lost_at
    assert (pulling.progress.status.fills, pulling.progress.status.rows) == (0, 2 * ROWS)
    check_complete(home, mirror)
    mirror.stop()


def test_a_fill_starts_over_when_its_snapshot_is_gone(tmp_path: Path, home: Core) -> None:
    mirror = make(tmp_path / "mirror")
    pull(mirror, BreakingConnection(home, 5))
    held = mirrored.business_of(mirror).committed.mirror
    assert held is not None
    home.full_data.close(held.snapshot)

    line = BreakingConnection(home)
    assert pull(mirror, line).progress.status.fills == 1
    assert isinstance(line.asked[1], session_requests.OpenSnapshot)
    check_complete(home, mirror)
    mirror.stop()


def test_a_fill_does_not_continue_at_a_home_that_was_replaced(tmp_path: Path, home: Core) -> None:
    mirror = make(tmp_path / "mirror")
    pull(mirror, BreakingConnection(home, 5))
    mirror.homes.note(BUSINESS, Home(set="second", term=1, addresses=("second:7400",))).result(WAIT_S)

    line = BreakingConnection(home)
    pulling = pull(mirror, line)
    assert "follows an older home, which was replaced (home term 0, here 1)" in pulling.progress.status.reason
    assert [type(call) for call in line.asked] == [session_requests.RenewSnapshot]

    home.homes.note(BUSINESS, Home(set="second", term=1, addresses=("second:7400",))).result(WAIT_S)
    line = BreakingConnection(home)  # a set that follows the new home continues its fill
    pull(mirror, line)
    assert line.chunks > 10
    check_complete(home, mirror)
    mirror.stop()


def test_a_chunk_that_comes_twice_is_refused(tmp_path: Path, home: Core) -> None:
    mirror = make(tmp_path / "mirror")
    pull(mirror, BreakingConnection(home, 5))
    business = mirrored.business_of(mirror)
    held = business.committed.mirror
    assert held is not None
    with pytest.raises(IllegalTransition, match="chunk 4 of the full data came, 5 is the next one"):
        mirror.mirrors.take_full_rows(business, held.begin, 4, b"").result(WAIT_S)
    mirror.stop()
