"""Each range over each type, for every kind of source: the target has the rows that the source's own WHERE selects.

Oracle is MariaDB in Oracle mode: a stand-in, whose WHERE is MariaDB's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.conformance.places import MariaPlace, Place, PostgresPlace, SqlitePlace
from tests.integration.verify.conftest import VerifiedSource
from tests.support.oracle.standin import StandIn
from tests.support.pipelines.end_to_end import difference_keys, end_to_end
from venus.adapters.dialects.oracle import source, verify
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.targets.predicates import predicate_text
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.verify.findings import ComparisonVerdict
from venus.adapters.verify.repair import run_repair
from venus.config import TargetSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

COLUMNS = ("name", "code", "price", "big", "day", "moment", "ok")
#: Types of the columns; text compares by code point, and trailing blanks of a varchar count.
TYPES = {
    "postgresql": (
        'varchar(20) COLLATE "C"',
        'char(4) COLLATE "C"',
        "numeric(10,2)",
        "bigint",
        "date",
        "timestamp",
        "smallint",
    ),
    "sqlite": ("VARCHAR(20)", "TEXT", "DECIMAL(10,2)", "BIGINT", "DATE", "TIMESTAMP", "SMALLINT"),
    "mysql": ("varchar(20)", "char(4)", "decimal(10,2)", "bigint", "date", "datetime(6)", "boolean"),
    "oracle": ("VARCHAR2(20)", "CHAR(4)", "NUMBER(10,2)", "NUMBER(19)", "DATE", "DATETIME(6)", "NUMBER(1)"),
}
VALUES: tuple[tuple[Any, ...], ...] = (
    ("B", "b", "EU", "eu", "E", "EUR", "É", "\U0001f642", "\ue000", "it's"),
    ("a", "ab", "A", "abcd"),
    ("0.00", "-0.01", "99.99", "100.00", "100.50", "100.51", "9.00"),
    (9007199254740992, 9007199254740993, -1, 9223372036854775807),
    ("2026-01-31", "2026-02-01", "2025-12-31", "2026-02-28", "0001-01-01"),
    ("2026-01-31 12:00:00", "2026-01-31 12:00:00.5", "2026-01-31 12:00:00.25", "2026-02-01 00:00:00"),
    (0, 1),
)
#: SQL in the stand-in's spelling: words in upper case and names in lower case.
WHERE = {
    "t1": "name >= 'B' AND name < 'b'",
    "t2": "name > 'EU' AND name <= '\U0001f642'",
    "t3": "code IN ('a', 'abcd')",
    "t4": "price BETWEEN 99.99 AND 100.5",
    "t5": "price < 9.5 AND name IS NOT NULL",
    "t6": "big > 9007199254740992",
    "t7": "day >= '2026-01-31' AND day < '2026-02-28'",
    "t8": "moment > '2026-01-31 12:00:00.25' AND moment <= '2026-01-31 12:00:00.5'",
    "t9": "ok = 1 AND day IS NULL",
    "t10": "id BETWEEN 20 AND 60 AND price >= 0",
    "t11": "code >= 'a' AND code < 'abcd'",
}
ROWS = 80


#: test_predicates.py covers the whole pipeline of these two in the quick suite.
_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgresql", "sqlite")]


@pytest.fixture(params=[*_SLOW, "mariadb", "oracle"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    match request.param:
        case "sqlite":
            yield SqlitePlace(path=tmp_path / "app.db")
        case "mariadb":
            url = request.getfixturevalue("mariadb_exact_database")
            yield MariaPlace(server=request.getfixturevalue("mariadb_server"), url=url)
        case "oracle":
            standin = StandIn(request.getfixturevalue("mariadb_oracle_server"))
            standin.prepare()
            for module in (source, verify):
                monkeypatch.setattr(module, "parse_driver_url", lambda _: (standin, OracleOptions()))
            yield StandInPlace(standin)
        case _:
            url = request.getfixturevalue("database")
            yield PostgresPlace(server=request.getfixturevalue("postgres_server"), url=url)


def url_of(place: Place) -> str:
    match place:
        case SqlitePlace():
            return f"sqlite:///{place.path}"
        case StandInPlace():
            return "oracle+oracledb://venus@nowhere/"
    return place.url  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def sample(place: Place, tmp_path: Path, second_database: str) -> Iterator[VerifiedSource]:
    rng = random.Random(4)
    columns = ", ".join(f"{c} {t}" for c, t in zip(COLUMNS, TYPES[place.dialect], strict=True))
    with closing(place.connect()) as app:
        for table in WHERE:
            app.execute(f"CREATE TABLE {table} (id {place.types['int']} NOT NULL PRIMARY KEY, {columns})")
            for n in range(ROWS):
                app.execute(f"INSERT INTO {table} VALUES (?{', ?' * len(COLUMNS)})", n, *some(rng))
        app.commit()
    with end_to_end(tmp_path, url_of(place), second_database) as e2e:
        with_where(e2e.settings.targets, WHERE)
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.wait_until_caught_up()
        yield VerifiedSource(place, e2e)


def some(rng: random.Random) -> list[Any]:
    return [None if rng.random() < 0.2 else rng.choice(values) for values in VALUES]


def with_where(targets: dict[str, TargetSettings], where: dict[str, str]) -> None:
    targets["main"] = TargetSettings.model_validate({**targets["main"].model_dump(by_alias=True), "where": where})


def write(sample: VerifiedSource, table: str, rng: random.Random) -> None:
    """Change all columns of some rows, including their keys; delete some rows."""
    sets = ", ".join(f"{c} = ?" for c in COLUMNS)
    with closing(sample.place.connect()) as app:
        for n in range(30):
            app.execute(f"UPDATE {table} SET {sets} WHERE id = ?", *some(rng), rng.randrange(ROWS))
            app.execute(f"UPDATE {table} SET id = ? WHERE id = ?", 1000 + n, rng.randrange(ROWS))
            app.execute(f"DELETE FROM {table} WHERE id = ?", rng.randrange(ROWS))
            app.execute(f"UPDATE {table} SET id = ? WHERE id = ?", rng.randrange(ROWS, 2 * ROWS) + n * ROWS, 1000 + n)
            if n % 10 == 9:
                app.commit()


def check(sample: VerifiedSource, where: dict[str, str]) -> None:
    schema = "app" if sample.place.dialect == "oracle" else sample.place.namespace
    schema = "public" if schema == "main" else schema
    for table, condition in where.items():
        with closing(sample.place.connect()) as app:
            wanted = app.execute(f"SELECT id FROM {table} WHERE {condition}")
        there = sample.e2e.at_target(f'SELECT id FROM "{schema}".{table}')
        assert sorted(int(n) for (n,) in there) == sorted(int(n) for (n,) in wanted), (table, condition)
        assert wanted, (table, "the range should not be empty")


def test_ranges_select_the_same_rows_as_at_the_source(sample: VerifiedSource) -> None:
    e2e = sample.e2e
    check(sample, WHERE)
    rng = random.Random(5)
    for table in WHERE:
        write(sample, table, rng)
    e2e.wait_until_caught_up()
    check(sample, WHERE)
    for options in ({}, {"leg": "all"}, {"mode": "scan"}):
        same = e2e.verify(**options)
        assert same.verdict is ComparisonVerdict.SAME, (options, same.differences, same.undecided_rows)

    e2e.stop("apply")
    schema = "app" if sample.place.dialect == "oracle" else sample.place.namespace
    schema = "public" if schema == "main" else schema
    with closing(sample.place.connect()) as app:
        outside = app.execute("SELECT MIN(id) FROM t4 WHERE price = 9")[0][0]
    e2e.at_target(
        f'INSERT INTO "{schema}".t4 (id, price) VALUES ({outside}, 100)',
        f'INSERT INTO "{schema}".t6 (id, big) VALUES (-7, 1)',
    )
    result = e2e.verify()
    planted = {("t4", (str(outside),), "extra", "apply"), ("t6", ("-7",), "extra", "apply")}
    assert {(t.lower(), *rest) for t, *rest in difference_keys(result)} == planted
    e2e.start("apply")
    assert run_repair(e2e.settings, "main", result, wait_s=120).left == []
    assert e2e.verify().verdict is ComparisonVerdict.SAME

    e2e.stop("apply")
    turned = dict(zip(WHERE, [*list(WHERE.values())[1:], "name IS NULL"], strict=True))
    with_where(e2e.settings.targets, turned)
    write(sample, "t4", rng)
    e2e.start("apply")
    e2e.until(
        lambda: all(
            t.predicate_before is None and t.predicate == predicate_text(turned, t.source_name)
            for t in read_progress(e2e.settings, "main").tables
        ),
        "the new predicates",
    )
    e2e.wait_until_caught_up()
    check(sample, turned)
