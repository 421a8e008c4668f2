"""An application on the Oracle stand-in with many concurrent writers on few rows, which is hard to capture."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql

from tests.support.oracle.standin import SCHEMA, StandIn

KEYS, WRITERS = 100, 6
Step = Callable[[Any, random.Random], None]


def change_item(cursor: Any, rng: random.Random) -> None:
    """Change one row in a random way."""
    key, other, value = rng.randrange(KEYS), rng.randrange(KEYS), str(rng.random())
    match rng.choice(("insert", "update", "update", "delete", "move")):
        case "insert":
            cursor.execute('INSERT INTO "ITEM" VALUES (%s, %s)', (key, value))
        case "update":
            cursor.execute('UPDATE "ITEM" SET "V" = %s WHERE "ID" = %s', (value, key))
        case "delete":
            cursor.execute('DELETE FROM "ITEM" WHERE "ID" = %s', (key,))
        case "move":
            cursor.execute('UPDATE "ITEM" SET "ID" = %s WHERE "ID" = %s', (other, key))


@contextmanager
def writers(standin: StandIn, step: Step) -> Iterator[Counter[str]]:
    """Let the writers work within the block."""
    stop, ended = threading.Event(), Counter[str]()
    threads = [
        threading.Thread(target=_write, args=(standin, step, random.Random(n), stop, ended)) for n in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _write(standin: StandIn, step: Step, rng: random.Random, stop: threading.Event, ended: Counter[str]) -> None:
    with closing(standin.server.connect(SCHEMA, autocommit=False)) as connection:
        while not stop.is_set():
            try:
                for _ in range(rng.randint(1, 3)):
                    step(connection.cursor(), rng)
                stop.wait(rng.uniform(0, 0.05))
                how = "rollback" if rng.random() < 0.1 else "commit"
                getattr(connection, how)()
                ended[how] += 1
            except (pymysql.IntegrityError, pymysql.OperationalError):  # a duplicate key, a deadlock
                connection.rollback()
                ended["refused"] += 1
