"""The server of the other tests here starts, with the requested sql_mode."""

from __future__ import annotations

from tests.support.databases.mariadb import MariaServer


def test_it_runs_with_its_own_defaults(mariadb_server: MariaServer, mariadb_database: str) -> None:
    ((mode, isolation),) = mariadb_server.execute("SELECT @@global.sql_mode, @@tx_isolation")
    assert "STRICT_TRANS_TABLES" in mode
    assert isolation == "REPEATABLE-READ"


def test_it_runs_in_oracle_mode(mariadb_oracle_server: MariaServer) -> None:
    ((mode, empty),) = mariadb_oracle_server.execute("SELECT @@global.sql_mode, '' IS NULL FROM dual")
    assert "ORACLE" in mode
    assert empty == 1
