"""From Oracle to PostgreSQL and back without losing new writes, as an operator does it.

The old database is the stand-in (tests/support/oracle/standin.py), not an Oracle.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.support.databases.mariadb import ORACLE_MODE, running_mariadb
from tests.support.databases.postgres import Server
from tests.support.oracle.standin import DICTIONARY, SCHEMA
from tests.support.pipelines.held_steps import build_steps, choose_steps, kill_and_complete, kill_at_step, start_pair
from tests.support.pipelines.old_databases import OraclePair
from tests.support.pipelines.pipeline import with_password
from tests.support.pipelines.switched_application import query
from tests.support.pipelines.switched_pair import BACK, FORWARD, QUIET, run_statements
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_SHOP = """
CREATE SEQUENCE "ISEQ$$_CUSTOMER" START WITH 3 INCREMENT BY 1 MINVALUE 1 NOCYCLE CACHE 20;
CREATE TABLE CUSTOMER (ID NUMBER(18) DEFAULT NEXTVAL("ISEQ$$_CUSTOMER") PRIMARY KEY,
    NAME VARCHAR2(80) NOT NULL UNIQUE, CREDIT NUMBER(10, 2) DEFAULT 0, "since" DATETIME(6), BORN DATE,
    CODE CHAR(4), PHOTO BLOB, STORY CLOB, TOKEN RAW(16), "Nick" VARCHAR2(20));
CREATE SEQUENCE "ISEQ$$_ORDERS" START WITH 3 INCREMENT BY 1 MINVALUE 1 NOCYCLE CACHE 20;
CREATE TABLE ORDERS (ID NUMBER(9) DEFAULT NEXTVAL("ISEQ$$_ORDERS") PRIMARY KEY, CUSTOMER NUMBER(18),
    WHAT VARCHAR2(12), CONSTRAINT PLACED FOREIGN KEY (CUSTOMER) REFERENCES CUSTOMER (ID) ON DELETE CASCADE);
CREATE SEQUENCE INVOICE_SEQ START WITH 7 INCREMENT BY 1 MINVALUE 1 NOCYCLE NOCACHE;
INSERT INTO CUSTOMER (ID, NAME, BORN, CODE, PHOTO, STORY, TOKEN, "Nick")
    VALUES (1, 'ann', '1970-01-02 03:04:05', 'ab', x'00ff', 'a story', x'000102030405060708090a0b0c0d0e0f', 'annie');
INSERT INTO CUSTOMER (ID, NAME) VALUES (2, 'bob');
INSERT INTO ORDERS VALUES (1, 1, 'a');
INSERT INTO ORDERS VALUES (2, 2, NULL);
CREATE TABLE PROBE (N NUMBER(18) PRIMARY KEY);
INSERT INTO PROBE VALUES (1);
"""


class ShopPair(OraclePair):
    """A pair with the tables of the shop."""

    def is_equal(self) -> bool:
        """Return whether both databases have the same rows."""
        queries = (
            'SELECT id, name, credit, "since", born, code, photo, story, token, "Nick" FROM CUSTOMER ORDER BY 1',
            "SELECT * FROM ORDERS ORDER BY 1",
        )
        return all(to_plain(self.old(q)) == to_plain(self.new(q)) for q in queries)

    def until_equal(self) -> None:
        """Wait until both databases have the same rows."""
        eventually(self.is_equal, lambda: self.pipeline.tail(), timeout_s=120.0, every_s=0.1)

    def read_triggers(self) -> list[tuple[Any, ...]]:
        """Return the triggers that exist in the old database."""
        return self.old("SELECT TRIGGER_NAME FROM information_schema.triggers WHERE TRIGGER_SCHEMA = 'APP' ORDER BY 1")

    def read_table_states(self) -> dict[str, str]:
        """Return the state of each table of the stream in the old database."""
        return {str(name): str(state) for name, state in self.old("SELECT source_name, state FROM VENUS_TARGET_TABLE")}


def to_plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows without the trailing blanks of CHAR, which MariaDB's driver drops."""
    return [
        tuple(bytes(v) if isinstance(v, memoryview) else v.rstrip() if isinstance(v, str) else v for v in row)
        for row in rows
    ]


