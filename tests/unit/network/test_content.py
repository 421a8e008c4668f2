"""The index of predicates finds exactly the rows inside each, for every type, as predicates are added and removed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from venus.model import Column, Kind, LogicalType, TableSchema
from venus.network.matching import indexes
from venus.network.matching.content import ContentIndex
from venus.network.matching.indexes import TableIndex
from venus.network.matching.interests import Events, Interest
from venus.predicates.evaluation import Values, evaluate_predicate
from venus.predicates.ranges import Predicate, compile_predicate
from venus.predicates.syntax import PredicateRefused

#: For each column: its type, values that are hard to compare, and constants.
COLUMNS: dict[str, tuple[LogicalType, list[str], list[str]]] = {
    "i": (
        LogicalType(kind=Kind.INT, length=8),
        ["-5", "0", "1", "5", "6", "9007199254740992", "9007199254740993", "9007199254740994"],
        ["5", "-5", "5.5", "9007199254740993", "6.0"],
    ),
    "d": (
        LogicalType(kind=Kind.DECIMAL),
        ["1.0", "1.00", "1.000000000000000000001", "NaN", "Infinity", "-Infinity", "100"],
        ["1", "1.000000000000000000001", "100", "99.9"],
    ),
    "f": (
        LogicalType(kind=Kind.FLOAT, length=8),
        ["0.1", "NaN", "Infinity", "-Infinity", "1e308", "-0", "0"],
        ["0.1", "0", "1e30"],
    ),
    "t": (
        LogicalType(kind=Kind.TEXT),
        ["", "a", "abcdef", "abcdefg", "abcdefh", "É", "zzzzzzzz"],
        ["'abcdef'", "'abcdefg'", "'a'", "'É'", "''", "'zzzzzzzy'"],
    ),
    "c": (LogicalType(kind=Kind.CHAR, length=9), ["a", "a  ", "abcdefg  ", "b"], ["'a'", "'abcdefg'"]),
    "y": (
        LogicalType(kind=Kind.DATE),
        ["2026-01-31", "0044-03-15 BC", "10000-01-01", "infinity", "-infinity", "0044-03-15", "9999-12-31"],
        ["'2026-01-31'", "'0044-03-15'", "'9999-12-31'", "'0001-01-01'"],
    ),
    "m": (
        LogicalType(kind=Kind.TIMESTAMP, precision=9),
        ["2026-01-31 12:00:00", "2026-01-31 12:00:00.1234567", "2026-01-31 12:00:00.1234568", "infinity"],
        ["'2026-01-31 12:00:00.1234567'", "'2026-01-31'", "'2026-01-31 12:00:00.123456'"],
    ),
    "b": (LogicalType(kind=Kind.BOOL), ["t", "f"], ["true", "false"]),
    "j": (LogicalType(kind=Kind.JSON), ["{}"], []),
}
SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="shop",
    name="t",
    key=("i",),
    columns=tuple(Column(name=name, number=n + 1, type=kind) for n, (name, (kind, *_)) in enumerate(COLUMNS.items())),
)


def a_term(rng: random.Random) -> str:
    name = rng.choice(list(COLUMNS))
    constants = COLUMNS[name][2]
    if not constants or rng.random() < 0.1:
        return f"{name} is {rng.choice(('', 'not '))}null"
    one, other = rng.choice(constants), rng.choice(constants)
    if name == "b":
        return f"{name} = {one}"
    sign = rng.choice(("=", "<", "<=", ">", ">="))
    return rng.choice((f"{name} {sign} {one}", f"{name} in ({one}, {other})", f"{name} between {one} and {other}"))


def a_predicate(rng: random.Random) -> Predicate | None:
    while rng.random() < 0.97:
        try:
            return compile_predicate(" and ".join(a_term(rng) for _ in range(rng.choice((1, 1, 2, 3)))), SCHEMA)
        except PredicateRefused as refused:
            if "no value of" not in str(refused):
                raise
    return None


def some_rows(rng: random.Random, count: int) -> dict[int, Values]:
    return {
        column.number: Values(
            pa.array(
                [rng.choice([None, *(v.encode() for v in COLUMNS[column.name][1])]) for _ in range(count)],
                pa.large_binary(),
            )
        )
        for column in SCHEMA.columns
    }


def compare_all(seeds: range) -> None:
    for seed in seeds:
        compare(seed, rounds=4, most=40)


def compare(seed: int, rounds: int, most: int) -> None:
    rng, index, known = random.Random(seed), ContentIndex(), dict[int, list[object]]()
    for _ in range(rounds):
        for _ in range(rng.choice((3, most))):
            predicate = a_predicate(rng)
            users = known.setdefault(index.add(predicate), [predicate, 0])
            users[1] = int(str(users[1])) + 1
        for number in [n for n in known if rng.random() < 0.3]:
            known[number][1] = int(str(known[number][1])) - 1
            assert index.remove(number) == (known[number][1] == 0)
            if not known[number][1]:
                del known[number]
        count = rng.choice((1, 7, 60))
        rows = some_rows(rng, count)
        right = sorted(
            (row, number) for number, (predicate, _) in known.items() for row in find_inside(predicate, rows, count)
        )
        assert index.match(_Columns(rows), count).pairs() == right


class _Columns:
    """The values of a column."""

    def __init__(self, rows: dict[int, Values]) -> None:
        self._rows = rows

    def __call__(self, column: Column) -> Values:
        return self._rows[column.number]


def find_inside(predicate: object, rows: dict[int, Values], count: int) -> list[int]:
    if not isinstance(predicate, Predicate):
        return list(range(count))
    found: list[int] = np.flatnonzero(evaluate_predicate(predicate, _Columns(rows), count)).tolist()
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_index_finds_what_direct_evaluation_finds(seed: int) -> None:
    compare(seed, rounds=4, most=40)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 12))
def test_a_large_index_is_rebuilt_as_predicates_are_added_and_removed(seed: int) -> None:
    compare(seed, rounds=6, most=400)


def test_without_the_exact_check_values_at_a_bound_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContentIndex, "_check_doubtful", lambda _self, _events, _columns, rows, _ids: rows >= 0)
    with pytest.raises(AssertionError):
        compare_all(range(20))


def test_a_few_new_predicates_do_not_rebuild_the_index_of_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    index = ContentIndex()
    rows = some_rows(random.Random(1), 50)
    for n in range(2000):
        index.add(compile_predicate(f"i = {n}", SCHEMA))
    index.match(_Columns(rows), 50)
    built: list[int] = []
    made = TableIndex

    def build(interests: Sequence[Interest], sample: Events) -> TableIndex:
        built.append(len(interests))
        return made(interests, sample)

    monkeypatch.setattr(indexes, "TableIndex", build)
    for n in range(5):
        index.add(compile_predicate(f"i = {5000 + n}", SCHEMA))
        index.match(_Columns(rows), 50)
    assert built == [1, 2, 3, 4, 5]
