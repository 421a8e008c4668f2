"""Databases that an application leaves for PostgreSQL: MariaDB, SQLite, the Oracle stand-in (switched_pair.py)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pymysql

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.oracle.driver import python_path
from tests.support.oracle.standin import DICTIONARY, SCHEMA, StandIn
from tests.support.pipelines.switched_pair import SwitchedPair

#: Query for MariaDB sessions that wait for a lock. Within 0.1 s InnoDB repeats its last answer.
_WAITING = """
SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'
UNION ALL SELECT id FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%'
"""


class MariaPair(SwitchedPair):
    """A MariaDB and a PostgreSQL database with a pipeline between them."""

    LEDGER = """
CREATE TABLE ledger (id bigint AUTO_INCREMENT PRIMARY KEY, amount decimal(12, 2) NOT NULL, note text);
CREATE TABLE probe (n int PRIMARY KEY);
INSERT INTO probe VALUES (1);
"""
    HAS_RECORD = "SHOW TABLES LIKE 'venus_side'"
    ERRORS = (pymysql.Error,)

    def __init__(self, folder: Path, server: MariaServer, old: str, new: Server) -> None:
        self.server = server
        self.database = old.rpartition("/")[2]
        super().__init__(folder, old, new, self.database)

    def connect_old(self) -> Any:
        return self.server.connect(self.database, autocommit=True)

    def crash_old(self) -> None:
        self.server.kill()
        self.server.start_again()

    def is_waiting_in_old(self, begin: int) -> bool:
        return self.old(_WAITING) != []

    def count_logged(self) -> int:
        tables = self.old("SELECT table_id FROM venus_captured_table WHERE name <> 'venus_heartbeat'")
        return sum(self.old(f"SELECT count(*) FROM venus_l_{number:05}")[0][0] for (number,) in tables)


#: Program that is killed in a transaction: it holds the write lock, and its change is in the write-ahead log.
_DYING = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("PRAGMA cache_size = 0")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE never (v)")
connection.executemany("INSERT INTO never VALUES (?)", [("x" * 5000,)] * 50)
os.kill(os.getpid(), signal.SIGKILL)
"""


class SqlitePair(SwitchedPair):
    """A SQLite file and a PostgreSQL database with a pipeline between them."""

    LEDGER = """
CREATE TABLE ledger (id INTEGER PRIMARY KEY AUTOINCREMENT, amount DECIMAL(12, 2) NOT NULL, note TEXT);
CREATE TABLE probe (n INTEGER PRIMARY KEY);
INSERT INTO probe VALUES (1);
"""
    HAS_RECORD = "SELECT 1 FROM sqlite_master WHERE name = 'venus_side'"
    ERRORS = (sqlite3.Error,)

    def __init__(self, folder: Path, new: Server) -> None:
        self.path = folder / "old.db"
        super().__init__(folder, f"sqlite:///{self.path}", new, "main")
        self.pipeline.target_options = 'schema = "main"'
        self.old("PRAGMA journal_mode = WAL")

    def connect_old(self) -> Any:
        return sqlite3.connect(self.path, isolation_level=None, timeout=30)

    def crash_old(self) -> None:
        """Kill a process of the application in a transaction with SIGKILL; there is no server."""
        done = subprocess.run([sys.executable, "-c", _DYING, str(self.path)], check=False)
        assert done.returncode < 0

    def is_waiting_in_old(self, begin: int) -> bool:
        return True  # no query shows the waiting command, but the lock's holder blocks the step

    def count_logged(self) -> int:
        """Count the log rows after the watermark, because capture leaves some that it has read (capture/cut.py)."""
        tables = self.old(
            "SELECT table_id, log_through FROM venus_captured_table WHERE name <> 'venus_heartbeat'",
        )
        logged = "SELECT count(*) FROM venus_l_{:05} WHERE seq > {}"
        return sum(self.old(logged.format(number, through))[0][0] for number, through in tables)


