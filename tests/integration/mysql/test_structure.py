"""The structure of a MariaDB table as the dictionary reads it: translated for PostgreSQL, or listed as left out."""

from __future__ import annotations

from contextlib import closing

import pytest
import sqlalchemy

from tests.support.databases.mariadb import MariaServer
from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.dialects.mysql.source import MysqlSource

pytestmark = pytest.mark.integration

_TABLES = (
    "CREATE TABLE parent (id int PRIMARY KEY)",
    """CREATE TABLE goods (id bigint unsigned AUTO_INCREMENT PRIMARY KEY, name varchar(40) NOT NULL,
    code varchar(10) CHARACTER SET ascii COLLATE ascii_bin, price decimal(10,2) CHECK (price >= 0), doc json,
    state enum('new','paid') DEFAULT 'new', made timestamp DEFAULT now() ON UPDATE now(), id2 uuid DEFAULT uuid(),
    twice decimal(12,2) AS (price * 2) STORED, up int, body text,
    CONSTRAINT fair CHECK (price < 1000 AND code IN ('a''b', 'c')), CONSTRAINT loose CHECK (name <> 'noone'),
    UNIQUE (code), UNIQUE named (name), KEY falling (price DESC, up), KEY start (body(20)), FULLTEXT words (body),
    UNIQUE start_code (code(3), price), KEY shared (up),
    FOREIGN KEY (up) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE SET NULL)""",
    "CREATE SEQUENCE tickets START WITH 100 INCREMENT BY 5 NOCACHE",
    "SELECT nextval(tickets)",
    "INSERT INTO goods (id, name) VALUES (41, 'x')",
    "CREATE VIEW cheap AS SELECT * FROM goods WHERE price < 1",
)


def test_every_property_of_a_table_besides_its_rows(mariadb_server: MariaServer, mariadb_database: str) -> None:
    name = str(sqlalchemy.make_url(mariadb_database).database)
    with closing(mariadb_server.connect(name, autocommit=True)) as app:
        for text in _TABLES:
            app.cursor().execute(text)
    with closing(MysqlSource(mariadb_database)) as source:
        schema = next(t for t in source.dictionary.read_tables(["*"], []) if t.name == "goods")
        numberings, others = source.dictionary.read_numberings(), source.dictionary.read_other_objects()

    assert {c.name: c.sql for c in schema.checks} == {
        "goods_id_unsigned": '"id" >= 0',
        "goods_price_check": '"price" >= 0',
        "fair": "\"price\" < 1000 AND \"code\" IN ('a''b', 'c')",
    }
    assert {i.name: (i.definition, i.unique, i.constraint) for i in schema.indexes} == {
        "code": ("", True, True),
        "named": ("", True, True),
        "falling": ('("price" DESC, "up")', False, False),
        "start_code": ('((left("code", 3)), "price")', True, False),
        "shared": ("", False, False),
    }
    assert [(k.columns, k.on_delete, k.on_update) for k in schema.foreign_keys] == [(("up",), "CASCADE", "SET NULL")]
    assert sorted((o.what, o.name) for o in schema.left_out) == [
        ("check constraint", "loose"),
        ("default of column", "id2"),
        ("generated column", "twice"),
        ("index", "start"),
        ("index", "words"),
        ("unique index", "named"),
        ("update of column", "made"),
        ("values of column", "state"),
    ]
    assert next(o.reason for o in schema.left_out if o.name == "loose").endswith("CHECK (\"name\" <> 'noone')")
    assert Numbering(namespace=name, table="goods", column="id", next_value=42) in numberings
    assert [(n.name, n.next_value, n.increment) for n in numberings if n.name] == [("tickets", 105, 5)]
    assert others == [OtherObject(kind="view", name="cheap")]
