"""A cut-over that is undone without losing new writes, as an operator does it (scenarios 88 to 92, 115)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.simulation.patching import SourceEdit
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.waiting import eventually
from venus.adapters.dialects.postgresql.torture import COLUMNS
from venus.adapters.dialects.postgresql.torture import SETUP as TYPES
from venus.cli.probes import read_broker
from venus.config import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.2", "--wait", "120")

_SHOP = """
CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE,
    credit numeric(10, 2) DEFAULT 0 CHECK (credit >= 0), since timestamptz DEFAULT now(), note bytea);
CREATE TABLE orders (no serial PRIMARY KEY, customer bigint REFERENCES customer ON DELETE CASCADE, what varchar(12));
CREATE TABLE audited (what text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO audited VALUES (TG_OP); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION audit();
INSERT INTO customer (name, note) VALUES ('ann', '\\x00ff'), ('bob', NULL);
INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, NULL);
"""
CLOSED = psycopg2.errors.ReadOnlySqlTransaction


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(libpq(url))) as connection:
        connection.autocommit = True
        (cursor := connection.cursor()).execute(text)
        return cursor.fetchall() if cursor.description else []


class Pair:
    """Two databases with a pipeline between them."""

    def __init__(self, folder: Path, old: str, new: str) -> None:
        self.old, self.new = old, new
        self.pipeline = Pipeline(
            folder=folder,
            source=with_password(old),
            targets={"main": with_password(new)},
            source_options='exclude = ["audited"]',
        )

    def start(self, schema: str = _SHOP, *, in_one_process: bool = False) -> None:
        """Load the new database, and keep `venus sync` running, or `venus run`."""
        query(self.old, schema)
        self.pipeline.configure()
        self.pipeline.ask("install-triggers")
        if in_one_process:
            self.pipeline.start("sync", "run")
            self.pipeline.until_said("main: following", "the load")
            return
        self.pipeline.start_broker()
        self.pipeline.ask("migrate", "--target", "main")
        self.pipeline.start("sync", "sync")
        # a switch takes processes that are away for some seconds for absent
        self.pipeline.wait_until_connected("main")

    def rows(self, url: str, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a table as texts."""
        return query(url, f"SELECT t::text FROM {table} t ORDER BY 1")

    def is_equal(self) -> bool:
        """Return whether both databases have the same rows."""
        return all(self.rows(self.old, t) == self.rows(self.new, t) for t in ("customer", "orders"))

    def until_equal(self) -> None:
        """Wait until both databases have the same rows."""
        eventually(self.is_equal, lambda: self.pipeline.tail(), timeout_s=120.0, every_s=0.1)

    def writable(self) -> list[str]:
        """Return the databases that accept a write."""
        found = []
        for name, url in (("old", self.old), ("new", self.new)):
            try:
                query(url, "UPDATE orders SET what = what WHERE no = 1")
            except CLOSED:
                continue
            found.append(name)
        return found


@contextmanager
def open_pair(folder: Path, server: Server) -> Iterator[Pair]:
    """Make two databases, and drop them at the end."""
    old, new = server.create_database(), server.create_database()
    found = Pair(folder, old, new)
    try:
        yield found
    finally:
        found.pipeline.close()
        server.drop_database(old)
        server.drop_database(new)


@pytest.fixture
def pair(tmp_path: Path, postgres_server: Server) -> Iterator[Pair]:
    with open_pair(tmp_path, postgres_server) as found:
        yield found


@pytest.mark.parametrize("command", ["sync", "run"])
def test_a_switch_to_the_new_database_and_back(pair: Pair, command: str) -> None:
    pair.start(in_one_process=command == "run")
    pipeline = pair.pipeline
    rehearsal = pipeline.ask("cutover", "--target", "main", "--fall-back", "--rehearse", *QUIET)
    assert rehearsal["blocks"] == []
    found = pipeline.ask("cutover", "--target", "main", "--fall-back", *QUIET)["certificate"]
    assert found["equal"]
    assert pair.writable() == ["new"]

    query(pair.new, "INSERT INTO customer (name) VALUES ('carl')")
    query(pair.new, "INSERT INTO orders (customer, what) VALUES (3, 'there')")
    query(pair.new, "DELETE FROM customer WHERE name = 'bob'")
    pair.until_equal()
    assert query(pair.old, "SELECT count(*) FROM audited") == [(2,)]
    assert pipeline.ask("verify")["verdict"] == "same"
    assert re.search("cut over to main .* ago; the old database follows", pipeline.venus("status").out)
    back = pipeline.ask("fallback", *QUIET)["certificate"]
    assert back["equal"]
    assert pair.writable() == ["old"]
    query(pair.old, "INSERT INTO customer (name) VALUES ('dora')")
    query(pair.old, "INSERT INTO orders (customer, what) VALUES (4, 'back')")
    pair.until_equal()
    assert query(pair.old, "SELECT id FROM customer ORDER BY 1") == [(1,), (3,), (4,)]

    assert pipeline.stop("sync") == 0
    pipeline.ask("uninstall-triggers")
    assert pair.writable() == ["old", "new"]
    for url in (pair.old, pair.new):
        assert query(url, "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'venus%'") == [(0,)]


