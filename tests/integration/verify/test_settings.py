"""Values arrive equal under all settings of databases and roles, by load, by stream, and for `venus verify`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy

from tests.conformance.places import PostgresPlace
from tests.integration.verify.test_torture import insert
from tests.support.databases.postgres import Server, running_server
from tests.support.pipelines.end_to_end import difference_keys, end_to_end, run_at
from tests.support.processes.lifetimes import new_folder
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.control import read_table_states
from venus.adapters.verify.findings import ComparisonVerdict
from venus.adapters.verify.repair import run_repair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

#: A locale in which $1.234,00 is a number, so that $12.34 is read as a hundred times as much; like es_AR, but common.
LANGUAGE = "pesos"
LC_MONETARY = """
comment_char %
escape_char /
LC_MONETARY
int_curr_symbol "ARS "
currency_symbol "$"
mon_decimal_point ","
mon_thousands_sep "."
mon_grouping 3;3
positive_sign ""
negative_sign "-"
int_frac_digits 2
frac_digits 2
p_cs_precedes 1
p_sep_by_space 1
n_cs_precedes 1
n_sep_by_space 1
p_sign_posn 1
n_sign_posn 1
END LC_MONETARY
"""
#: Settings of VENUS's sessions, and the values of a database or role. The server has no XML support: xmloption can be
#: set there, but has no effect.
SETTINGS = {
    "DateStyle": ("ISO, YMD", "German, DMY"),
    "IntervalStyle": ("postgres", "sql_standard"),
    "TimeZone": ("UTC", "Asia/Kolkata"),
    "extra_float_digits": ("1", "-15"),
    "bytea_output": ("hex", "escape"),
    "xmloption": ("content", "document"),
    "lc_monetary": ("C", "POSIX"),
    "array_nulls": ("on", "off"),
    "standard_conforming_strings": ("on", "off"),
    "quote_all_identifiers": ("off", "on"),
    "client_encoding": ("UTF8", "LATIN1"),
    "row_security": ("off", "on"),
}
#: Settings that VENUS does not change.
OTHERS = {
    "backslash_quote": "off",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
    "default_text_search_config": "pg_catalog.german",
    "timezone_abbreviations": "India",
    "default_transaction_isolation": "serializable",
    "plpgsql.variable_conflict": "use_column",
    "plpgsql.extra_errors": "all",
}
STRINGS = (r"C:\new\table \\ 'x' \\x41", "\\")


def change(url: str, settings: dict[str, str], *, role: bool = False) -> None:
    """Set parameters for new sessions of a database, or of a role in it."""
    name = sqlalchemy.make_url(url).database
    whose = f"ROLE postgres IN DATABASE {name}" if role else f"DATABASE {name}"
    run_at(url, *(f"ALTER {whose} SET {key} = {value!r}" for key, value in settings.items()))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server that has the locale."""
    if not shutil.which("localedef"):
        pytest.skip("no localedef")
    home = new_folder("pg-money-")
    home.chmod(0o755)  # the server runs as another operating system user
    (home / "source").write_text(LC_MONETARY)
    made = subprocess.run(["localedef", "-c", "-i", home / "source", home / LANGUAGE], capture_output=True, check=False)
    if not (home / LANGUAGE / "LC_MONETARY").exists():
        pytest.skip(f"localedef makes no language: {made.stderr.decode()[-200:]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "LOCPATH", str(home))
        with running_server(home / "data") as started:
            yield started
    shutil.rmtree(home)


@pytest.fixture
def ends(server: Server) -> Iterator[tuple[str, str]]:
    urls = server.create_database(), server.create_database()
    yield urls
    for url in urls:
        server.drop_database(url)


def test_rows_are_equal_at_ends_with_other_settings(ends: tuple[str, str], server: Server, tmp_path: Path) -> None:
    source, target = ends
    place = PostgresPlace(server=server, url=source)
    columns, setup = place.torture()
    numbers = count(1)
    hostile = {name: other for name, (_, other) in SETTINGS.items()} | OTHERS | {"lc_monetary": LANGUAGE}
    # existing sessions keep their old settings
    with closing(place.connect()) as app, closing(PostgresPlace(server=server, url=target).connect()) as there:
        for statement in setup:
            app.execute(statement)
        spelled = ", ".join(f"{name} {column.type}" for name, column in columns.items())
        app.execute(f"CREATE TABLE torture (id int PRIMARY KEY, {spelled}, plain text DEFAULT 'a', fee money)")
        app.execute("ALTER TABLE torture ADD CHECK (fee < '$99,999.99'::money), ALTER fee SET DEFAULT '$12.34'::money")
        app.execute("CREATE TABLE keyed (k text[] PRIMARY KEY, price money)")
        app.execute("INSERT INTO keyed VALUES ('{a,NULL}', '$1.50'), ('{a,\"NULL\"}', '$2.50'), ('{z,NULL}', '$3.50')")
        app.execute("CREATE EXTENSION vector")
        app.execute("CREATE TABLE shapes (k vector(2) PRIMARY KEY, v int)")
        app.execute("INSERT INTO shapes VALUES ('[1,2]', 1), ('[3,4]', 1)")
        insert(app, place, numbers)
        run_at(target, "CREATE EXTENSION vector", *(s for s in setup if s.startswith("CREATE TYPE pair")))
        change(source, hostile | {"lc_monetary": "C"})
        change(target, hostile, role=True)
        with end_to_end(tmp_path, source, target) as e2e:
            e2e.install()
            e2e.load()
            e2e.start()
            insert(app, place, numbers)
            e2e.wait_until_caught_up()
            # few rows are written by statements, and by the application's own session
            app.execute("UPDATE torture SET plain = ? WHERE id < 5", STRINGS[0])
            app.execute("DELETE FROM keyed WHERE k = '{a,NULL}'")
            app.execute("INSERT INTO keyed VALUES ('{q,NULL,\"NULL\"}', '-$1,234.56')")
            app.commit()
            run_at(source, "UPDATE torture SET id = -id WHERE id > 5 AND (c_bytea IS NOT NULL OR c_text IS NOT NULL)")
            e2e.wait_until_caught_up()
            for table in ("torture", "keyed", "shapes"):
                query = f"SELECT t::text FROM {table} t ORDER BY 1"
                assert there.execute(query) == app.execute(query)
                there.commit()
            for leg in ("ends", "all"):
                same = e2e.verify(leg=leg)
                assert (difference_keys(same), same.verdict) == (set(), ComparisonVerdict.SAME)
            there.execute("DELETE FROM keyed WHERE price < '0'::money")
            there.execute("UPDATE torture SET fee = '1' WHERE id = 1")
            there.execute("UPDATE shapes SET v = 2 WHERE k = '[3,4]'")
            there.commit()
            wrong = e2e.verify()
            assert {table for table, *_ in difference_keys(wrong)} == {"keyed", "torture", "shapes"}
            assert run_repair(e2e.settings, "main", wrong, wait_s=60).left == []


def test_a_target_with_a_policy_that_hides_rows_applies_no_change(
    postgres_server: Server, database: str, second_database: str, tmp_path: Path
) -> None:
    run_at(database, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1), (20)")
    name = sqlalchemy.make_url(second_database).database
    run_at(
        second_database,
        "CREATE ROLE applier LOGIN",
        f"GRANT ALL ON DATABASE {name} TO applier",
        "GRANT ALL ON SCHEMA public TO applier",
        "CREATE TABLE item (id int PRIMARY KEY)",
        "GRANT ALL ON item TO applier",
    )
    try:
        with end_to_end(tmp_path, database, postgres_server.url(str(name), user="applier")) as e2e:
            e2e.install()
            e2e.load()
            run_at(second_database, "ALTER TABLE item ENABLE ROW LEVEL SECURITY")
            run_at(second_database, "CREATE POLICY low ON item USING (id < 10)")
            run_at(database, "DELETE FROM item WHERE id = 20")
            e2e.start()
            e2e.until(lambda: read_table_states(e2e.settings, "main")[0].state == "HALTED", "the halt")
            assert "row-level security policy" in read_table_states(e2e.settings, "main")[0].reason
    finally:
        run_at(second_database, "DROP OWNED BY applier", "DROP ROLE applier")


@pytest.mark.parametrize("role", [False, True], ids=["database", "role"])
@pytest.mark.parametrize("kind", [PostgresConnection, TargetSession])
def test_text_has_the_same_meaning_in_every_session(
    kind: type[PostgresConnection | TargetSession], role: bool, database: str
) -> None:
    change(database, {name: other for name, (_, other) in SETTINGS.items()} | OTHERS, role=role)
    with closing(kind(f"{database}&options=-cwork_mem%3D1234", application="test")) as session:
        names = list(SETTINGS)
        query = "SELECT n, current_setting(n) FROM unnest(%s) n"
        assert dict(session.rows(query, [names])) == {name: ours for name, (ours, _) in SETTINGS.items()}
        assert session.rows("SELECT current_setting('work_mem')") == [("1234kB",)]
        # the text that psycopg2 writes, and the text that the server reads
        values = (*STRINGS, *(s.encode() for s in STRINGS))
        (read,) = session.rows("SELECT %s, %s, %s::bytea, %s::bytea", values)
        assert tuple(v if isinstance(v, str) else v.tobytes().decode() for v in read) == STRINGS * 2


@pytest.mark.parametrize(("given", "had"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_acknowledged_changes_are_on_the_targets_disk(given: str, had: str, database: str) -> None:
    """The broker no longer has an acknowledged change, so a crash of the target must not lose it."""
    change(database, {"synchronous_commit": given}, role=True)
    with closing(TargetSession(database, application="test")) as session:
        assert session.rows("SHOW synchronous_commit") == [(had,)]
        session.run("SET synchronous_commit = off")  # as at the end of a load
        session.commit_durably()
        assert session.rows("SHOW synchronous_commit") == [(had,)]
