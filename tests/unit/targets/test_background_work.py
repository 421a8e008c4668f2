"""Background work: one task at a time; the next call raises its error."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from venus.adapters.targets.relational.session import BackgroundWork


@pytest.fixture
def background_work() -> Iterator[BackgroundWork]:
    made = BackgroundWork("test")
    yield made
    made.close()


def fail() -> None:
    raise LookupError("refused")


def test_a_task_runs_beside_the_caller_and_is_waited_for(background_work: BackgroundWork) -> None:
    go, order = threading.Event(), list[str]()

    def work() -> None:
        go.wait(60)
        order.append("work")

    background_work.start(work)
    order.append("caller")
    go.set()
    background_work.wait()
    assert order == ["caller", "work"]


def test_the_next_task_waits_for_the_previous_one(background_work: BackgroundWork) -> None:
    order = list[int]()
    for number in range(20):
        background_work.start(lambda number=number: order.append(number))  # type: ignore[misc]
    background_work.wait()
    assert order == list(range(20))


def test_the_error_of_a_task_is_raised_once_and_no_task_begins_after_it(background_work: BackgroundWork) -> None:
    begun = list[str]()
    background_work.start(fail)
    with pytest.raises(LookupError, match="refused"):
        background_work.start(lambda: begun.append("next"))
    background_work.wait()
    assert not begun


def test_a_task_may_use_the_object_that_waits_for_it(background_work: BackgroundWork) -> None:
    passed = list[bool]()

    def work() -> None:
        background_work.wait()
        passed.append(True)

    background_work.start(work)
    background_work.wait()
    assert passed == [True]


def test_a_dropped_task_raises_nothing(background_work: BackgroundWork) -> None:
    background_work.start(fail)
    background_work.discard()
    background_work.wait()
    background_work.start(fail)
    background_work.close()
