"""Keys of time types, up to the limits of their types and in unusual zones, are carried, compared and repaired."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import make_url

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import libpq
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end, run_at
from venus.adapters.verify.findings import ComparisonVerdict
from venus.adapters.verify.repair import run_repair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

POSTGRESQL = {
    "date": ("infinity", "-infinity", "4713-01-01 BC", "0001-12-31 BC", "0001-01-01", "2024-02-29", "5874897-12-31"),
    "time": ("00:00", "24:00", "23:59:59.999999", "12:00:00.1"),
    "timetz": ("12:00+05:30", "11:30+05", "24:00-15:59:59", "00:00+15:59:59", "12:00:00.000001Z"),
    "timestamp": (
        "infinity",
        "-infinity",
        "4713-01-01 00:00:00 BC",
        "0001-12-31 23:59:59.5 BC",
        "2024-10-27 02:30",
        "9999-12-31 23:59:60",
        "294276-12-31 23:59:59.999999",
        "2024-03-31 02:30:00.000001",
    ),
    "timestamptz": (
        "infinity",
        "-infinity",
        "4713-01-01 12:00:00+00 BC",
        "0001-01-01 00:00:00 America/St_Johns",
        "1883-11-18 12:03:58-05",
        "2024-11-03 01:30 EDT",
        "2024-11-03 01:30 EST",
        "2024-10-27 00:30Z",
        "2024-10-27 01:30Z",
        "294276-12-31 23:59:59.999999+00",
        "1900-01-01 00:00:00.1 Asia/Kathmandu",
    ),
    "timestamp(0)": ("2024-01-01 00:00:00.5", "2024-01-01 00:00:01.5", "1999-12-31 23:59:59.9"),
    "interval": (
        "1 mon",
        "-30 days -1 us",
        "1 year -2 mons 3 days -04:05:06.7",
        "infinity",
        "-infinity",
        "0",
        "178000000 years",
        "-1 mons +1 day -00:00:01",
        "24:00",
        "-00:00:00.000001",
    ),
    "tstzrange": ("[2024-10-27 00:30Z,2024-10-27 01:30Z)", "(-infinity,infinity)", "empty", "[,2024-01-01 00:00 EST]"),
    "timestamptz[]": ("{2024-11-03 01:30 EDT,NULL,infinity}", "{}", '{"0044-03-15 12:00 BC"}'),
}


@pytest.fixture(autouse=True)
def set_process_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set this process, and with it capture and apply, to an unusual time zone."""
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def zoned_databases(database: str, second_database: str) -> tuple[str, str]:
    """Set other time zones in the source and target databases."""
    places = {database: ("Australia/Lord_Howe", "SQL, DMY"), second_database: ("Asia/Kathmandu", "German")}
    for url, (zone, style) in places.items():
        for setting in (f"timezone = '{zone}'", f"datestyle = '{style}'", "intervalstyle = 'sql_standard'"):
            run_at(url, f"ALTER DATABASE {make_url(url).database} SET {setting}")
    return database, second_database


def check_same(e2e: EndToEnd) -> None:
    """Check that a comparison finds nothing."""
    e2e.wait_until_caught_up()
    result = e2e.verify(tables=("*.moment",))
    assert (list(result.differences), result.verdict) == ([], ComparisonVerdict.SAME)


def damage_and_repair(e2e: EndToEnd, table: str, keys: int) -> None:
    """Change every row at the target and delete one; let a repair restore all of them."""
    e2e.at_target(f"UPDATE {table} SET v = -1")
    ((gone,),) = e2e.at_target(f"DELETE FROM {table} WHERE ctid = (SELECT min(ctid) FROM {table}) RETURNING k::text")
    result = e2e.verify(tables=("*.moment",))
    assert len(result.differences) == keys, gone
    assert run_repair(e2e.settings, "main", result, wait_s=120.0).repaired == keys
    check_same(e2e)


