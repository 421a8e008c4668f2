"""A session with a relational target, as the shared code uses it, and the errors that such a session raises.

The caller writes BEGIN and COMMIT itself, with several statements in one string where the server permits that. Errors
are classified by the reaction that they require: the server is unreachable (try again later), the target refused a
value or a row (`Refusal` with its SQLSTATE: quarantine), or the statement is wrong (`TargetError`).

A background thread may run one piece of work with the session while the caller prepares the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from venus.errors import TargetError

Params = Mapping[str, Any] | Sequence[Any] | None


class Refusal(TargetError):
    """The target refused a row. The message may contain values of the row; `summary` contains none."""

    def __init__(
        self,
        message: str,
        sqlstate: str = "",
        table: tuple[str, str] = ("", ""),
        constraint: str = "",
        summary: str = "",
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        #: The text for a table's state, which is visible on the broker's page.
        self.summary = f"{summary or message} ({sqlstate})"
        #: Schema and name of the table, if the server reports them.
        self.table = table
        self.constraint = constraint


class Superseded(TargetError):
    """Another process has changed the applied offset or a table's state."""


class DdlNeeded(Exception):
    """DDL has to run before a transaction, which it would end. The caller rolls back, calls `run`, then tries again."""

    def __init__(self, what: str, run: Callable[[], None]) -> None:
        super().__init__(what)
        self.run = run


class RelationalSession(Protocol):
    """A connection in autocommit mode, used by one thread and by the background work that this thread has started."""

    #: Start of the running statement, for other threads; None = idle.
    busy_since: float | None

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost."""
        ...

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
        ...

    def run(self, text: str, params: Params = None) -> int:
        """Execute one or more statements in one round trip; return the last one's row count."""
        ...

    def rows(self, text: str, params: Params = None) -> list[tuple[Any, ...]]:
        """Execute a query and return all its rows; for small results only."""
        ...

    def row(self, text: str, params: Params = None) -> tuple[Any, ...] | None:
        """Execute a query and return its first row; None if there is none."""
        ...

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` filled in as SQL literals."""
        ...

    def begin_snapshot(self) -> None:
        """Begin a transaction whose reads all see one snapshot."""
        ...

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one and the connection is alive."""
        ...

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Start work with this session in another thread; the next use of the session waits and raises its error."""
        ...

    def wait_for_background(self) -> None:
        """Wait for the work in the other thread and raise its error."""
        ...


@contextmanager
def transaction(session: RelationalSession) -> Iterator[None]:
    """Run a block in one transaction of the target."""
    session.run("BEGIN")
    try:
        yield
        session.run("COMMIT")
    except BaseException:
        session.rollback()
        raise


class BackgroundWork:
    """Executor of one piece of work at a time, in its own thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._worker = 0

    def start(self, work: Callable[[], None]) -> None:
        """Start work after the previous piece. If the previous piece failed, raise its error and start nothing."""
        self.wait()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, self._name, initializer=self._on_start)
        self._job = self._executor.submit(work)

    def wait(self) -> None:
        """Wait for the last piece and raise its error; a call from within the piece returns immediately."""
        if self._job is None or threading.get_ident() == self._worker:
            return
        job, self._job = self._job, None
        job.result()

    def discard(self) -> None:
        """Wait for the last piece and ignore its error."""
        with suppress(Exception):
            self.wait()

    def close(self) -> None:
        """Wait for the last piece and end the thread."""
        self.discard()
        if self._executor is not None:
            self._executor.shutdown()

    def _on_start(self) -> None:
        """Remember the thread, so that `wait` recognises a call from within the work."""
        self._worker = threading.get_ident()