def cut_over(pair: Pair) -> Any:
    """Switch the application to the new database."""
    return pair.pipeline.ask("cutover", "--target", "main", "--fall-back", *QUIET)["certificate"]


def test_rows_that_cannot_come_back_are_reported_before_and_quarantined_after(pair: Pair) -> None:
    pair.start(
        _SHOP
        + "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);"
        + "ALTER TABLE orders ENABLE ALWAYS TRIGGER audit;"
    )
    pipeline = pair.pipeline
    said = pipeline.venus("cutover", "--target", "main", "--fall-back", *QUIET, code=3).err
    assert "public.made.twice is generated and cannot be written: changes could not come back" in said
    assert "ALTER TABLE orders ENABLE TRIGGER audit" in said
    assert pair.writable() == ["old", "new"]
    query(pair.old, "ALTER TABLE orders ENABLE TRIGGER audit; ALTER TABLE made ALTER twice DROP EXPRESSION")
    rehearsal = ("cutover", "--target", "main", "--fall-back", "--rehearse", *QUIET)
    pipeline.until(lambda: pipeline.venus(*rehearsal, code=(0, 3, 12)).code == 0, "capture to notice that")
    cut_over(pair)

    query(pair.new, "ALTER TABLE orders ADD COLUMN extra int DEFAULT 7")
    query(pair.new, "ALTER TABLE customer DROP CONSTRAINT customer_credit_check")
    query(pair.new, "INSERT INTO customer (name, credit) VALUES ('in debt', -1)")
    query(pair.new, "INSERT INTO orders (customer, what) VALUES (1, 'later')")
    pipeline.until(lambda: pair.rows(pair.old, "orders") == pair.rows(pair.new, "orders"), "the other table to follow")
    (waiting,) = pipeline.ask("quarantine", "list", "--target", "@source", code=1)["quarantine"]["@source"]
    assert (waiting["table"], "customer_credit_check" in waiting["message"]) == ("public.customer", True)
    said = pipeline.venus("fallback", *QUIET, code=3).err
    assert "quarantine" in said
    assert pair.writable() == ["new"]


def name_of(url: str) -> str:
    """Return the name of a database."""
    return url.rpartition("/")[2].partition("?")[0]


def copy_database(server: Server, url: str) -> str:
    """Copy a database without open sessions; return the copy's name."""
    copy = f"copy_of_{name_of(url)}"
    server.execute(f"CREATE DATABASE {copy} TEMPLATE {name_of(url)}")
    return copy


def restore_database(server: Server, url: str, copy: str) -> None:
    """Replace a database by its copy."""
    server.drop_database(url)
    server.execute(f"ALTER DATABASE {copy} RENAME TO {name_of(url)}")


def restore_new_database(pair: Pair, server: Server) -> list[tuple[Any, ...]]:
    """Cut over, and restore the new database from a backup that lacks a change; return the rows of the old one."""
    pair.start()
    cut_over(pair)
    query(pair.new, "INSERT INTO customer (name) VALUES ('in the backup')")
    pair.until_equal()
    (pipeline := pair.pipeline).stop("sync")
    backup = copy_database(server, pair.new)
    pipeline.start("sync", "sync")
    query(pair.new, "UPDATE customer SET name = 'after the backup' WHERE name = 'in the backup'")
    pair.until_equal()
    pipeline.stop("sync")
    before = pair.rows(pair.old, "customer")
    restore_database(server, pair.new, backup)
    pipeline.venus("install-triggers", "--moved")
    pipeline.start("sync", "sync")
    return before


def test_a_new_database_that_was_restored_overwrites_nothing(pair: Pair, postgres_server: Server) -> None:
    before = restore_new_database(pair, postgres_server)
    pipeline = pair.pipeline
    pipeline.until_said("was restored from a backup", "the restored database to be named")
    assert pair.rows(pair.old, "customer") == before
    assert not pair.is_equal()
    pipeline.ask("resync", "--all")
    pair.until_equal()
    assert pair.rows(pair.old, "customer") != before


@pytest.mark.slow
def test_without_the_guard_a_restored_database_overwrites_the_old_one(pair: Pair, postgres_server: Server) -> None:
    where, guard = "venus.adapters.upper.session:open_session", "and not claim.may_read_again()"
    pair.pipeline.edit_processes([SourceEdit(where=where, old=guard, new="and False")])
    before = restore_new_database(pair, postgres_server)
    pair.pipeline.until(lambda: pair.rows(pair.old, "customer") != before, "the rows to be overwritten")