@pytest.fixture
def pair(tmp_path: Path, postgres_server: Server) -> Iterator[ShopPair]:
    with running_mariadb(ORACLE_MODE) as server:
        found = ShopPair(tmp_path, server, postgres_server)
        try:
            yield found
        finally:
            found.close()
            sys.modules.pop("cx_Oracle", None)


def test_a_switch_to_postgresql_and_back(pair: ShopPair) -> None:
    pair.start(_SHOP)
    pipeline = pair.pipeline
    rehearsal = pipeline.ask(*FORWARD, "--rehearse", *QUIET)
    assert rehearsal["blocks"] == []
    lost = {(loss["kind"], loss["column"]) for loss in rehearsal["certificate"]["could_not_come_back"]}
    assert {("empty text", "NAME"), ("number", "ID"), ("special values", "since")} <= lost
    before = pair.read_triggers()
    assert pair.switch(*FORWARD)["equal"]
    assert pair.writable() == ["new"]
    assert "the old database follows" in pipeline.venus("status", code=(0, 1)).out
    assert pair.server.execute("SELECT NAME FROM DISABLED", DICTIONARY) == [("ORDERS_PLACED",)]

    pair.new("INSERT INTO customer (name, born, code) VALUES ('carl', '2000-02-29 00:00:01', 'ü')")
    pair.new("INSERT INTO orders (customer, what) VALUES (3, 'there')")
    pair.new("UPDATE customer SET credit = 1.5, story = '', photo = '\\x' WHERE name = 'ann'")
    pair.new("DELETE FROM customer WHERE name = 'bob'")
    pair.new("UPDATE customer SET \"Nick\" = 'Ann' WHERE id = 1")
    with closing(pair.connect_new()) as connection:
        connection.autocommit = False
        connection.cursor().execute("INSERT INTO customer (name) VALUES ('rolled back')")  # draws the number 4
    pair.until_equal()
    assert pair.new("SELECT nextval('invoice_seq') FROM generate_series(1, 3)")[-1] == (9,)
    assert pair.count_logged() == 0
    assert pipeline.ask("verify")["verdict"] == "same"
    assert set(pair.read_table_states()) == {"app.customer", "app.orders", "app.probe"}

    assert pipeline.ask(*BACK, "--rehearse", *QUIET)["blocks"] == []
    assert pair.switch(*BACK)["equal"]
    assert pair.writable() == ["old"]
    assert pair.server.execute("SELECT NAME FROM DISABLED", DICTIONARY) == []
    pair.old("INSERT INTO CUSTOMER (name) VALUES ('dora')")
    ((dora,),) = pair.old("SELECT id FROM CUSTOMER WHERE name = 'dora'")
    assert dora >= 5
    assert pair.old("SELECT NEXTVAL(INVOICE_SEQ) FROM DUAL") == [(10,)]
    pair.old(f"INSERT INTO ORDERS (customer, what) VALUES ({dora}, 'back')")
    with pytest.raises(pymysql.err.IntegrityError):
        pair.old("INSERT INTO ORDERS (customer, what) VALUES (99, 'orphan')")
    pair.until_equal()
    assert pair.new("SELECT count(*) FROM venus.load_job") == [(1,)]
    assert pair.count_loads() == 0
    assert pair.read_triggers() == before

    assert pipeline.stop("sync") == 0
    pipeline.ask("uninstall-triggers")
    assert pair.writable() == ["old", "new"]
    assert [name for (name,) in pair.old("SHOW TABLES") if str(name).lower().startswith("venus")] == []
    assert pair.read_triggers() == []


