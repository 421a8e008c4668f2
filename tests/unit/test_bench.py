"""What a figure calls met, and what its writer does when a leader is lost."""

from __future__ import annotations

import pytest

from bench import venus_cluster
from bench.overload import details_first
from bench.venus_cluster import Writer
from venus.errors import NotLeader
from venus.wire import broker_pb2


def test_a_load_that_degrades_nothing_is_no_overload() -> None:
    assert not details_first([])
    assert not details_first([()])
    assert details_first([(), (4,), (4, 3)])
    assert not details_first([(4,), (3,)])


class Log:
    """What brokers have: rows of each batch that is on disk, and how many of them are committed."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.committed = 0


class Failing:
    """A producer whose broker stops leading in the middle of each stream but the third."""

    streams = 0
    log = Log()

    def __init__(self, *_: object, **__: object) -> None:
        Failing.streams += 1
        self._left = 3 if Failing.streams < 3 else 1000

    def connect(self, *_: object, **__: object) -> broker_pb2.InitAck:
        rows = self.log.rows
        return broker_pb2.InitAck(
            last_batch=self.log.committed,
            last_sequence=sum(rows[: self.log.committed]),
            undecided=[
                broker_pb2.HalfRef(batch_no=n + 1, first_sequence=sum(rows[:n]) + 1, count=rows[n], digest=1)
                for n in range(self.log.committed, len(rows))
            ],
        )

    def send_half(self, half: broker_pb2.Half, **_: object) -> None:
        self._left -= 1
        if not self._left:
            raise NotLeader("it leads no more")
        assert half.batch_no == len(self.log.rows) + 1, "neither a gap nor one twice"
        self.log.rows.append(10)

    @property
    def persisted_through(self) -> int:
        return len(self.log.rows) - 1

    def decide(self, batch_no: int, *_: object) -> None:
        self.log.committed = batch_no

    def wait_persisted(self, *_: object) -> None: ...
    def wait_decided(self, *_: object) -> None: ...
    def close(self) -> None: ...


def test_a_fill_goes_on_at_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venus_cluster, "Producer", Failing)
    writer = Writer("a:1,b:1")
    writer.stream(20, 10)

    assert Failing.streams == 3
    assert (writer.committed, Failing.log.committed, Failing.log.rows) == (20, 20, [10] * 20)
