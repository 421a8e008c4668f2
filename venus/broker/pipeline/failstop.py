"""An error of the store that a reader meets ends the broker like one that the commit thread meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from venus.errors import StorageError, StoreFull

Guard = Callable[[], AbstractContextManager[None]]


def guard_with(fail: Callable[[BaseException], None]) -> Guard:
    """Return a context that reports what is wrong with the store, and raises it all the same."""

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if not isinstance(error, StoreFull):
                fail(error)
            raise

    return guard
