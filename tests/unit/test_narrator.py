"""What `venus sync` prints for people (changes at once, counters rarely), and for machines (everything)."""

from __future__ import annotations

import json

import pytest

from venus.adapters.upper.fills import FillProgress
from venus.adapters.upper.periodic import CaptureReport
from venus.cli.invocation import Invocation
from venus.cli.supervisor import EventWriter, format_event

CAPTURING = {"event": "report", "state": "capturing", "rows": 5, "last_error": "", "fills": ()}


def test_counters_alone_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = EventWriter(Invocation())

    for rows in range(5):
        narrator.on_event("capture", CAPTURING | {"rows": rows})
    narrator.on_event("main", CAPTURING)
    narrator.on_event("capture", CAPTURING | {"state": "connecting", "last_error": "gone"})
    narrator.on_event("capture", CAPTURING | {"state": "waiting to reconnect", "last_error": "gone"})

    assert capsys.readouterr().out.splitlines() == [
        "capture: capturing, rows 0",
        "main: capturing, rows 5",
        "capture: connecting, rows 5, last_error gone",
    ]


def test_machines_get_every_report_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = EventWriter(Invocation(json=True))

    for rows in range(3):
        narrator.on_event("capture", CAPTURING | {"rows": rows})

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["loop"], line["rows"]) for line in lines] == [("capture", 0), ("capture", 1), ("capture", 2)]


def test_ended_fills_are_reported_once_and_continuing_ones_always(
    capsys: pytest.CaptureFixture[str],
) -> None:
    narrator = EventWriter(Invocation(json=True))
    filling = (FillProgress(table="main.t", rows_done=1, rows_estimate=2, done=False),)
    ended = (FillProgress(table="main.t", rows_done=2, rows_estimate=2, done=True),)

    for fills in (filling, filling, ended, ended, ended, filling, ended):
        narrator.on_report("capture", CaptureReport(state="capturing", fills=fills))

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[f["rows_done"] for f in line["fills"]] for line in lines] == [[1], [1], [2], [], [], [1], [2]]


@pytest.mark.parametrize(
    ("circuit", "said"),
    [
        ("closed", "offset 7"),
        ("open", "offset 7, the target is paused for a while"),
        ("half-open", "offset 7, the target is tried"),
    ],
)
def test_a_circuit_breaker_is_described_in_words_unless_it_is_closed(circuit: str, said: str) -> None:
    assert format_event({"event": "report", "offset": 7, "circuit": circuit}) == said


def test_held_tables_and_fills_are_printed() -> None:
    found = {
        "event": "report",
        "offset": 7,
        "held": [{"source_name": "main.orders", "state": "HALTED"}],
        "fills": [{"table": "main.t", "rows_done": 1000, "rows_estimate": 5000, "done": False}],
    }

    assert format_event(found) == "offset 7, main.orders halted, main.t 1,000 of about 5,000"


def test_a_past_error_is_not_repeated() -> None:
    assert "gone" not in format_event(CAPTURING | {"last_error": "gone"})


def test_the_reason_of_an_ended_loop_is_printed() -> None:
    assert format_event({"event": "restarts", "in_s": 2.0, "code": -9, "error": ""}) == (
        "starts again in 2 s: it ended with code -9"
    )
    assert format_event({"event": "stays down", "code": 12, "error": "taken over"}) == "stays down: taken over"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("venus.cli.supervisor.time.monotonic", lambda: now[0])
    return now


def test_a_problem_is_printed_at_its_start_and_once_a_minute(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    """A loop waits, and another one is restarted repeatedly, for two minutes and a half."""
    narrator = EventWriter(Invocation())
    for second in range(0, 150, 5):
        clock[0] = 1000.0 + second
        narrator.on_event("main", {"event": "waiting", "error": f"down for {second} s", "retry_in_s": 5.0})
        for what in ("started", "running"):
            narrator.on_event("lake", {"event": what, "pid": second})
        narrator.on_event("lake", {"event": "restarts", "in_s": 5.0, "code": 12, "error": "broken", "hint": "mend it"})
        narrator.on_event("pg", {"event": "report", "circuit": ("closed", "open")[second > 5], "error": "no server"})
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("main")] == [
        "main: waiting: down for 0 s",
        "main: waiting: down for 60 s",
        "main: waiting: down for 120 s",
    ]
    assert [line for line in said if line.startswith("lake")] == [
        "lake: started, pid 0",
        "lake: running, pid 0",
        *["lake: starts again in 5 s: broken; mend it"] * 3,
    ]
    assert len([line for line in said if line.startswith("pg")]) == 3


def test_the_end_of_a_problem_is_printed_at_once(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    narrator = EventWriter(Invocation())
    narrator.on_event("main", {"event": "waiting", "error": "down", "retry_in_s": 5.0})
    narrator.on_event("main", {"event": "report", "offset": 7, "error": ""})
    narrator.on_event("main", {"event": "waiting", "error": "down", "retry_in_s": 5.0})
    assert capsys.readouterr().out.splitlines() == ["main: waiting: down", "main: offset 7", "main: waiting: down"]
