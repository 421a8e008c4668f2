"""Databases for the conformance suite: the places of `venus prove` on the servers of the tests.

A new dialect passes the suite (`cases`, which `venus prove` ships) by adding a place here and its name to `PLACES` in
conftest.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server, libpq
from venus.adapters.dialects.mysql.proving import MysqlApplication, MysqlScratch
from venus.adapters.dialects.postgresql.proving import PostgresScratch
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.adapters.dialects.sqlite.proving import SqliteScratch

__all__ = ["Application", "MariaPlace", "Place", "PostgresPlace", "SqlitePlace", "run_transaction"]


class PostgresPlace(PostgresScratch):
    """A database on the embedded server."""

    def __init__(self, server: Server, url: str) -> None:
        super().__init__(url)
        self.server = server

    def dump(self) -> str:
        command = [str(self.server.bin / "pg_dump"), "--schema-only", libpq(self.url)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        # the key of psql's restricted mode is random
        return "\n".join(line for line in text.splitlines() if "restrict " not in line)


class SqlitePlace(SqliteScratch):
    """A database file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        path.touch()
        super().__init__(f"sqlite:///{path}")


class MariaPlace(MysqlScratch):
    """A database on a MariaDB server of its own, whose administrator is the application."""

    def __init__(self, server: MariaServer, url: str) -> None:
        super().__init__(url)
        self.server = server

    def connect(self) -> Application:
        mode = "STRICT_ALL_TABLES,ANSI_QUOTES"
        return self.remember(MysqlApplication(self.server.connect(self.namespace, sql_mode=mode), "%s"))
