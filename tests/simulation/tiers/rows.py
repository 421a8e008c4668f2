"""Rows with columns, predicates of sets, and the rows that each predicate selects, without the product's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from random import Random

from tests.simulation.brokers.source import NAMES, Rows
from venus.codec.columns import Value, from_columns
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema

#: Columns that predicates use: region and amount.
Kinds = frozenset[int]
#: For each table, the indexes of the kinds of rows that a set admits.
Admits = Mapping[int, Kinds]

COLUMNS = (
    Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8)),
    Column(name="region", number=2, type=LogicalType(kind=Kind.TEXT)),
    Column(name="amount", number=3, type=LogicalType(kind=Kind.INT, length=8)),
    Column(name="no", number=4, type=LogicalType(kind=Kind.TEXT)),
)
SCHEMAS = {
    n: TableSchema(table_id=n, version=1, namespace="shop", name=NAMES[n], columns=COLUMNS, key=("id",)) for n in (1, 2)
}
_KINDS: tuple[tuple[str | None, int | None], ...] = tuple(product(("EU", "US", None), (1, 5, None)))
EVERY: Admits = {n: frozenset(range(len(_KINDS))) for n in (1, 2)}

#: Two of the predicates are equivalent.
PREDICATES: dict[str, Callable[[str | None, int | None], bool]] = {
    "": lambda _region, _amount: True,
    "region = 'EU'": lambda region, _: region == "EU",
    "region in ('EU')": lambda region, _: region == "EU",
    "region = 'US'": lambda region, _: region == "US",
    "region is null": lambda region, _: region is None,
    "amount >= 5": lambda _, amount: amount is not None and amount >= 5,
    "amount < 5": lambda _, amount: amount is not None and amount < 5,
    "region = 'EU' and amount >= 5": lambda region, amount: region == "EU" and amount == 5,
}


@cache
def key_of(number: int) -> bytes:
    """Return the record id of a one-digit key; it ends with the digit."""
    return from_columns([[str(number)], [None], [None], [None]], Layout.of(SCHEMAS[1]))[0].split()[0]


@cache
def row_of(number: int) -> bytes:
    """Return the row of the n-th value that an application writes."""
    region, amount = _KINDS[_kind(number)]
    columns: list[list[Value]] = [["0"], [region], [None if amount is None else str(amount)], [str(number)]]
    return from_columns(columns, Layout.of(SCHEMAS[1]))[1].split()[0]


def _kind(number: int) -> int:
    """Return the kind of the row with this value."""
    return Random(number).randrange(len(_KINDS))


@cache
def _kind_of(row: bytes) -> int:
    """Return the kind of a stored row."""
    return _kind(int(row[row.rindex(b'"') + 2 :]))  # the text after the tag and the length of the last column


def table_of(key: bytes) -> int:
    """Return the table of a key: keys with an odd digit are in table 2."""
    return 1 + int(key[-1:]) % 2


def random_where(random: Random) -> dict[str, str]:
    """Return random predicates of a set, by table."""
    chosen = {name: random.choice(tuple(PREDICATES)) for name in NAMES.values() if random.random() < 0.6}
    return {name: text for name, text in chosen.items() if text}


def find_admitted(where: Mapping[str, str]) -> Admits:
    """Return the kinds of rows that satisfy the predicates."""
    return {
        n: frozenset(i for i, kind in enumerate(_KINDS) if PREDICATES[where.get(name, "")](*kind))
        for n, name in NAMES.items()
    }


def intersect(one: Admits, other: Admits) -> Admits:
    """Return the kinds of rows that the predicates of both sets admit."""
    return {n: one[n] & other[n] for n in one}


def visible_rows(rows: Rows, admits: Admits) -> Rows:
    """Return the source's rows of the admitted kinds."""
    if admits == EVERY:
        return rows
    return {key: row for key, row in rows.items() if _kind_of(row) in admits[table_of(key)]}