class OraclePair(SwitchedPair):
    """The stand-in for Oracle and a PostgreSQL database with a pipeline between them.

    A sequence ISEQ$$_TABLE stands for the sequence of an identity column.
    """

    LEDGER = """
CREATE SEQUENCE "ISEQ$$_LEDGER" START WITH 1 INCREMENT BY 1 MINVALUE 1 NOCYCLE NOCACHE;
CREATE TABLE LEDGER (ID NUMBER(18) DEFAULT NEXTVAL("ISEQ$$_LEDGER") PRIMARY KEY, AMOUNT NUMBER(12, 2) NOT NULL,
    NOTE VARCHAR2(100));
CREATE TABLE PROBE (N NUMBER(18) PRIMARY KEY);
INSERT INTO PROBE VALUES (1);
"""
    ledger, probe = "LEDGER", "PROBE"
    HAS_RECORD = "SHOW TABLES LIKE 'VENUS_SIDE'"
    READ_STATE = "SELECT STATE FROM VENUS_SIDE WHERE BUSINESS IS NOT NULL"
    BEGIN = "START TRANSACTION"  # here BEGIN starts a block
    ERRORS = (pymysql.Error,)

    def __init__(self, folder: Path, server: MariaServer, new: Server) -> None:
        self.server = server
        StandIn(server).prepare()
        url = f"oracle+cx_oracle://root@127.0.0.1:{server.port}/?service_name=SCHOOL"
        super().__init__(folder, url, new, SCHEMA.lower())
        self.pipeline.environ["PYTHONPATH"] = python_path(folder / "driver")

    def start(self, tables: str) -> None:
        self.old(tables)
        self._declare_counters()
        super().start("")

    def _declare_counters(self) -> None:
        """Write the sequences with their numbers into the dictionary, some of them as those of identity columns."""
        found = self.server.execute("SHOW FULL TABLES WHERE TABLE_TYPE = 'SEQUENCE'", SCHEMA)
        names = [str(name) for name, _ in found]
        numbers = " UNION ALL ".join(
            f"SELECT '{SCHEMA}' AS SEQUENCE_OWNER, '{name}' AS SEQUENCE_NAME, next_not_cached_value AS LAST_NUMBER,"
            " increment AS INCREMENT_BY, minimum_value AS MIN_VALUE, maximum_value AS MAX_VALUE, 'N' AS CYCLE_FLAG"
            f' FROM {SCHEMA}."{name}"'
            for name in names
        )
        self.server.execute("DROP TABLE IF EXISTS ALL_SEQUENCES", DICTIONARY)
        self.server.execute(f"CREATE OR REPLACE VIEW ALL_SEQUENCES AS {numbers}", DICTIONARY)
        for name in [name for name in names if name.startswith("ISEQ$$_")]:
            values = f"'{SCHEMA}', '{name.removeprefix('ISEQ$$_')}', 'ID', 'BY DEFAULT', '{name}'"
            self.server.execute(f"INSERT INTO ALL_TAB_IDENTITY_COLS VALUES ({values})", DICTIONARY)

    def connect_old(self) -> Any:
        return self.server.connect(SCHEMA, autocommit=True)

    def crash_old(self) -> None:
        self.server.kill()
        self.server.start_again()

    def is_waiting_in_old(self, begin: int) -> bool:
        # a statement with NOWAIT is retried
        return "waits: " in self.pipeline.log.read_text()[begin:] or self.old(_WAITING) != []

    def count_logged(self) -> int:
        tables = self.old("SELECT TABLE_ID FROM VENUS_CAPTURED_TABLE WHERE NAME <> 'VENUS_HEARTBEAT'")
        return sum(self.old(f"SELECT COUNT(*) FROM VENUS_L_{number:05}")[0][0] for (number,) in tables)

    def count_loads(self) -> int:
        return int(self.old("SELECT COUNT(*) FROM VENUS_LOAD_JOB")[0][0])
