"""Output of a service's loops while nothing reads it: counters are dropped, everything else is kept."""

from __future__ import annotations

import io
import json
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from venus.cli import sync
from venus.cli.invocation import Invocation
from venus.cli.supervisor import LINES_MAX, LoopProcess, Supervisor, format_event


def test_reports_do_not_accumulate_while_the_output_is_not_read() -> None:
    events: list[dict[str, Any]] = []
    loop = LoopProcess(name="shop", command=())
    supervisor = Supervisor([loop], threading.Event(), lambda _name, said: events.append(said))
    report = json.dumps({"loop": "apply", "event": "report", "rows": 1}) + "\n"
    halted = json.dumps({"loop": "apply", "event": "halted", "table": "t"}) + "\n"
    last = json.dumps({"error": {"kind": "Fenced", "message": "gone"}}) + "\n"

    supervisor._read(loop, io.StringIO(report * 5000 + halted + report * 5000 + last))

    assert supervisor._lines.qsize() <= LINES_MAX + 2
    supervisor._drain(0.2)
    assert [said["event"] for said in events if said["event"] != "report"] == ["halted"]
    assert loop.error == {"kind": "Fenced", "message": "gone"}


def test_a_stop_in_the_moment_of_a_switch_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each loop has ended with exit code 3, because changes flow in the other direction."""
    stop = threading.Event()
    document = json.dumps({"error": {"kind": "DirectionChanged", "message": "changes flow in the other direction"}})
    command = [sys.executable, "-c", f"import sys; print({document!r}, flush=True); sys.exit(3)"]

    def on_event(_name: str, found: dict[str, Any]) -> None:
        if found["event"] == "stays down":
            stop.set()

    monkeypatch.setattr(sync, "build_loop", lambda _run, name, *_: LoopProcess(name=name, command=command))
    monkeypatch.setattr(sync, "EventWriter", lambda _: SimpleNamespace(on_event=on_event))
    assert sync.run_children(Invocation(), ["main"], stop, "local", capture=True, take_over=False) == 0
    assert capsys.readouterr().err == ""


def test_a_process_id_is_not_a_counter() -> None:
    assert format_event({"event": "started", "pid": 22999}) == "started, pid 22999"
    assert format_event({"event": "report", "state": "capturing", "rows": 22999}) == "capturing, rows 22,999"
