"""An application on MariaDB with many concurrent writers on few rows, which is hard to capture.

The same as `workload` for PostgreSQL, with equal counts and tables.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.constants import ER

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.workload import HOLD_MAX_S, KEYS, Counts

Step = Callable[[Any, random.Random], None]
_REFUSED = {ER.LOCK_DEADLOCK: "deadlock", ER.DUP_ENTRY: "key taken", ER.LOCK_WAIT_TIMEOUT: "lock timeout"}


def change_item(cursor: Any, rng: random.Random) -> None:
    """Change one row of item (id, v) in a random way."""
    key, other, value = rng.randrange(KEYS), rng.randrange(KEYS), str(rng.random())
    match rng.choice(("upsert", "upsert", "replace", "delete", "move")):
        case "upsert":
            cursor.execute("INSERT INTO item VALUES (%s, %s) ON DUPLICATE KEY UPDATE v = VALUES(v)", (key, value))
        case "replace":
            cursor.execute("REPLACE INTO item VALUES (%s, %s)", (key, value))
        case "delete":
            cursor.execute("DELETE FROM item WHERE id = %s", (key,))
        case "move":
            cursor.execute("UPDATE item SET id = %s, v = %s WHERE id = %s", (other, value, key))


@contextmanager
def writers(server: MariaServer, database: str, step: Step, *, steps_max: int = 3) -> Iterator[Counts]:
    """Let eight writers work within the block."""
    stop, counts = threading.Event(), Counts()
    threads = [
        threading.Thread(target=_write, args=(server, database, step, random.Random(i), steps_max, stop, counts))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _write(
    server: MariaServer,
    database: str,
    step: Step,
    rng: random.Random,
    steps_max: int,
    stop: threading.Event,
    counts: Counts,
) -> None:
    try:
        connection = server.connect(database)
        cursor = connection.cursor()
        while not stop.is_set():
            try:
                for _ in range(rng.randint(1, steps_max)):
                    step(cursor, rng)
                time.sleep(rng.uniform(0, HOLD_MAX_S))  # so that numbers drawn early commit late
                ending = "rollback" if rng.random() < 0.2 else "commit"
                getattr(connection, ending)()
                counts.ended[ending] += 1
            except pymysql.Error as error:
                if error.args[0] not in _REFUSED:
                    raise
                connection.rollback()
                counts.ended[_REFUSED[error.args[0]]] += 1
        connection.close()
    except BaseException as error:  # the test checks that there is none
        counts.failed.append(error)
