"""The structure of an Oracle table, from rows that follow the documentation of the dictionary's views.

These rows do not come from an Oracle: Database Reference 19c, ALL_CONSTRAINTS, ALL_IND_COLUMNS, ALL_IND_EXPRESSIONS (a
descending column is an expression over a hidden column), ALL_TAB_IDENTITY_COLS, ALL_SEQUENCES (LAST_NUMBER).
"""

from __future__ import annotations

from tests.support.oracle import double
from tests.support.oracle.double import Answer, Module
from venus.adapters.dialects.contract import Numbering
from venus.adapters.dialects.oracle.dictionary.structure import SchemaRows, add_structure, read_numberings
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import ModuleDriver
from venus.model import Check, Column, ForeignKey, Index, Kind, LogicalType, TableSchema

INT = LogicalType(kind=Kind.INT, length=8)
TEXT = LogicalType(kind=Kind.TEXT, length=20)
MONEY = LogicalType(kind=Kind.DECIMAL, precision=10, scale=2)
MOMENT = LogicalType(kind=Kind.TIMESTAMP)


def column(number: int, name: str, kind: LogicalType) -> Column:
    return Column(name=name, number=number, type=kind)


SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="APP",
    name="GOODS",
    key=("ID",),
    source_dialect="oracle",
    columns=(
        column(1, "ID", INT),
        column(2, "NO", INT),
        column(3, "STATE", TEXT),
        column(4, "PRICE", MONEY),
        column(5, "MADE", MOMENT),
        column(6, "UP", INT),
        column(7, "WHO", TEXT),
    ),
)
CONDITION = "PRICE >= 0 AND \"STATE\" IN ('new', 'paid')"
ROWS = SchemaRows(
    columns={
        "GOODS": [
            ("ID", '"APP"."ISEQ$$_7".nextval', "NO", "the number"),
            ("NO", '"APP"."GOODS_SEQ"."NEXTVAL"', "NO", None),
            ("STATE", "'new' ", "NO", None),
            ("PRICE", "0.5", "NO", None),
            ("MADE", "SYSDATE", "NO", None),
            ("UP", None, "NO", None),
            ("WHO", "SYS_CONTEXT('USERENV','SESSION_USER')", "NO", None),
            ("TWICE", '"PRICE"*2', "YES", None),
        ]
    },
    identities={"GOODS": [("ID", "ALWAYS", "ISEQ$$_7")]},
    table_comments={"GOODS": [("what we sell",)]},
    constraints={
        "GOODS": [
            ("SYS_C1", "C", '"ID" IS NOT NULL', None, None, None, "ENABLED", "NOT DEFERRABLE", "VALIDATED"),
            ("FAIR", "C", CONDITION, None, None, None, "ENABLED", "NOT DEFERRABLE", "VALIDATED"),
            ("OWN", "C", "F(STATE) = 1", None, None, None, "ENABLED", "NOT DEFERRABLE", "VALIDATED"),
            ("OFF", "C", "UP > 0", None, None, None, "DISABLED", "NOT DEFERRABLE", "VALIDATED"),
            ("OLDER", "C", "UP < 9", None, None, None, "ENABLED", "NOT DEFERRABLE", "NOT VALIDATED"),
            ("SYS_C2", "C", '"UP" IS NOT NULL', None, None, None, "ENABLED", "NOT DEFERRABLE", "NOT VALIDATED"),
            ("NO_UK", "U", None, None, None, None, "ENABLED", "NOT DEFERRABLE", "NOT VALIDATED"),
            ("STATE_UK", "U", None, None, None, None, "ENABLED", "NOT DEFERRABLE", "VALIDATED"),
            ("UP_FK", "R", None, "CASCADE", "APP", "PARENT", "ENABLED", "NOT DEFERRABLE", "VALIDATED"),
            ("WHO_FK", "R", None, None, "APP", "PARENT", "ENABLED", "NOT DEFERRABLE", "NOT VALIDATED"),
        ]
    },
    constraint_columns={
        "GOODS": [("UP_FK", "UP"), ("STATE_UK", "STATE"), ("STATE_UK", "NO"), ("WHO_FK", "WHO"), ("NO_UK", "NO")]
    },
    referred_columns={"GOODS": [("UP_FK", "ID"), ("WHO_FK", "NAME")]},
    indexes={
        "GOODS": [
            ("GOODS_PK", "UNIQUE", "NORMAL", "ID", "ASC", None),
            ("STATE_UK", "UNIQUE", "NORMAL", "STATE", "ASC", None),
            ("STATE_UK", "UNIQUE", "NORMAL", "NO", "ASC", None),
            ("FALLING", "NONUNIQUE", "FUNCTION-BASED NORMAL", "SYS_NC00009$", "DESC", '"PRICE"'),
            ("FALLING", "NONUNIQUE", "FUNCTION-BASED NORMAL", "UP", "ASC", None),
            ("UPPER_STATE", "NONUNIQUE", "FUNCTION-BASED NORMAL", "SYS_NC00010$", "ASC", 'UPPER("STATE")'),
            ("NO_UK", "NONUNIQUE", "NORMAL", "NO", "ASC", None),
            ("BITS", "NONUNIQUE", "BITMAP", "STATE", "ASC", None),
        ]
    },
)


