"""The parts of a comparison in place of a fill: its waits, its writes to the log, and its end."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any, cast

import pytest

from venus.adapters.dialects.contract import FillState, RegisteredTable, Source
from venus.adapters.dialects.verify_contract import Key, SourceReader, Subject
from venus.adapters.verify import differences
from venus.adapters.verify.differences import ComparedFill, ComparisonEnded
from venus.adapters.verify.findings import DifferenceKind, RowDifference
from venus.adapters.verify.slice_tasks import ComparisonEnds, Positions, SuspectRow
from venus.adapters.verify.suspect_resolution import SettlingResult
from venus.config import Settings
from venus.errors import OffsetTrimmed, SourceError
from venus.model import Column, Kind, LogicalType, Sequence, TableSchema
from venus.wire import broker_pb2

COLUMN = Column(number=1, name="id", type=LogicalType(kind=Kind.INT))
SCHEMA = TableSchema(table_id=2, version=1, namespace="s", name="t", columns=(COLUMN,), key=("id",))
FILL = FillState(table_id=2, sweep_from=Sequence(1), cursor=b"", rows_done=0, rows_estimate=9, done=False)
TABLE = RegisteredTable(schema=SCHEMA, state="ACTIVE", reason="compared with it since 1", fill=FILL)
ENDS, SUBJECT = cast(ComparisonEnds, None), Subject(schema=SCHEMA)


class Registry:
    """A registry in which another request may replace this one."""

    def __init__(self) -> None:
        self.is_current = True

    @property
    def registry(self) -> Registry:
        return self

    def advance_comparison(self, *_: object, **__: object) -> bool:
        return self.is_current


class Log:
    """A log whose first half is captured at every second look."""

    def __init__(self) -> None:
        self.waiting: list[Key] = []
        self.most = self.looks = 0

    def touch(self, _: Subject, keys: Seq[Key]) -> None:
        self.waiting += keys
        self.most = max(self.most, len(self.waiting))

    def begin(self, _: Subject) -> None: ...

    def end(self) -> None: ...

    def find_waiting_keys(self, _: Subject, keys: Seq[Key]) -> set[Key]:
        self.looks += 1
        if self.looks % 2 == 0:
            self.waiting = self.waiting[len(self.waiting) // 2 + 1 :]
        return set(keys) & set(self.waiting)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> ComparedFill:
    monkeypatch.setattr(differences, "LOOK_S", 0.0)
    return ComparedFill(settings=Settings(), table=TABLE, sent_before=Sequence(11), is_stopping=lambda: False)


def ship(fill: ComparedFill, registry: Registry, log: Log, count: int) -> None:
    keys = [(str(n),) for n in range(count)]
    suspects = [SuspectRow(key=key, rows={}, positions=Positions()) for key in keys]
    fill._ship(cast(Source, registry), cast(SourceReader, log), ENDS, SUBJECT, suspects)


def difference(key: Key, kind: DifferenceKind = DifferenceKind.EXTRA) -> RowDifference:
    return cast(RowDifference, type("Found", (), {"kind": kind, "forms": key})())


def settle_as(monkeypatch: pytest.MonkeyPatch, settled: SettlingResult | Exception) -> None:
    class Resolver:
        def __init__(self, *_: object) -> None: ...

        def settle(self, _: object, wait_s: float) -> SettlingResult:
            assert wait_s == 0
            if isinstance(settled, Exception):
                raise settled
            return settled

    monkeypatch.setattr(differences, "SuspectResolver", Resolver)


def test_the_log_contains_few_of_the_differing_keys_at_a_time(
    fill: ComparedFill, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [(str(n),) for n in range(1_000)]
    settle_as(monkeypatch, SettlingResult(differences={key: difference(key) for key in keys}))
    monkeypatch.setattr(differences, "KEYS_AT_ONCE", 100)
    log = Log()
    ship(fill, registry, log, 1_000)
    assert fill.shipped == 1_000
    assert log.most <= 200, "a limit of the log would stop capture of the table"


def test_undecided_rows_are_shipped_and_changes_in_flight_are_not(
    fill: ComparedFill, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_as(monkeypatch, SettlingResult(differences={("1",): difference(("1",))}, undecided={("2",): "waits"}))
    log = Log()
    ship(fill, registry, log, 3)
    assert log.waiting == [("1",), ("2",)]


def test_without_the_history_every_suspect_is_shipped(
    fill: ComparedFill, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_as(monkeypatch, OffsetTrimmed("gone"))
    log = Log()
    ship(fill, registry, log, 3)
    assert log.waiting == [("0",), ("1",), ("2",)]


def test_a_repeated_key_is_not_shipped_again(
    fill: ComparedFill, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_as(monkeypatch, SettlingResult(differences={("1",): difference(("1",), DifferenceKind.REPEATED)}))
    with pytest.raises(SourceError, match="same key"):
        ship(fill, registry, Log(), 1)


@pytest.mark.parametrize("what", ["stop", "request"])
def test_the_wait_for_the_log_ends_with_a_stop_and_with_another_request(
    fill: ComparedFill, registry: Registry, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    settle_as(monkeypatch, SettlingResult(differences={("1",): difference(("1",))}))
    monkeypatch.setattr(differences, "KEYS_AT_ONCE", 1)
    log = Log()
    monkeypatch.setattr(log, "find_waiting_keys", lambda _, keys: set(keys))
    if what == "stop":
        fill.is_stopping = lambda: True
    else:
        registry.is_current = False
    with pytest.raises(ComparisonEnded):
        ship(fill, registry, log, 1)


def test_the_full_data_is_pinned_once_it_has_everything_captured_before(
    fill: ComparedFill, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = iter([3, 9, 10])

    @contextmanager
    def open_snapshot(*_: Any) -> Iterator[broker_pb2.Snapshot]:
        yield broker_pb2.Snapshot(sequence=next(sequences))

    monkeypatch.setattr(differences, "open_snapshot", open_snapshot)
    monkeypatch.setattr(differences, "broker_address", lambda _: "nowhere")
    with fill._open_full_data(cast(Source, registry)) as snapshot:
        assert snapshot.sequence == 10
