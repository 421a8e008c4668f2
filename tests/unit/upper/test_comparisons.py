"""The thread that compares tables with the full data: one at a time, each request once, failed ones retried."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.waiting import eventually
from venus.adapters.dialects.contract import FillState, RegisteredTable
from venus.adapters.upper.comparisons import RETRY_S, FillComparisons
from venus.adapters.upper.fills import Fills
from venus.config import Settings
from venus.errors import Unavailable
from venus.model import Column, Kind, LogicalType, Sequence, TableSchema
from venus.rpc.conditions import COMPARED


def table(number: int, reason: str = "", *, cursor: bytes = b"", state: str = "ACTIVE") -> RegisteredTable:
    column = Column(number=1, name="id", type=LogicalType(kind=Kind.INT))
    schema = TableSchema(table_id=number, version=1, namespace="s", name=f"t{number}", columns=(column,), key=("id",))
    fill = FillState(
        table_id=number, sweep_from=Sequence(1), cursor=cursor, rows_done=3, rows_estimate=9, done=not reason
    )
    return RegisteredTable(schema=schema, state=state, reason=reason, fill=fill)


def request_for(number: int, at: str = "1") -> RegisteredTable:
    return table(number, f"{COMPARED} since {at}: requested")


class HeldComparisons:
    """Comparisons that end when the test lets them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: list[tuple[str, int]] = []
        self.may_end = threading.Event()
        self.error: Unavailable | None = None
        self.stop = threading.Event()
        self.made = FillComparisons(Settings(), self.stop, self._compare, monotonic=lambda: self.now)

    def _compare(
        self, _settings: Settings, table: RegisteredTable, sent_before: Sequence, is_stopping: Callable[[], bool]
    ) -> None:
        self.begun.append((table.schema.name, sent_before))
        while not self.may_end.wait(0.005) and not is_stopping():
            pass
        if self.error is not None:
            raise self.error

    def offer(self, *tables: RegisteredTable, below: int = 7) -> None:
        self.made.offer(tables, Sequence(below))

    def finish(self) -> None:
        self.may_end.set()
        eventually(lambda: not self.made.is_busy, "the comparison to end")
        self.may_end.clear()


@pytest.fixture
def make_comparisons() -> HeldComparisons:
    return HeldComparisons()


def test_one_table_is_compared_at_a_time_and_each_request_once(make_comparisons: HeldComparisons) -> None:
    both = request_for(2), request_for(3)
    make_comparisons.offer(*both)
    make_comparisons.offer(*both, below=9)
    eventually(lambda: make_comparisons.begun == [("t2", 7)], "the first one to begin")
    make_comparisons.finish()
    make_comparisons.offer(*both, below=11)  # the registry was not read again yet
    eventually(lambda: make_comparisons.begun == [("t2", 7), ("t3", 11)], "the second one to begin")
    make_comparisons.finish()
    make_comparisons.offer(*both)
    assert not make_comparisons.made.is_busy
    make_comparisons.offer(request_for(2, at="2"))
    eventually(lambda: make_comparisons.begun[2:] == [("t2", 7)], "the new request to begin")
    make_comparisons.finish()


def test_a_comparison_that_fails_is_retried_after_a_pause(make_comparisons: HeldComparisons) -> None:
    make_comparisons.error = Unavailable("the broker is away")
    make_comparisons.offer(request_for(2))
    make_comparisons.finish()
    make_comparisons.offer(request_for(2))
    assert not make_comparisons.made.is_busy
    make_comparisons.now += RETRY_S
    make_comparisons.error = None
    make_comparisons.offer(request_for(2), below=8)
    eventually(lambda: make_comparisons.begun == [("t2", 7), ("t2", 8)], "it to begin again")
    make_comparisons.finish()


@pytest.mark.parametrize("how", ["stop", "close"])
def test_a_stop_ends_a_comparison(make_comparisons: HeldComparisons, how: str) -> None:
    make_comparisons.offer(request_for(2))
    make_comparisons.stop.set() if how == "stop" else make_comparisons.made.close()
    eventually(lambda: not make_comparisons.made.is_busy, "the comparison to end")


def test_cuts_leave_compared_tables_out_and_status_shows_their_progress() -> None:
    fills = Fills()
    fills.read([request_for(2), table(3, "another reason"), table(4)])
    assert [t.schema.table_id for t in fills.compared] == [2]
    assert [f.table_id for f in fills.next_states(9)] == [3]
    assert [(f.table_id, f.rows, f.rows_expected) for f in fills.running] == [(2, 3, 9), (3, 3, 9)]
    assert not fills.is_complete
    fills.read([request_for(2)])
    assert fills.is_finished, "the loop of cuts waits as if nothing were filled"


@pytest.mark.parametrize(
    "known",
    [
        table(2, f"{COMPARED} since 1: requested", cursor=b"x"),
        table(2, f"{COMPARED} since 1: requested", state="PAUSED"),
        table(2, "halted; before that compared with the broker's full data"),
        table(2),
    ],
)
def test_every_other_table_is_filled_completely(known: RegisteredTable) -> None:
    assert not known.is_compared
