"""A step that another session's lock blocks is retried for a limited time; then the error names that session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from venus.adapters.cutover.lock_patience import DEADLOCKS_MAX, LockPatience
from venus.errors import DatabaseUnavailable, Deadlock, LockTimeout, TargetError

STEP_S = 10.0


class Step:
    """A step that takes some seconds and raises these errors one after the other, then succeeds."""

    def __init__(self, *errors: Exception, every: Callable[[], Exception] | None = None) -> None:
        self.now = 0.0
        self.tries = 0
        self.reports: list[str] = []
        self._errors: Iterator[Exception] = iter(errors)
        self._every = every

    def __call__(self) -> str:
        self.now += STEP_S
        self.tries += 1
        error = self._every() if self._every else next(self._errors, None)
        if error is not None:
            raise error
        return "done"

    def run(self, wait_s: float, describe_holders: Callable[[], str] = lambda: "") -> str:
        """Run the step with a clock that advances only within it."""
        patience = LockPatience(wait_s, self.reports.append, monotonic=lambda: self.now, sleep=lambda _: None)
        return patience.run(self, describe_holders)


def test_a_lock_that_is_released_in_time_delays_the_step() -> None:
    step = Step(LockTimeout("locked"), LockTimeout("locked"))
    assert step.run(60.0, lambda: "session 7") == "done"
    assert step.reports == ["waits: locked; open transactions: session 7"] * 2


def test_a_lock_that_is_held_too_long_is_reported_with_its_holder() -> None:
    step = Step(every=lambda: LockTimeout("locked"))
    with pytest.raises(LockTimeout, match="locked; open transactions: session 7") as caught:
        step.run(60.0, lambda: "session 7")
    assert caught.value.hint == "end the transaction that holds the lock, and run the command again"
    assert step.tries == 60 / STEP_S


def test_a_holder_that_cannot_be_found_does_not_hide_the_error() -> None:
    def describe() -> str:
        raise DatabaseUnavailable("away")

    with pytest.raises(LockTimeout, match=r"\Alocked\Z"):
        Step(LockTimeout("locked", hint="end it")).run(0.0, describe)


def test_a_deadlock_is_retried_even_after_the_limit_but_not_forever() -> None:
    assert Step(*[Deadlock("deadlock")] * DEADLOCKS_MAX).run(0.0) == "done"
    step = Step(every=lambda: Deadlock("deadlock"))
    with pytest.raises(LockTimeout, match="deadlock"):
        step.run(0.0)
    assert step.tries == DEADLOCKS_MAX + 1


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), TargetError("no")])
def test_any_other_error_ends_the_step(error: Exception) -> None:
    step = Step(error)
    with pytest.raises(type(error)):
        step.run(60.0)
    assert step.tries == 1
