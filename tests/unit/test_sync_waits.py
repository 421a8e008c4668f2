"""The errors that `venus sync` waits for, and those that end it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from venus.cli.sync import run_with_retries
from venus.errors import (
    ConfigError,
    DatabaseUnavailable,
    Diverged,
    Fenced,
    Held,
    LoginRefused,
    NoSuchDatabase,
    NotInstalled,
    Refused,
    SourceError,
    StoreFull,
    Unavailable,
    UnknownHost,
    Untrusted,
    VenusError,
)
from venus.flow.breaker import RetryPolicy, find_retry_policy, should_retry

WAIT, RARELY, END = RetryPolicy.WAIT, RetryPolicy.RARELY, RetryPolicy.END


@pytest.mark.parametrize(
    ("error", "before", "afterwards"),
    [
        (DatabaseUnavailable("the server is down"), WAIT, WAIT),
        (Unavailable("the broker is down"), WAIT, WAIT),
        (StoreFull("no room"), WAIT, WAIT),
        (UnknownHost("no such name"), WAIT, WAIT),
        (NoSuchDatabase("no such file"), END, WAIT),
        (LoginRefused("wrong password"), END, WAIT),
        (Untrusted("unknown authority"), END, WAIT),
        (NotInstalled("nothing is installed"), END, END),
        (Refused("not loaded"), RARELY, RARELY),
        (Held("another instance"), END, END),
        (Fenced("taken over"), END, END),
        (ConfigError("no such option"), END, END),
        (Diverged("another history"), END, END),
        (SourceError("no such table"), END, END),
        (ValueError("a defect"), END, END),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_each_error_waits_or_ends_the_loop(error: Exception, before: RetryPolicy, afterwards: RetryPolicy) -> None:
    assert find_retry_policy(error, has_worked=False) is before
    assert find_retry_policy(error, has_worked=True) is afterwards
    assert should_retry(error, has_worked=False) is (before is WAIT)


def rounds(error: VenusError, *, supervised: bool, has_worked: bool = False) -> list[dict[str, Any]]:
    """Run a loop that fails twice and is then stopped; return its output."""
    stop, said = threading.Event(), list[dict[str, Any]]()

    def body() -> None:
        if len(said) == 2:
            stop.set()
            return
        raise error

    stop.wait = lambda timeout=None: stop.is_set()  # type: ignore[method-assign]
    run_with_retries(body, stop, said.append, lambda: has_worked, supervised=supervised)
    return said


def test_an_unloaded_target_is_waited_for_only_beside_other_loops() -> None:
    error = Refused("target main has not been loaded yet", hint="venus migrate")
    with pytest.raises(Refused):
        rounds(error, supervised=False)
    assert [said["retry_in_s"] for said in rounds(error, supervised=True)] == [15.0, 15.0]


def test_a_refused_login_is_waited_for_by_a_loop_that_has_worked() -> None:
    with pytest.raises(LoginRefused):
        rounds(LoginRefused("wrong password"), supervised=True)
    assert len(rounds(LoginRefused("wrong password"), supervised=True, has_worked=True)) == 2
