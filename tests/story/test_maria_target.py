"""PostgreSQL to MariaDB as an ordinary target: predicates, verify, repair, resync, quarantine (scenario 94)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.pipelines.target_story import open_story

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_postgresql_to_mariadb_works(
    mariadb_server: MariaServer, mariadb_database: str, tmp_path: Path, postgres_server: Server
) -> None:
    database = mariadb_database.rpartition("/")[2]

    def at_target(statement: str) -> list[tuple[Any, ...]]:
        return mariadb_server.execute(f"SET STATEMENT foreign_key_checks = 0 FOR {statement}", database)

    with open_story(tmp_path, postgres_server, mariadb_database, at_target) as story:
        assert "CREATE TABLE" in story.load()
        assert (story.refused, len(story.waiting)) == (9, 9)
        story.change()
        story.damage()
        story.end()
