"""A capture that is fenced by a switch, or starts during one (`venus cutover --fall-back`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from venus.cli import sync_direction
from venus.cli.sync_direction import DirectionGuard
from venus.errors import Fenced, Held, VenusError


class SwitchState:
    """The records of two databases, as a guard reads them while no switch is sealed."""

    def __init__(self, *, is_switching: bool) -> None:
        self.is_switching = is_switching


@pytest.fixture
def run_capture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a capture that fails once while the records have this state; return how often it has started."""
    monkeypatch.setattr(sync_direction, "FENCED_S", 0.0)

    def run(error: VenusError, state: SwitchState | None) -> int:
        guard: Any = object.__new__(DirectionGuard)
        monkeypatch.setattr(DirectionGuard, "_read", lambda _: state)
        monkeypatch.setattr(DirectionGuard, "_is_sealed", lambda _: False)
        begun: list[int] = []

        def capture() -> None:
            begun.append(1)
            if len(begun) == 1:
                raise error

        guard.run_capture(capture, threading.Event())
        return len(begun)

    return run


def test_a_capture_that_a_switch_fences_restarts_until_the_direction_changes(run_capture: Any) -> None:
    assert run_capture(Fenced("taken over"), SwitchState(is_switching=False)) == 2
    with pytest.raises(Fenced):
        run_capture(Fenced("taken over"), None)


def test_a_capture_that_starts_during_a_switch_waits_for_its_end(run_capture: Any) -> None:
    assert run_capture(Held("held by the command"), SwitchState(is_switching=True)) == 2
    for state in (SwitchState(is_switching=False), None):
        with pytest.raises(Held):
            run_capture(Held("held by another instance"), state)
