"""The only way in which tests wait: for a condition, not for an amount of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Long enough for a busy machine: only a failing test waits this long.
TIMEOUT_S = 60.0
EVERY_S = 0.005


def eventually(
    condition: Callable[[], Any],
    what: str | Callable[[], str] = "the condition",
    *,
    timeout_s: float = TIMEOUT_S,
    every_s: float = EVERY_S,
) -> Any:
    """Wait until the condition is true and return its value; fail after the timeout with `what` in the message."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= end:
            name = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {timeout_s:g} s in vain for {name}")
        time.sleep(every_s)
    return value
