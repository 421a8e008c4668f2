"""How far a full load is, asked of the target itself: rows of committed splits, and of every COPY under way.

So the figure is exact to the row whoever runs the splits: processes of this machine, or Spark wherever it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.load.task import application_of
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import VenusError

logger = logging.getLogger(__name__)

LOOK_S = 0.25


@contextmanager
def watched(target: PostgresTarget, load_id: str, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Tell the rows and splits that are at the target, repeatedly, as long as the block runs."""
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(target, load_id, tell, stop), name="venus-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(target: PostgresTarget, load_id: str, tell: Callable[[int, int], None], stop: threading.Event) -> None:
    if stop.wait(LOOK_S):
        return  # over already: not worth a connection
    rows = 0
    params = {"load_id": load_id, "application": application_of(load_id, 0).rpartition("/")[0] + "/%"}
    try:
        session = target.connect("watch")
    except VenusError as error:
        logger.info("how far the load is cannot be seen: %s", error)
        return
    try:
        while not stop.wait(LOOK_S):
            committed, splits, under_way = session.rows(statement("load", "progress", own=OWN_SCHEMA), params)[0]
            rows = max(rows, committed + under_way)  # a COPY that has ended counts again when it is committed
            tell(rows, splits)
    except VenusError as error:
        logger.info("how far the load is cannot be seen any more: %s", error)
    finally:
        session.close()
