"""PostgreSQL to an Oracle schema as an ordinary target: kill -9 under a writer, verify, repair, resync, quarantine.

The target is the stand-in (tests/support/oracle/standin.py), not an Oracle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.oracle.driver import python_path
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.pipelines.target_story import TargetStory, open_story

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def story(tmp_path: Path, postgres_server: Server, oracle_target: StandIn) -> Iterator[TargetStory]:
    def at_target(statement: str) -> list[tuple[Any, ...]]:
        return oracle_target.server.execute(statement, SCHEMA)

    url = f"oracle+cx_oracle://root@127.0.0.1:{oracle_target.server.port}/?service_name=SCHOOL"
    environ = {"PYTHONPATH": python_path(tmp_path / "driver")}
    with open_story(tmp_path, postgres_server, url, at_target, environ=environ, item="ITEM", piece="PIECE") as story:
        yield story


@contextmanager
def keep_writing(source: str) -> Iterator[None]:
    """Change a row of each table in successive transactions."""
    ended = threading.Event()

    def write() -> None:
        with closing(psycopg2.connect(libpq(source))) as connection:
            for number in count(1):
                if ended.wait(0.005):
                    return
                with connection, connection.cursor() as cursor:
                    cursor.execute("UPDATE item SET v = %s WHERE id = %s", (f"t{number}", 101 + number % 400))
                    cursor.execute("INSERT INTO piece (item_id, note) VALUES (4, %s)", (f"written {number}",))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def test_postgresql_to_oracle_works(story: TargetStory) -> None:
    def count_written() -> int:
        return len(story.at_target("SELECT id FROM PIECE WHERE note LIKE 'written %'"))

    def wait_for_more() -> None:
        before = count_written()
        story.pipeline.until(lambda: count_written() > before, "further changes")

    assert 'CREATE TABLE "ITEM"' in story.load(short_text="varchar(40)", note="text")
    refused = [message for message in story.waiting if "cannot hold a value of it" in message]
    assert len(refused) == story.refused > 0
    assert any("Oracle stores NULL for an empty text" in message for message in story.waiting)
    with keep_writing(story.pipeline.source):
        for _ in range(3):
            wait_for_more()
            story.restart()
    story.change()
    story.damage()
    story.end()
