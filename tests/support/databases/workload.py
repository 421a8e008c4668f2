"""An application with many concurrent writers on few rows and every order of commit, which is hard to capture.

Each writer holds its transaction open for a random time, so that numbers drawn early commit late; it inserts, updates,
deletes, changes keys and rolls back. Statements that the database refuses (a deadlock, a duplicate key) are rolled back
and counted, as an application would.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg2
import psycopg2.extensions

from tests.support.databases.postgres import libpq

Cursor = psycopg2.extensions.cursor
Step = Callable[[Cursor, random.Random], None]

KEYS = 200
HOLD_MAX_S = 0.05
ACCOUNTS = 20
BALANCE = 1000


@dataclass(slots=True)
class Counts:
    """Counts of the writers' transactions."""

    ended: Counter[str] = field(default_factory=Counter)
    failed: list[BaseException] = field(default_factory=list)


def change_item(cursor: Cursor, rng: random.Random) -> None:
    """Change one row of item (id, v) in a random way."""
    key, other, value = rng.randrange(KEYS), rng.randrange(KEYS), rng.random()
    match rng.choice(("upsert", "upsert", "upsert", "delete", "move")):
        case "upsert":
            sql = "INSERT INTO item VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
            cursor.execute(sql, (key, str(value)))
        case "delete":
            cursor.execute("DELETE FROM item WHERE id = %s", (key,))
        case "move":
            cursor.execute("UPDATE item SET id = %s, v = %s WHERE id = %s", (other, str(value), key))


def transfer_step(cursor: Cursor, rng: random.Random) -> None:
    """Move money from an account of one table to one of the other; the total never changes."""
    amount = rng.randrange(1, 100)
    source, target = rng.sample(("giro", "savings"), 2)
    cursor.execute(f"UPDATE {source} SET balance = balance - {amount} WHERE id = {rng.randrange(ACCOUNTS)}")
    cursor.execute(f"UPDATE {target} SET balance = balance + {amount} WHERE id = {rng.randrange(ACCOUNTS)}")


@contextmanager
def writers(url: str, step: Step, *, count: int = 8, steps_max: int = 3, seed: int = 1) -> Iterator[Counts]:
    """Let `count` writers work within the block; all have ended after it."""
    stop = threading.Event()
    counts = Counts()
    threads = [
        threading.Thread(target=_write, args=(url, step, random.Random(seed * 1000 + i), steps_max, stop, counts))
        for i in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _write(url: str, step: Step, rng: random.Random, steps_max: int, stop: threading.Event, counts: Counts) -> None:
    try:
        connection = psycopg2.connect(libpq(url))
        cursor = connection.cursor()
        while not stop.is_set():
            try:
                for _ in range(rng.randint(1, steps_max)):
                    step(cursor, rng)
                time.sleep(rng.uniform(0, HOLD_MAX_S))
                _end(connection, rng, counts)
            except psycopg2.errors.IntegrityError:
                connection.rollback()
                counts.ended["key taken"] += 1
            except psycopg2.errors.DeadlockDetected:
                connection.rollback()
                counts.ended["deadlock"] += 1
        connection.close()
    except BaseException as error:  # the test checks that there is none
        counts.failed.append(error)


def _end(connection: psycopg2.extensions.connection, rng: random.Random, counts: Counts) -> None:
    """Commit, or sometimes roll back; count the outcome."""
    if rng.random() < 0.2:
        connection.rollback()
        counts.ended["rollback"] += 1
    else:
        connection.commit()
        counts.ended["commit"] += 1