def test_new_columns_follow_and_renamed_ones_halt_their_table(pair: ShopPair) -> None:
    pair.start(_SHOP)
    pipeline = pair.pipeline
    pair.switch(*FORWARD)
    pair.new("ALTER TABLE orders ADD COLUMN weight numeric(8, 2)")
    pair.new("INSERT INTO orders (customer, what, weight) VALUES (1, 'heavy', 7.25)")
    pair.until_equal()
    assert pair.old("SELECT COLUMN_NAME FROM information_schema.columns WHERE COLUMN_NAME = 'WEIGHT'")
    assert pair.switch(*BACK)["equal"]
    pair.old("INSERT INTO ORDERS (customer, what, weight) VALUES (1, 'light', 0.5)")
    pair.until_equal()
    assert pair.switch(*FORWARD)["equal"]
    pair.new("ALTER TABLE orders RENAME COLUMN what TO subject")
    pair.new("INSERT INTO orders (customer, subject) VALUES (1, 'renamed')")
    pair.new('ALTER TABLE customer ADD COLUMN "WEIGHT" text')
    pair.new("INSERT INTO customer (name) VALUES ('carl')")
    halted = {"app.customer": "HALTED", "app.orders": "HALTED", "app.probe": "ACTIVE"}
    pipeline.until(lambda: pair.read_table_states() == halted, "both tables to halt", every_s=0.2)
    said = "\n".join(pipeline.ask(*BACK, "--rehearse", *QUIET, code=3)["blocks"])
    assert 'RENAME COLUMN "WHAT" TO "SUBJECT"' in said
    assert "app.customer: WEIGHT would be weight after the next switch" in said
    assert pair.writable() == ["new"]


def test_sequences_with_the_same_new_name_refuse_the_rehearsal(pair: ShopPair) -> None:
    twice = 'CREATE SEQUENCE "invoice_seq" START WITH 9 INCREMENT BY 1 MINVALUE 1 NOCYCLE NOCACHE;'
    pair.start(_SHOP + twice)
    said = pair.pipeline.venus(*FORWARD, "--rehearse", *QUIET, code=3).err
    assert "would both become" in said
    assert all(name in said for name in ("APP.INVOICE_SEQ", "APP.invoice_seq"))
    assert pair.writable() == ["old", "new"]


STEPS = build_steps(str.upper)


@pytest.mark.parametrize("step", choose_steps(STEPS, "stop", "follow", "back-stop"))
def test_a_kill_at_each_step_is_completed_by_the_same_command(pair: ShopPair, step: str) -> None:
    kill_and_complete(pair, STEPS[step], _SHOP, "INSERT INTO CUSTOMER (name) VALUES ('carl')")
    pair.until_equal()


def test_an_interrupted_switch_is_undone(pair: ShopPair) -> None:
    held, undo = STEPS["open"], ("cutover", "--target", "main", "--undo")
    start_pair(pair, held, _SHOP)
    kill_at_step(pair, held)
    pair.pipeline.ask(*undo)
    assert pair.writable() == ["old"]
    pair.old("INSERT INTO CUSTOMER (name) VALUES ('carl')")
    pair.until_equal()
    assert "there is nothing to undo" in pair.pipeline.venus(*undo, code=3).err


_AUDITED = "CREATE TABLE AUDITED (ID NUMBER(9) PRIMARY KEY, PLACE VARCHAR2(12));"
#: MariaDB cannot disable a trigger, so this one checks whether VENUS has disabled it.
_AUDIT_OLD = f"""CREATE TRIGGER AUDIT_ORDERS AFTER INSERT ON ORDERS FOR EACH ROW BEGIN
  IF NOT EXISTS (SELECT 1 FROM {DICTIONARY}.DISABLED WHERE NAME = 'AUDIT_ORDERS') THEN
    INSERT INTO AUDITED VALUES (:NEW.ID * 2, 'old');
  END IF;
END"""
_AUDIT_NEW = """CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN INSERT INTO audited VALUES (NEW.id * 2 + 1, 'new'); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION audit()"""


