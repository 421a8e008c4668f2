"""Work that continues behind: one piece at a time, and what it raises is raised where the next thing is wanted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from venus.adapters.targets.relational.session import BackgroundWork


@pytest.fixture
def behind() -> Iterator[BackgroundWork]:
    made = BackgroundWork("test")
    yield made
    made.close()


def failing() -> None:
    raise LookupError("refused")


def test_a_piece_runs_beside_the_caller_and_is_waited_for(behind: BackgroundWork) -> None:
    go, order = threading.Event(), list[str]()

    def work() -> None:
        go.wait(10)
        order.append("work")

    behind.start(work)
    order.append("caller")
    go.set()
    behind.wait()
    assert order == ["caller", "work"]


def test_the_next_piece_waits_for_the_one_before(behind: BackgroundWork) -> None:
    order = list[int]()
    for number in range(20):
        behind.start(lambda number=number: order.append(number))  # type: ignore[misc]
    behind.wait()
    assert order == list(range(20))


def test_what_a_piece_raises_is_raised_once_and_nothing_begins_behind_it(behind: BackgroundWork) -> None:
    begun = list[str]()
    behind.start(failing)
    with pytest.raises(LookupError, match="refused"):
        behind.start(lambda: begun.append("next"))
    behind.wait()
    assert not begun


def test_a_piece_may_use_what_waits_for_it(behind: BackgroundWork) -> None:
    passed = list[bool]()

    def work() -> None:
        behind.wait()
        passed.append(True)

    behind.start(work)
    behind.wait()
    assert passed == [True]


def test_what_is_dropped_raises_nothing(behind: BackgroundWork) -> None:
    behind.start(failing)
    behind.discard()
    behind.wait()
    behind.start(failing)
    behind.close()