def test_every_property_of_a_table_besides_its_rows() -> None:
    made = add_structure(SCHEMA, ROWS)

    assert made.comment == "what we sell"
    assert {c.name: (c.identity, c.default_sql) for c in made.columns} == {
        "ID": (True, ""),
        "NO": (True, ""),
        "STATE": (False, "'new'"),
        "PRICE": (False, "0.5"),
        "MADE": (False, "CURRENT_TIMESTAMP"),
        "UP": (False, ""),
        "WHO": (False, ""),
    }
    assert made.columns[0].comment == "the number"
    assert made.checks == (
        Check(name="FAIR", sql="\"PRICE\" >= 0 AND \"STATE\" IN ('new', 'paid')"),
        Check(name="OLDER", sql='"UP" < 9', not_valid=True),
        Check(name="SYS_C2", sql='NOT ("UP" IS NULL)', not_valid=True),
    )
    assert made.foreign_keys == (
        ForeignKey(
            name="UP_FK",
            columns=("UP",),
            referred_namespace="APP",
            referred_table="PARENT",
            referred_columns=("ID",),
            on_delete="CASCADE",
        ),
        ForeignKey(
            name="WHO_FK",
            columns=("WHO",),
            referred_namespace="APP",
            referred_table="PARENT",
            referred_columns=("NAME",),
            not_valid=True,
        ),
    )
    assert made.indexes == (
        Index(name="STATE_UK", columns=("STATE", "NO"), unique=True, constraint=True),
        Index(name="FALLING", columns=("PRICE", "UP"), definition='("PRICE" DESC, "UP")'),
        Index(name="UPPER_STATE", columns=(), definition='((upper("STATE")))'),
        Index(name="NO_UK", columns=("NO",)),
    )
    assert {(o.what, o.name) for o in made.left_out} == {
        ("virtual column", "TWICE"),
        ("default of column", "WHO"),
        ("check constraint", "OWN"),
        ("constraint", "OFF"),
        ("index", "BITS"),
        ("unique constraint", "NO_UK"),
    }


def test_sequences_and_the_columns_that_use_them() -> None:
    sequences = [
        ["GOODS_SEQ", "141", "1", "1", "9999", "N"],
        ["ISEQ$$_7", "21", "1", "1", "9999", "N"],
        ["TICKETS", "105", "5", "1", "9999", "Y"],
        ["VENUS_ORDER_SEQ", "7", "1", "1", "9999", "N"],
        ["VENUS_SEQ", "7", "1", "1", "9999", "N"],
    ]
    module = Module(answers={"SELECT S.SEQUENCE_NAME": [Answer(types=[double.VARCHAR] * 6, rows=sequences)]})
    session = OracleSession(ModuleDriver("db/shop", double.Error, module, module.connect))

    found = read_numberings(session, ["APP"], lambda _: ROWS, lambda *of: of == ("APP", "SEQUENCE", "VENUS_SEQ"))

    assert [(n.name, n.table, n.column, n.next_value, n.always) for n in found] == [
        ("GOODS_SEQ", "GOODS", "NO", 141, False),
        ("ISEQ$$_7", "GOODS", "ID", 21, True),
        ("TICKETS", "", "", 105, False),
        ("VENUS_ORDER_SEQ", "", "", 7, False),
    ]
    assert found[2] == Numbering(
        namespace="APP", name="TICKETS", next_value=105, increment=5, minimum=1, maximum=9999, cycle=True
    )
