"""The structure of a MySQL 8 table, from rows as its dictionary returns them; test servers lack NOT ENFORCED."""

from __future__ import annotations

from venus.adapters.dialects.mysql.dictionary.structure import MysqlStructureRows, build_structure
from venus.adapters.dialects.mysql.dictionary.types import MysqlDeclaredType
from venus.model import Check, Column, Kind, LogicalType

PRICE = Column(name="price", number=1, type=LogicalType(kind=Kind.INT, length=4))
DECLARED = MysqlDeclaredType(
    data_type="int",
    column_type="int",
    charset="",
    collation="",
    length=0,
    precision=10,
    scale=0,
    fraction=0,
    is_json=False,
)


def test_a_check_that_is_not_enforced_is_listed_and_not_created() -> None:
    rows = MysqlStructureRows(checks=[("fair", "(`price` > 0)", "0", "1"), ("off", "(`price` < 9)", "0", "0")])

    made = build_structure("goods", rows, [PRICE], {"price": DECLARED}, (), [])

    assert made.checks == [Check(name="fair", sql='("price" > 0)')]
    assert [(left.what, left.name, left.definition) for left in made.left_out] == [
        ("check constraint", "off", "(`price` < 9)")
    ]