def committed_changes(pair: Pair) -> dict[str, int]:
    """Return how many changes of each table the broker has ever committed."""
    found = read_broker(load(pair.pipeline.folder / "venus.toml")).committed_changes
    tables = query(pair.old, "SELECT name, table_id FROM venus.captured_table WHERE namespace = 'public'")
    return {name: found.get(number, 0) for name, number in tables}


def test_differences_at_the_switch_are_not_sent_to_the_old_database(pair: Pair) -> None:
    pair.start()
    query(pair.new, "ALTER TABLE orders ALTER what SET DEFAULT 'new'")
    cut_over(pair)
    query(pair.new, "INSERT INTO orders (customer) VALUES (1)")
    pair.until_equal()
    text = "SELECT adrelid::regclass::text, pg_get_expr(adbin, adrelid) FROM pg_attrdef d JOIN pg_attribute a"
    own = query(pair.old, f"{text} ON attrelid = adrelid AND attnum = adnum WHERE adrelid = 'orders'::regclass")
    assert own == [("orders", "nextval('orders_no_seq'::regclass)")]


def test_a_row_arrives_once_and_is_not_sent_back(pair: Pair) -> None:
    pair.start()
    cut_over(pair)
    before = committed_changes(pair)
    query(pair.new, "INSERT INTO customer (name) VALUES ('once')")
    pair.until_equal()
    query(pair.new, "INSERT INTO orders (customer, what) VALUES (1, 'behind it')")
    pair.until_equal()
    assert committed_changes(pair) == {name: n + 1 for name, n in before.items()}
    # the heartbeat's log may have a row of the time at which this database was captured
    for (number,) in query(pair.old, "SELECT table_id FROM venus.captured_table WHERE namespace = 'public'"):
        assert query(pair.old, f"SELECT count(*) FROM venus.l_{number:05}") == [(0,)]


def test_every_type_comes_back_byte_equal(pair: Pair) -> None:
    query(pair.new, ";".join(TYPES))
    pair.start(";".join((_SHOP, *TYPES, _torture_table(), _torture_rows(0))))
    assert pair.pipeline.venus("verify").code == 0
    before = pair.rows(pair.old, "torture")
    cut_over(pair)
    query(pair.new, _torture_rows(1000))
    query(pair.new, "UPDATE torture SET seen = seen + 1")
    eventually(lambda: pair.rows(pair.old, "torture") == pair.rows(pair.new, "torture"), timeout_s=60)
    assert len(pair.rows(pair.old, "torture")) == 2 * len(before)
    query(pair.new, "UPDATE torture SET seen = seen - 1; DELETE FROM torture WHERE id >= 1000")
    eventually(lambda: pair.rows(pair.old, "torture") == before, timeout_s=60)
    assert pair.pipeline.ask("fallback", *QUIET)["certificate"]["equal"]
    assert pair.rows(pair.old, "torture") == pair.rows(pair.new, "torture") == before


def _torture_table() -> str:
    columns = ", ".join(f"{name} {column.type}" for name, column in COLUMNS.items())
    return f"CREATE TABLE torture (id int PRIMARY KEY, seen int DEFAULT 0, {columns})"


def _torture_rows(first: int) -> str:
    values = [(name, expression) for name, column in COLUMNS.items() for expression, _ in column.values]
    return ";".join(f"INSERT INTO torture (id, {name}) VALUES ({first + n}, {x})" for n, (name, x) in enumerate(values))


def test_a_type_that_cannot_be_carried_back_is_refused_before_the_cut_over(pair: Pair) -> None:
    query(pair.old, _SHOP + "CREATE TABLE named (id int PRIMARY KEY, what regclass);")
    pair.pipeline.configure()
    said = pair.pipeline.venus("install-triggers", code=3)
    assert "regclass means something only inside its own database" in said.out + said.err


