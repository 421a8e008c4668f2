"""Cases from public bug reports (field_cases/*.sql): each is run live, change by change, and as one cut.

In the end each table equals the source, compared row by row by the test itself; or VENUS names it with a remedy, and it
is equal once that is applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.brokers.feed import query
from tests.support.databases.field_cases import FieldSource, mariadb_source, postgres_source, read_case, sqlite_source
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.control import read_progress
from venus.errors import Refused

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: Tables that need a remedy, and the reason with which VENUS names them. All other tables must be equal.
SWAPPED = r"venus_i_\d+, .*: run `venus install-triggers`"
NAMED: dict[str, dict[str, str]] = {
    "03": {"price": SWAPPED},
    "11": {
        "acct": SWAPPED,
        "one": SWAPPED,
        "two": SWAPPED,
        "acct_shadow": "the table is gone: dropped or renamed",
    },
}
#: Tables that the changes create; the next `venus install-triggers` captures them.
NEW = {"05": {"reading_q2"}}
#: Objects that a target needs before the source's tables can be created there.
TARGET_FIRST = {"01": 3}
CASES = [f"{number:02}" for number in range(1, 12)]


class FieldRun:
    """A case with its source and a PostgreSQL target."""

    def __init__(self, name: str, source: FieldSource, e2e: EndToEnd) -> None:
        self.case, self.source, self.e2e = read_case(name), source, e2e
        self.named, self.new = NAMED.get(name, {}), NEW.get(name, set())

    def begin(self) -> None:
        """Install, load and start; wait until the target has everything."""
        self.e2e.install()
        self.e2e.load()
        self.e2e.start()
        self.e2e.wait_until_caught_up()

    def reasons(self) -> dict[str, str]:
        """Return the reasons why tables are not active at the source or at the target, by table."""
        with closing(open_source(self.e2e.settings)) as opened:
            at_source = [(t.schema.name, t.state, t.reason) for t in opened.registry.read_registered_tables()]
        at_target = [(t.name, t.state, t.reason) for t in read_progress(self.e2e.settings, "main").tables]
        return {name: reason for name, state, reason in (*at_target, *at_source) if state != "ACTIVE"}

    def change(self, *, live: bool) -> None:
        """Make the changes; after each `live` one, capture and apply work on what has arrived."""
        in_transaction = False
        for text in self.case.changes:
            self.source.run(text)
            in_transaction = text == "BEGIN" or (in_transaction and text != "COMMIT")
            if live and not in_transaction:
                self.e2e.until(lambda: self.e2e.has_caught_up() or self.reasons(), f"the target behind {text}")

    def find_differences(self) -> dict[str, str]:
        """Return the tables that differ from the source, with the rows that only one side has."""
        found = {}
        for namespace, name in self.source.tables():
            if name in self.new:
                continue
            here = self.source.rows(namespace, name)
            try:
                there = self.source.rows_at(self.e2e.target, namespace, name)
            except (psycopg2.errors.UndefinedColumn, psycopg2.errors.UndefinedTable) as error:
                found[name] = str(error)
                continue
            if here != there:
                found[name] = f"{set(here) - set(there)} only here, {set(there) - set(here)} only there"
        return found

    def is_as_expected(self) -> bool:
        """Return whether exactly the expected tables are named, and all others are equal."""
        reasons = self.reasons()
        words = {name: re.search(said, reasons.get(name, "")) is not None for name, said in self.named.items()}
        return (
            all(words.values()) and set(reasons) == set(self.named) and set(self.find_differences()) <= set(self.named)
        )

    def apply_remedies(self) -> None:
        """Run `venus install-triggers`, then `venus resync` for each named table that still exists."""
        self.e2e.install()
        with closing(open_source(self.e2e.settings)) as opened:
            there = set(opened.dictionary.read_table_names())
            for table in opened.registry.read_registered_tables():
                if table.schema.name in self.named and table.schema.qualified_name in there:
                    opened.capture.restart_fill(table.schema.table_id)


@pytest.fixture
def field_run(request: pytest.FixtureRequest, case: str, tmp_path: Path, second_database: str) -> Iterator[FieldRun]:
    with ExitStack() as stack:
        if read_case(case).make == "pg":
            source = stack.enter_context(postgres_source(request.getfixturevalue("database")))
        else:
            url = request.getfixturevalue("mariadb_database")
            source = stack.enter_context(mariadb_source(request.getfixturevalue("mariadb_server"), url))
        options: dict[str, Any] = {"tables": ["*.*"]} if source.cast else {}
        for number, text in enumerate(read_case(case).setup):
            source.run(text)
            if number < TARGET_FIRST.get(case, 0):
                query(second_database, text)
        e2e = stack.enter_context(end_to_end(tmp_path, source.url, second_database, **options))
        yield FieldRun(case, source, e2e)


@pytest.mark.parametrize("live", [True, False], ids=["live", "one-cut"])
@pytest.mark.parametrize("case", CASES)
def test_a_case_from_the_field_is_carried_or_named_with_a_remedy(case: str, live: bool, field_run: FieldRun) -> None:
    field_run.begin()
    assert field_run.find_differences() == {}
    if not live:
        field_run.e2e.stop("capture")
    field_run.change(live=live)
    if not live:
        field_run.e2e.start("capture")
    try:
        field_run.e2e.until(field_run.is_as_expected, "the case to end as expected")
    except AssertionError:
        raise AssertionError(f"{field_run.reasons()}, different: {field_run.find_differences()}") from None
    if field_run.named:
        field_run.apply_remedies()
        gone = {name for name, why in field_run.named.items() if "is gone" in why}
        field_run.e2e.until(
            lambda: not field_run.find_differences() and set(field_run.reasons()) == gone, "the way out"
        )


#: The rows of case 12 whose values fit no type after its changes.
CORRECTED = [
    ("1", "short", "2026-01-01 10:00:00", "true", "1.5", "text", "9223372036854775807"),
    ("2", "fine", "2026-01-02 11:00:00", "false", "12.5", "x", "2"),
    ("3", None, "2026-01-03 00:00:00", "true", "2", None, "7"),
    ("4", "", None, None, "3", None, None),
    ("5", "ok", "2026-01-01 10:00:00.123", "false", "0.1", None, "-1"),
]
JOB = "SELECT id::text, title, at::text, done::text, amount::text, anything, big::text FROM public.job ORDER BY id"
UNTYPED, TYPED = "anything,", "anything TEXT,"


def test_a_column_without_a_type_and_values_that_fit_none_are_refused_before_the_load(
    tmp_path: Path, second_database: str
) -> None:
    case = read_case("12")
    with sqlite_source(tmp_path / "app.db") as source, end_to_end(tmp_path, source.url, second_database) as e2e:
        for text in case.setup:
            source.run(text)
        with pytest.raises(Refused, match="column anything: its declaration names no type") as untyped:
            e2e.install()
        assert "declare a type" in untyped.value.hint
        source.run("ALTER TABLE job RENAME TO before")
        source.run(case.setup[0].replace(UNTYPED, TYPED))
        source.run("INSERT INTO job SELECT * FROM before")
        source.run("DROP TABLE before")
        with pytest.raises(Refused, match=r"column title \(VARCHAR\(5\)\): 1 of 4 rows"):
            e2e.install()
        with closing(open_source(e2e.settings)) as opened:
            blocking = [f for f in opened.installer.check(["*"], []) if f.blocks]
        named = [re.findall(r"column (\w+) .* cannot be carried exactly", f.message) for f in blocking]
        assert named == [["title"], ["at"], ["amount"], ["anything"], ["big"]]
        assert all("correct the values" in f.remedy for f in blocking)
        for text in case.changes:
            source.run(text)
        e2e.install()
        e2e.load()
        assert query(second_database, JOB) == CORRECTED


@pytest.mark.parametrize("live", [True, False], ids=["live", "one-cut"])
def test_a_row_that_fits_no_type_arrives_once_it_is_corrected(live: bool, tmp_path: Path, second_database: str) -> None:
    case = read_case("12")
    with sqlite_source(tmp_path / "app.db") as source, end_to_end(tmp_path, source.url, second_database) as e2e:
        source.run(case.setup[0].replace(UNTYPED, TYPED))
        source.run(case.setup[1])
        run = FieldRun("12", source, e2e)
        run.begin()
        if not live:
            e2e.stop("capture")
        for text in case.setup[2:]:
            source.run(text)
        if not live:
            e2e.start("capture")
        e2e.until(run.reasons, "the table to halt")
        assert re.search(r"job.*(id|row).*2.*title", str(run.reasons())), run.reasons()
        assert query(second_database, JOB) == CORRECTED[:1]
        for text in case.changes:
            source.run(text)
        e2e.until(lambda: query(second_database, JOB) == CORRECTED and not run.reasons(), "the corrected rows")
