"""A target's loop in a thread: its reports are collected, and its error is raised in the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Report = TypeVar("Report")


@contextmanager
def run_loop(follow: Callable[[threading.Event, Callable[[Report], None]], None]) -> Iterator[list[Report]]:
    """Run `follow` until the block ends; yield its reports."""
    stop, reports, errors = threading.Event(), list[Report](), list[BaseException]()

    def run() -> None:
        try:
            follow(stop, reports.append)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield reports
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
