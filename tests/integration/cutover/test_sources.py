"""Cut-over from sources other than SQLite: afterwards the target has its own counters, cascades and checks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end
from venus.adapters.cutover.run import CutoverRequest, run_cutover, undo_target_cutover
from venus.adapters.targets.registry import open_target
from venus.rpc.conditions import LastComparison

pytestmark = pytest.mark.integration

HEAD = {"venus": "x", "made_at": "now", "made_by": "me", "source_url": "s", "target_url": "t"}
WISH = CutoverRequest(quiet_s=0.2, wait_s=120.0, head=HEAD)
_POSTGRES = """
CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL,
    credit numeric, ratio double precision, tags text[], doc jsonb, CONSTRAINT fair CHECK (credit >= 0));
CREATE TABLE orders (no serial PRIMARY KEY, customer bigint REFERENCES customer ON DELETE CASCADE, what char(8));
CREATE UNIQUE INDEX customer_name ON customer (lower(name));
CREATE SEQUENCE tickets START 100 INCREMENT 5;
SELECT nextval('tickets');
INSERT INTO customer (name, credit, ratio, tags, doc) VALUES ('ann', 12.50, 'NaN', '{a,NULL}', '{"b": 1, "a": 2}'),
    ('bob', 3, 1e20, NULL, NULL);
INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, 'b');
INSERT INTO orders (no, customer) SELECT nextval('orders_no_seq'), 1 FROM generate_series(1, 40);
DELETE FROM orders WHERE no > 2;
"""
_MARIADB = (
    "CREATE TABLE customer (id bigint unsigned AUTO_INCREMENT PRIMARY KEY, name varchar(40) NOT NULL UNIQUE,"
    " credit decimal(10,2) CHECK (credit >= 0), at datetime(3), ratio double, host inet6)",
    "CREATE TABLE orders (no int AUTO_INCREMENT PRIMARY KEY, customer bigint unsigned, what char(8),"
    " FOREIGN KEY (customer) REFERENCES customer (id) ON DELETE CASCADE)",
    "CREATE SEQUENCE tickets START WITH 100 INCREMENT BY 5 NOCACHE",
    "SELECT nextval(tickets)",
    "INSERT INTO customer (name, credit, at, ratio, host) VALUES ('ann', 12.5, '2026-11-21 10:00:00.5', 0.1,"
    " '::1.2.3.4'), ('bob', 3, NULL, 1e20, NULL)",
    "INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO orders (no) VALUES (40)",
    "DELETE FROM orders WHERE no = 40",
)


def cut_over(e2e: EndToEnd) -> dict[str, Any]:
    """Load and follow the source, rehearse, then cut over; return the certificate."""
    e2e.install()
    e2e.load()
    e2e.start()
    e2e.wait_until_caught_up()
    rehearsal = run_cutover(e2e.settings, "main", CutoverRequest(rehearse=True, quiet_s=0.2, wait_s=120.0, head=HEAD))
    assert rehearsal.blocks == ()
    found = run_cutover(e2e.settings, "main", WISH).certificate
    assert found["equal"]
    assert [t["hash"] for t in found["tables"]] == [t["hash"] for t in rehearsal.certificate["tables"]]
    return found


def test_from_postgresql(tmp_path: Path, second_database: str, database: str) -> None:
    query(database, _POSTGRES)
    with end_to_end(tmp_path, database, second_database) as e2e:
        target = open_target(e2e.settings, "main")
        certified = cut_over(e2e)
        target.record_comparison(LastComparison(ended_at_us=1, verdict="different", different=3))
        undo_target_cutover(e2e.settings, "main")
        assert (compared := target.read_view().compared) is not None
        assert (compared.verdict, compared.tables) == (
            "same",
            len(certified["tables"]),
        )  # undo has found the target as certified
        query(database, "INSERT INTO customer (name) VALUES ('drawn and gone'); DELETE FROM customer WHERE id = 3")
        e2e.wait_until_caught_up()
        kinds = "SELECT attidentity::text FROM pg_attribute WHERE attrelid = 'customer'::regclass AND attname = 'id'"
        assert query(second_database, kinds) == [("d",)]  # VENUS numbers the rows again
        assert query(second_database, "SELECT confdeltype::text FROM pg_constraint WHERE contype = 'f'") == [("a",)]
        found = run_cutover(e2e.settings, "main", WISH).certificate
        assert {c["sequence"]: c["next"] for c in found["counters"]} == {
            "customer_id_seq": 4,
            "orders_no_seq": 43,
            '"public"."tickets"': 105,
        }
        assert [f["orphans"] for f in found["foreign_keys"]] == [0]

        assert query(second_database, "INSERT INTO orders (customer) VALUES (1) RETURNING no") == [(43,)]
        assert query(second_database, "INSERT INTO customer (name) VALUES ('c') RETURNING id") == [(4,)]
        with pytest.raises(psycopg2.errors.GeneratedAlways):
            query(second_database, "INSERT INTO customer (id, name) VALUES (9, 'd')")
        assert query(second_database, "SELECT nextval('tickets'), nextval('tickets')") == [(105, 110)]
        query(second_database, "DELETE FROM customer WHERE id = 1")
        assert query(second_database, "SELECT no FROM orders") == [(2,)]  # the cascade is the target's own now
        valid = "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype IN ('f', 'c')"
        assert query(second_database, valid) == [(True,)]


def test_from_mariadb(tmp_path: Path, second_database: str, mariadb_server: MariaServer, mariadb_database: str) -> None:
    name = str(sqlalchemy.make_url(mariadb_database).database)
    with closing(mariadb_server.connect(name, autocommit=True)) as app:
        for text in _MARIADB:
            app.cursor().execute(text)
    with end_to_end(tmp_path, mariadb_database, second_database) as e2e:
        found = cut_over(e2e)
        assert {c["sequence"].removeprefix(f"{name}."): c["next"] for c in found["counters"]} == {
            "customer_id_seq": 3,
            "orders_no_seq": 41,
            f'"{name}"."tickets"': 105,
        }

        query(
            second_database, f"ALTER DATABASE {sqlalchemy.make_url(second_database).database} SET search_path = {name}"
        )
        assert query(second_database, "INSERT INTO customer (name) VALUES ('c') RETURNING id") == [(3,)]
        assert query(second_database, "INSERT INTO orders (customer) VALUES (3) RETURNING no") == [(41,)]
        query(second_database, "DELETE FROM customer WHERE id IN (1, 3)")
        assert query(second_database, "SELECT no FROM orders") == [(2,)]