def test_rows_that_only_the_new_database_has_are_counted_before(pair: Pair) -> None:
    pair.start()
    pipeline = pair.pipeline
    query(
        pair.new,
        "CREATE TABLE invoice (id int PRIMARY KEY); INSERT INTO invoice VALUES (1), (2), (3);"
        "ALTER TABLE orders ADD COLUMN empty int, ADD COLUMN filled int;"
        "UPDATE orders SET filled = 5 WHERE no = 1; ALTER TABLE orders ADD CHECK (no > 0)",
    )
    command = ("cutover", "--target", "main", "--fall-back")
    rehearsal = pipeline.rehearse(*command, *QUIET)
    lost = {
        (f"{x['table']}.{x['column']}", x["kind"], x["rows"]) for x in rehearsal["certificate"]["could_not_come_back"]
    }
    assert lost == {
        ("public.invoice.", "table", 3),
        ("public.orders.empty", "column", 0),
        ("public.orders.filled", "column", 1),
        ("public.orders.", "constraint", None),
    }
    (block,) = rehearsal["blocks"]
    assert "public.orders.filled: only the database that takes over has this column (1 row now)" in block
    assert "add it to the other database first" in pipeline.venus(*command, *QUIET, code=3).err
    assert pair.writable() == ["old", "new"]
    query(pair.new, "ALTER TABLE orders DROP COLUMN filled")
    certificate = pipeline.venus(*command, *QUIET).out
    assert "public.invoice: only the database that takes over has this table" in certificate
    query(pair.new, "INSERT INTO orders (customer, what, empty) VALUES (1, 'more', 7)")
    pipeline.until(lambda: query(pair.old, "SELECT max(what) FROM orders") == [("more",)], "the new column to follow")
    assert query(pair.old, "SELECT empty FROM orders WHERE what = 'more'") == [(7,)]
    assert "public.invoice matches the patterns and is not captured" in pipeline.venus("fallback", *QUIET, code=3).err
    pipeline.ask("install-triggers")
    pipeline.until(lambda: query(pair.old, "SELECT to_regclass('invoice') IS NOT NULL") == [(True,)], "the new table")
    pipeline.until(lambda: len(pair.rows(pair.old, "invoice")) == 3, "its rows")
    said = pipeline.venus("fallback", *QUIET, code=3).err
    assert "check orders_no_check is missing" in said


def test_the_assessment_lists_the_obstacles_to_a_fall_back(pair: Pair) -> None:
    clerk = f"clerk_{name_of(pair.old)}"
    query(pair.old, _SHOP)
    pair.pipeline.configure()
    assert pair.pipeline.ask("assess")["fall_back"] == {"obstacles": [], "could_not_come_back": []}
    query(pair.old, "ALTER TABLE orders ENABLE ALWAYS TRIGGER audit")
    (obstacle,) = pair.pipeline.ask("assess")["fall_back"]["obstacles"]
    assert "ALTER TABLE orders ENABLE TRIGGER audit" in obstacle
    assert "forbidden by 1 of these" in pair.pipeline.venus("assess").out
    query(pair.old, f"CREATE ROLE {clerk} LOGIN; GRANT SELECT ON orders, customer TO {clerk}")
    pair.pipeline.source = pair.old.replace("//postgres@", f"//{clerk}@")
    pair.pipeline.configure()
    obstacles = "\n".join(pair.pipeline.ask("assess")["fall_back"]["obstacles"])
    query(pair.old, f"DROP OWNED BY {clerk}; DROP ROLE {clerk}")
    assert f"GRANT SET ON PARAMETER session_replication_role TO {clerk}" in obstacles


def test_an_old_database_that_is_away_stays_closed_to_writes(pair: Pair, postgres_server: Server) -> None:
    pair.start()
    cut_over(pair)
    name = name_of(pair.old)
    postgres_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    for options in (("--rehearse",), ()):
        said = pair.pipeline.venus("fallback", *options, *QUIET, code=75).err
        assert "not currently accepting connections" in said
    query(pair.new, "INSERT INTO customer (name) VALUES ('meanwhile')")
    postgres_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    pair.until_equal()
    assert pair.writable() == ["new"]


def test_an_old_database_that_was_changed_by_hand_is_refused(pair: Pair) -> None:
    pair.start()
    cut_over(pair)
    query(pair.old, "SET venus.follows = 'on'; UPDATE customer SET name = 'by hand' WHERE id = 1")
    for options in (("--rehearse",), ()):
        said = pair.pipeline.venus("fallback", *options, *QUIET, code=3)
        assert "public.customer is not the same everywhere" in said.out + said.err
    assert pair.writable() == ["new"]
    assert query(pair.old, "SELECT name FROM customer WHERE id = 1") == [("by hand",)]
    assert pair.pipeline.ask("verify", code=1)["verdict"] == "different"


def test_an_old_database_from_before_the_cut_over_is_refused(pair: Pair, postgres_server: Server) -> None:
    pair.start()
    pipeline = pair.pipeline
    pipeline.stop("sync")
    backup = copy_database(postgres_server, pair.old)
    pipeline.start("sync", "sync")
    cut_over(pair)
    pipeline.stop("sync")
    restore_database(postgres_server, pair.old, backup)
    before = pair.rows(pair.old, "customer")
    query(pair.new, "INSERT INTO customer (name) VALUES ('later')")
    said = pipeline.venus("fallback", *QUIET, code=3).err
    assert "a database was restored from a backup or replaced, and nothing is written to either" in said
    assert any("was restored from a backup or replaced" in p for p in pipeline.status()["problems"])
    assert pair.rows(pair.old, "customer") == before