@pytest.mark.parametrize("kind", POSTGRESQL)
def test_postgresql_keys(kind: str, zoned_databases: tuple[str, str], tmp_path: Path) -> None:
    source, target = zoned_databases
    values = POSTGRESQL[kind]
    with end_to_end(tmp_path, source, target) as e2e:
        run_at(source, f"CREATE TABLE moment (k {kind} PRIMARY KEY, v int, c {kind})")
        for n, value in enumerate(values):
            run_at(source, f"INSERT INTO moment VALUES ('{value}', {n}, '{value}')")
        e2e.install()
        e2e.load()
        e2e.start()
        check_same(e2e)
        run_at(
            source,
            "UPDATE moment SET v = v + 100",
            "UPDATE moment SET c = NULL WHERE v % 2 = 0",
            "DELETE FROM moment WHERE v = 101",
        )
        run_at(source, f"INSERT INTO moment VALUES ('{values[1]}', 5, '{values[0]}')")
        check_same(e2e)
        assert texts(source) == texts(target)
        damage_and_repair(e2e, "moment", len(values))
        if kind == "interval":  # equal, but another value
            run_at(source, "UPDATE moment SET k = '30 days' WHERE k = '1 mon'")
            check_same(e2e)
            assert texts(source) == texts(target)


def texts(url: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(libpq(url))
    try:
        cursor = connection.cursor()
        cursor.execute("SET timezone = 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'")
        cursor.execute('SELECT k::text, v, c::text FROM moment ORDER BY k::text COLLATE "C"')
        return cursor.fetchall()
    finally:
        connection.close()


MARIADB = {
    "date": ("'0000-03-01'", "'0001-03-01'", "'9999-12-31'", "'2024-02-29'"),
    "datetime(6)": (
        "'0000-03-01 00:00:00'",
        "'0001-03-01 00:00:00'",
        "'9999-12-31 23:59:59.999999'",
        "'2024-10-27 02:30:00.1'",
        "'0000-12-31 23:59:59.9'",
    ),
    "timestamp(3)": (
        "from_unixtime(1.25)",
        "from_unixtime(1729989000)",
        "from_unixtime(1729992600)",
        "from_unixtime(2147483647.999)",
    ),
    "time(6)": ("'-838:59:59.999999'", "'838:59:59.999999'", "'-00:00:00.000001'", "'00:00:00'", "'24:00:00.5'"),
    "time": ("'-838:59:59'", "'-00:00:01'", "'100:00:00'"),
    "year": ("0", "1901", "2155"),
}


@pytest.mark.parametrize("kind", MARIADB)
def test_mariadb_keys(
    kind: str, mariadb_exact_database: str, mariadb_server: MariaServer, second_database: str, tmp_path: Path
) -> None:
    values, name = MARIADB[kind], make_url(mariadb_exact_database).database
    app = mariadb_server.connect(name, autocommit=True)

    def run(*statements: str) -> None:
        for statement in statements:
            app.cursor().execute(statement)

    run("SET time_zone = '+05:45'", f"CREATE TABLE moment (k {kind} NOT NULL PRIMARY KEY, v int, c {kind} NULL)")
    for n, value in enumerate(values):
        run(f"INSERT INTO moment VALUES ({value}, {n}, {value})")
    with end_to_end(tmp_path, mariadb_exact_database, second_database) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        check_same(e2e)
        run("SET time_zone = '-03:30'", "UPDATE moment SET v = v + 100", "DELETE FROM moment WHERE v = 101")
        run(f"INSERT INTO moment VALUES ({values[1]}, 5, NULL)")
        check_same(e2e)
        damage_and_repair(e2e, f"{name}.moment", len(values))
    app.close()


SQLITE = {
    "date": ("0001-01-01", "9999-12-31", "2024-02-29"),
    "time": ("00:00:00", "23:59:59.999999", "12:00:00.1"),
    "datetime": ("0001-01-01 00:00:00", "2024-10-27 02:30:00", "9999-12-31 23:59:59.999999"),
    "timestamptz": ("0001-01-01 00:00:00", "2024-10-27 02:30:00", "9999-12-31 23:59:59.999999"),
}


@pytest.mark.parametrize("kind", SQLITE)
def test_sqlite_keys(kind: str, second_database: str, tmp_path: Path) -> None:
    values, file = SQLITE[kind], tmp_path / "app.db"

    def run(*statements: str) -> None:
        with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as app:
            for statement in statements:
                app.execute(statement)

    run(f"CREATE TABLE moment (k {kind} NOT NULL PRIMARY KEY, v int, c {kind})")
    run(*(f"INSERT INTO moment VALUES ('{value}', {n}, '{value}')" for n, value in enumerate(values)))
    with end_to_end(tmp_path, f"sqlite:///{file}", second_database) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        check_same(e2e)
        run("UPDATE moment SET v = v + 100", "DELETE FROM moment WHERE v = 101")
        run(f"INSERT INTO moment VALUES ('{values[1]}', 5, NULL)")
        check_same(e2e)
        damage_and_repair(e2e, "moment", len(values))
