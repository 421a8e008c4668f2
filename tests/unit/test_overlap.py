"""When a load begins during the first read of the source, and where it ends."""

from __future__ import annotations

import threading

import pytest

from venus.adapters.dialects.contract import FillState
from venus.adapters.targets.contract import LoadReport
from venus.cli.overlap import OverlappedLoad, decided_end, is_overlap_due
from venus.config import Settings
from venus.errors import DatabaseUnavailable, VenusError
from venus.model import Sequence
from venus.wire.broker_pb2 import BusinessStatus


def fill(rows: int, estimate: int = 0, *, done: bool = False) -> FillState:
    return FillState(table_id=1, sweep_from=Sequence(0), cursor=b"", rows_done=rows, rows_estimate=estimate, done=done)


@pytest.mark.parametrize(
    ("fills", "is_due"),
    [
        ([], False),
        ([fill(0, 5_000)], False),  # the broker has no such business yet
        ([fill(1, 5_000)], True),
        ([fill(1, 500), fill(1, 500)], False),
        ([fill(1, 600), fill(0, 600)], True),
        ([fill(4_500, 5_000)], True),
        ([fill(900, 1_000)], False),
        ([fill(999)], False),  # never analysed
        ([fill(1_000)], True),
        ([fill(100_000, 100_000, done=True), fill(10, 20)], False),
    ],
)
def test_a_load_overlaps_a_read_of_many_rows(fills: list[FillState], is_due: bool) -> None:
    assert is_overlap_due(fills, 1_000) is is_due


def test_the_end_is_known_after_the_last_batch_is_decided() -> None:
    business = BusinessStatus(last_batch=6, next_offset=60)
    assert decided_end(business, 7) is None
    assert decided_end(business, 6) == 60


class Overlap(OverlappedLoad):
    """A load whose processes end as a test says, and whose pauses take no time."""

    def __init__(self, *outcomes: LoadReport | VenusError | None, closes: bool = False) -> None:
        self.lines: list[str] = []
        self.pauses: list[float] = []
        self._outcomes, self._closes = list(outcomes), closes
        super().__init__(Settings(), "a", self.lines.append)
        self._wakes.wait = self._pause  # type: ignore[method-assign]

    def _pause(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return False

    def _run_process(self) -> LoadReport | VenusError | None:
        if self._closes:
            self._closed.set()
        return self._outcomes.pop(0)


def test_a_target_that_stays_away_is_reported_once_and_retried_ever_more_rarely() -> None:
    away, other = DatabaseUnavailable("no connection"), DatabaseUnavailable("it is starting up")
    overlap = Overlap(*[away] * 7, other, LoadReport(target="a", offset=1, rows={}))

    overlap._supervise()

    assert overlap.lines == [
        "target a: no connection; its load is tried again",
        "target a: it is starting up; its load is tried again",
    ]
    assert overlap.pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_process_that_ends_with_its_parent_does_not_count_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    overlap = Overlap(None, closes=True)

    overlap._supervise()

    assert not caplog.records
    assert not overlap.pauses


def test_a_load_whose_processes_are_lost_ends_and_names_the_log() -> None:
    overlap = Overlap(*[None] * 4)

    overlap._supervise()

    assert overlap._error is not None
    assert "traceback in the log" in overlap._error.hint
    assert "out-of-memory" in overlap._error.hint


def test_the_end_of_the_read_ends_a_pause() -> None:
    overlap, report = Overlap(DatabaseUnavailable("no connection")), LoadReport(target="a", offset=1, rows={})
    paused = threading.Event()
    wake = threading.Event()
    overlap._wakes = wake

    def on_pause(timeout: float | None = None) -> bool:
        paused.set()
        return threading.Event.wait(wake, 250)

    wake.wait = on_pause  # type: ignore[method-assign]
    overlap.start()
    assert paused.wait(60)
    overlap._outcomes.append(report)
    assert overlap.finish(1, lambda _: None) is report
    assert wake.is_set(), "else the pause lasts for minutes"
