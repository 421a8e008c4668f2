"""A source of each dialect with tables that are hard to compare, and its pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.places import MariaPlace, Place, PostgresPlace, SqlitePlace
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end

ROWS = 600
#: An integer key, a text key, and a key of both; the first table has columns of many types.
TABLES = {
    "item": "CREATE TABLE item (id {int} NOT NULL PRIMARY KEY, name varchar(40), price {decimal}, rate {float},"
    " at {moment}, ok boolean, photo {blob}, note {text})",
    "word": "CREATE TABLE word (w varchar(60) NOT NULL PRIMARY KEY, n {int})",
    "line": "CREATE TABLE line (no {int} NOT NULL, pos varchar(10) NOT NULL, amount {decimal}, PRIMARY KEY (no, pos))",
}
_TYPES = {
    "postgresql": {"float": "double precision", "moment": "timestamp"},
    "sqlite": {"float": "REAL", "moment": "TIMESTAMP"},
    "mysql": {"float": "double", "moment": "datetime(6)"},
}
_NAMES = ("", "O'Brien", "tab\there", "back\\slash", "line\nbreak", "🍀 ünï", "\x1f\x1e", " x ", "NULL", "12:ab")


@dataclass
class VerifiedSource:
    """A source with the tables of this suite, and the pipeline to its target."""

    place: Place
    e2e: EndToEnd

    def run(self, *statements: str) -> None:
        """Execute statements of the application in one transaction."""
        with closing(self.place.connect()) as app:
            for statement in statements:
                app.execute(statement)
            app.commit()

    def bypass(self, *statements: str) -> None:
        """Write without a trace: remove the triggers' log rows before capture can read them."""
        if isinstance(self.place, PostgresPlace):
            self.run("SET LOCAL session_replication_role = replica", *statements)
            return
        self.e2e.until(lambda: not self.e2e.log_rows(), "the log to be empty")
        self.e2e.stop("capture")
        with closing(self.place.connect()) as app:
            before = {log: app.execute(f"SELECT coalesce(max(seq), 0) FROM {log}")[0][0] for log in self.logs()}
            for statement in statements:
                app.execute(statement)
            for log, last in before.items():
                app.execute(f"DELETE FROM {log} WHERE seq > {last}")
            app.commit()
        self.e2e.start("capture")

    def logs(self) -> list[str]:
        """Return the names of the log tables, if the source has them beside the application's tables."""
        from venus.adapters.dialects.registry import open_source

        with closing(open_source(self.e2e.settings)) as source:
            return [f"venus_l_{t.schema.table_id:05}" for t in source.registry.read_registered_tables()]


def fill(place: Place) -> None:
    """Make the tables and their rows."""
    types = {**place.types, **_TYPES[place.dialect]}
    with closing(place.connect()) as app:
        for statement in TABLES.values():
            app.execute(statement.format(**types))
        for n in range(1, ROWS + 1):
            name = f"{_NAMES[n % len(_NAMES)]}{n}" if n % 11 else None
            app.execute(
                "INSERT INTO item (id, name, price, rate, at, ok, photo, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                n * 7,
                name,
                f"{n}.{n % 100:02}" if n % 13 else None,
                n / 7,
                f"2024-02-29 12:00:00.{n:06}",
                bool(n % 2),
                bytes([n % 256, 0, 255]),
                None if n % 3 else "long " * (n % 50),
            )
            app.execute("INSERT INTO word (w, n) VALUES (?, ?)", f"wörd {n} {_NAMES[n % len(_NAMES)]}.", n)
            app.execute("INSERT INTO line (no, pos, amount) VALUES (?, ?, ?)", n // 4, f"p{n % 4}", f"{n}.50")
        app.commit()


@pytest.fixture(params=["postgresql", "sqlite", "mariadb"])
def sample(request: pytest.FixtureRequest, tmp_path: Path, second_database: str) -> Iterator[VerifiedSource]:
    place: Place
    if request.param == "sqlite":
        place = SqlitePlace(path=tmp_path / "app.db")
        url = f"sqlite:///{place.path}"
    elif request.param == "mariadb":
        url = request.getfixturevalue("mariadb_exact_database")
        place = MariaPlace(server=request.getfixturevalue("mariadb_server"), url=url)
    else:
        url = request.getfixturevalue("database")
        place = PostgresPlace(server=request.getfixturevalue("postgres_server"), url=url)
    fill(place)
    with end_to_end(tmp_path, url, second_database) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.wait_until_caught_up()
        yield VerifiedSource(place, e2e)