class AuditedOrders:
    """Table of orders in which each database's own trigger logs the application's writes."""

    def __init__(self, pair: ShopPair) -> None:
        self._pair = pair
        self._noted: list[str] = []
        pair.server.execute(_AUDIT_OLD, SCHEMA)
        with closing(pair.connect_new()) as connection:
            connection.cursor().execute(_AUDIT_NEW)

    def write(self, owner: str, what: str) -> None:
        """Write an order, and wait until both databases have it and only the one that was written to has logged it."""
        write = self._pair.new if owner == "new" else self._pair.old
        write(f"INSERT INTO ORDERS (customer, what) VALUES (1, '{what}')")
        self._noted.append(owner)
        self._pair.until_equal()
        assert self._read("old") == self._read("new") == self._noted

    def _read(self, name: str) -> list[str]:
        query = "SELECT place FROM AUDITED ORDER BY id"
        return [place for (place,) in (self._pair.new if name == "new" else self._pair.old)(query)]


def test_triggers_of_the_application_fire_only_for_its_own_writes(pair: ShopPair) -> None:
    pair.start(_SHOP + _AUDITED)
    orders, pipeline = AuditedOrders(pair), pair.pipeline
    orders.write("old", "before")
    assert pair.switch(*FORWARD)["equal"]
    orders.write("new", "there")
    kill_at_step(pair, STEPS["back-open"])
    pipeline.ask(*BACK, "--undo")
    assert pair.writable() == ["new"]
    orders.write("new", "undone")
    pair.new("ALTER TABLE orders ENABLE ALWAYS TRIGGER audit")
    said = pipeline.venus(*BACK, "--rehearse", *QUIET, code=3).out
    assert "ALTER TABLE app.orders ENABLE TRIGGER audit" in said
    pair.new("ALTER TABLE orders ENABLE TRIGGER audit")
    assert pair.switch(*BACK)["equal"]
    orders.write("old", "back")


def test_a_trigger_of_another_user_refuses_the_rehearsal(pair: ShopPair) -> None:
    pair.start(_SHOP + _AUDITED)
    pair.server.execute(_AUDIT_OLD, SCHEMA)
    pair.server.execute("INSERT INTO TRIGGER_OWNERS VALUES ('AUDIT_ORDERS', 'AUDITOR')", DICTIONARY)
    said = pair.pipeline.venus(*FORWARD, "--rehearse", *QUIET, code=3).out
    assert "trigger AUDITOR.AUDIT_ORDERS of ORDERS would fire for changes of VENUS" in said
    assert 'ALTER TRIGGER "AUDITOR"."AUDIT_ORDERS" DISABLE; enable it after `venus fallback`' in said
    pair.server.execute("INSERT INTO DISABLED VALUES ('AUDIT_ORDERS')", DICTIONARY)
    assert pair.pipeline.ask(*FORWARD, "--rehearse", *QUIET)["blocks"] == []


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_second_target_finds_its_tables_by_the_names_of_each_owner(
    pair: ShopPair, postgres_server: Server, kind: str
) -> None:
    """The target's records keep the names of its load, which in SQLite are the only names."""
    pipeline, file = pair.pipeline, pair.pipeline.folder / "copy.db"
    pipeline.targets["copy"] = (
        with_password(postgres_server.create_database()) if kind != "sqlite" else f"sqlite:///{file}"
    )
    pair.start(_SHOP)

    def copy(text: str) -> list[tuple[Any, ...]]:
        if kind == "postgresql":
            return query(pipeline.targets["copy"], text.format("app.orders"))
        with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as connection:
            return run_statements(connection, text.format("orders"))

    def is_whole() -> bool:
        return copy("SELECT count(*) FROM {}") == pair.new("SELECT count(*) FROM orders")

    for command, write, orders in ((FORWARD, pair.new, "app.orders"), (BACK, pair.old, "APP.ORDERS")):
        pair.switch(*command)
        write("INSERT INTO ORDERS (customer, what) VALUES (2, 'again')")
        pair.until_equal()
        pipeline.until(is_whole, "the second target to follow")
        assert "was dropped at the source" not in pipeline.venus("status", code=(0, 1)).out
        copy("DELETE FROM {}")
        pipeline.ask("resync", orders, "--target", "copy")
        pipeline.until(is_whole, "the rows to come again")
        assert pipeline.ask("verify", "--target", "copy")["verdict"] == "same"
