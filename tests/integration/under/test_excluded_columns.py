"""Columns excluded by [source.columns], from each source, in every step: capture, load, comparison, certificate."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys, end_to_end, run_at
from venus.adapters.cutover.run import CutoverRequest, run_cutover
from venus.adapters.dialects.contract import Source as OpenSource
from venus.adapters.dialects.registry import open_source
from venus.cli.install import find_refused_tables
from venus.config import ColumnsSettings
from venus.errors import Refused

pytestmark = pytest.mark.integration

HEAD = {"venus": "x", "made_at": "now", "made_by": "me", "source_url": "s", "target_url": "t"}
WISH = CutoverRequest(quiet_s=0.2, wait_s=120.0, head=HEAD)
#: For each dialect: the type of the excluded column, and two of its values.
ODD = {"postgresql": ("odd", "'(1,x)'"), "sqlite": ("", "x'00ff'"), "mariadb": ("point", "point(1, 2)")}
TABLES = (
    "CREATE TABLE maker (id int NOT NULL PRIMARY KEY, name varchar(20))",
    "CREATE TABLE item (id int NOT NULL PRIMARY KEY, name varchar(20), odd {odd}, maker int, secret int,"
    " CONSTRAINT item_maker FOREIGN KEY (maker) REFERENCES maker (id), CONSTRAINT item_secret CHECK (secret <> id))",
    "CREATE INDEX item_by_secret ON item (secret, name)",
    "CREATE INDEX item_by_name ON item (name)",
    "INSERT INTO maker VALUES (1, 'a')",
    "INSERT INTO item VALUES (1, 'x', {value}, 1, 5)",
    "INSERT INTO item VALUES (2, 'y', NULL, 1, 6)",
)
EXCLUDE = ("item.odd", "*.item.maker", "item.secret")


@dataclass
class DialectSource:
    """A source of one dialect, and a function that executes statements there."""

    dialect: str
    url: str
    do: Callable[..., Any]


@pytest.fixture(params=["postgresql", "sqlite", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> DialectSource:
    if request.param == "sqlite":
        file = tmp_path / "app.db"

        def in_file(*statements: str) -> None:
            with closing(sqlite3.connect(file, isolation_level=None)) as connection:
                for text in statements:
                    connection.execute(text)

        return DialectSource("sqlite", f"sqlite:///{file}", in_file)
    if request.param == "mariadb":
        server: MariaServer = request.getfixturevalue("mariadb_server")
        url: str = request.getfixturevalue("mariadb_database")
        name = sqlalchemy.make_url(url).database

        def at_server(*statements: str) -> None:
            with closing(server.connect(name, autocommit=True)) as connection, connection.cursor() as cursor:
                for text in statements:
                    cursor.execute(text)

        return DialectSource("mariadb", url, at_server)
    url = request.getfixturevalue("database")
    run_at(url, "CREATE TYPE odd AS (a int, b text)")
    return DialectSource("postgresql", url, lambda *statements: run_at(url, *statements))


@pytest.fixture
def e2e(place: DialectSource, tmp_path: Path, second_database: str) -> Iterator[EndToEnd]:
    odd, value = ODD[place.dialect]
    place.do(*(text.format(odd=odd, value=value) for text in TABLES))
    with end_to_end(tmp_path, place.url, second_database) as made:
        yield made


def exclude_columns(e2e: EndToEnd, *patterns: str) -> None:
    source = e2e.settings.source.model_copy(update={"columns": ColumnsSettings(exclude=patterns)})
    e2e.settings = e2e.settings.model_copy(update={"source": source})


def use_source(e2e: EndToEnd, use: Callable[[OpenSource], Any]) -> Any:
    with closing(open_source(e2e.settings)) as source:
        return use(source)


def columns(e2e: EndToEnd) -> list[str]:
    (namespace,) = query(e2e.target, "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'item'")[0]
    return [
        row[0]
        for row in query(
            e2e.target,
            "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
            f" AND attrelid = '{namespace}.item'::regclass ORDER BY attnum",
        )
    ]


def test_excluded_columns_are_not_carried_and_the_certificate_names_them(e2e: EndToEnd, place: DialectSource) -> None:
    exclude_columns(e2e, *EXCLUDE)
    e2e.install()
    e2e.load()
    e2e.start()
    place.do("UPDATE item SET secret = 7 WHERE id = 1", "UPDATE item SET name = 'z' WHERE id = 2")
    place.do("INSERT INTO item (id, name) VALUES (3, 'new')", "DELETE FROM item WHERE id = 1")
    e2e.wait_until_caught_up()
    assert columns(e2e) == ["id", "name"]
    assert difference_keys(e2e.verify()) == set()
    certificate = run_cutover(e2e.settings, "main", WISH).certificate
    assert certificate is not None
    said = "\n".join(certificate["left_out"])
    for what in ("column odd", "column maker", "column secret", "index item_by_secret", "constraint item_secret"):
        assert what in said
    assert "foreign key" in said
    assert "item_by_name" not in said


def test_a_column_excluded_later_is_kept_at_the_target_and_one_included_again_is_read(
    e2e: EndToEnd, place: DialectSource
) -> None:
    exclude_columns(e2e, "item.odd")
    e2e.install()
    e2e.load()
    e2e.start()
    e2e.wait_until_caught_up()
    e2e.stop("capture")
    exclude_columns(e2e, "item.odd", "item.secret")
    e2e.start("capture")
    place.do("UPDATE item SET secret = 8, name = 'b' WHERE id = 1")
    e2e.wait_until_caught_up()
    assert query(e2e.target, f"SELECT name, secret FROM {item(e2e)} WHERE id = 1") == [("b", 5)]
    assert difference_keys(e2e.verify()) == set()
    e2e.stop("capture")
    exclude_columns(e2e, "item.odd")
    e2e.start("capture")
    e2e.until(lambda: query(e2e.target, f"SELECT secret FROM {item(e2e)} WHERE id = 1") == [(8,)], "it to be read")
    e2e.wait_until_caught_up()
    assert difference_keys(e2e.verify()) == set()


def item(e2e: EndToEnd) -> str:
    return str(query(e2e.target, "SELECT oid::regclass::text FROM pg_class WHERE relname = 'item'")[0][0])


def test_excluding_a_key_column_or_an_unknown_column_is_refused(e2e: EndToEnd, place: DialectSource) -> None:
    exclude_columns(e2e, "item.odd", "item.id", "item.nothing")
    with pytest.raises(Refused, match=r"\[source.columns\]: 'item.nothing' matches no column of a captured table"):
        use_source(e2e, lambda source: find_refused_tables(source, e2e.settings))
    exclude_columns(e2e, "item.odd", "item.id")
    (line,) = use_source(e2e, lambda source: find_refused_tables(source, e2e.settings)).values()
    assert ".item: refused: " in line
    assert "key" in line


def run_in_sqlite(tmp_path: Path, *statements: str) -> str:
    """Execute statements in a SQLite file; return its URL."""
    with closing(sqlite3.connect(tmp_path / "job.db", isolation_level=None)) as connection:
        for text in statements:
            connection.execute(text)
    return f"sqlite:///{tmp_path / 'job.db'}"


def test_a_column_without_a_type_is_named_with_rows_and_values_and_can_be_excluded(
    tmp_path: Path, second_database: str
) -> None:
    url = run_in_sqlite(
        tmp_path,
        "CREATE TABLE job (id INTEGER PRIMARY KEY, title TEXT, anything)",
        "INSERT INTO job VALUES (1, 'a', 'text'), (2, 'b', x'00ff'), (3, 'c', 5), (4, 'd', NULL)",
    )
    with end_to_end(tmp_path, url, second_database) as e2e:
        (finding,) = [f for f in use_source(e2e, lambda source: source.installer.check(["*"], [])) if f.blocks]
        assert finding.details == ("row id=2: blob X'00FF'", "row id=3: integer 5", "row id=1: text 'text'")
        assert "exclude the column in [source.columns] exclude" in finding.remedy
        exclude_columns(e2e, "job.anything")
        assert not [f for f in use_source(e2e, lambda source: source.installer.check(["*"], [])) if f.blocks]
        e2e.install()
        e2e.load()
        assert query(second_database, "SELECT * FROM job ORDER BY id") == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_a_table_that_halts_at_a_value_continues_without_its_column(tmp_path: Path, second_database: str) -> None:
    url = run_in_sqlite(
        tmp_path,
        "CREATE TABLE job (id INTEGER PRIMARY KEY, title TEXT, anything)",
        "INSERT INTO job VALUES (1, 'a', 'x')",
    )
    with end_to_end(tmp_path, url, second_database) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        run_in_sqlite(tmp_path, "INSERT INTO job VALUES (2, 'b', x'00ff')")

        def reasons() -> list[str]:
            return [
                t.reason
                for t in use_source(e2e, lambda source: source.registry.read_registered_tables())
                if t.state == "PAUSED"
            ]

        e2e.until(reasons, "the table to halt")
        assert "row id=2: column anything: " in reasons()[0]
        assert "00ff" in reasons()[0]
        e2e.stop("capture")
        exclude_columns(e2e, "job.anything")
        e2e.start("capture")
        e2e.wait_until_caught_up()
        assert reasons() == []
        assert query(second_database, "SELECT id, title, anything FROM job ORDER BY id") == [
            (1, "a", "x"),
            (2, "b", None),
        ]
        assert difference_keys(e2e.verify()) == set()
