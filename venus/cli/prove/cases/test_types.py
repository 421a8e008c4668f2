"""Every value reads back exactly, through changes and through fills (protos/venus/wire/change.proto)."""

from __future__ import annotations

from itertools import count

import pytest

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.cli.prove.follower import Follower


@pytest.mark.parametrize("filled", [False, True], ids=["captured", "filled"])
def test_the_hardest_values_of_every_type_survive(filled: bool, place: Place, app: Application, source: Source) -> None:
    columns, setup = place.torture()
    run_transaction(app, *setup)
    spelled = ", ".join(f"{name} {c.type}" for name, c in columns.items())
    app.execute(f"CREATE TABLE torture (id {place.types['int']} NOT NULL PRIMARY KEY, {spelled})")
    app.commit()
    if not filled:
        source.installer.install(["*"], [])
        Follower(source).drain()
    expected = {}
    numbers = count(1)
    for name, column in columns.items():
        for sql, canonical in (*column.values, ("NULL", None)):
            number = next(numbers)
            app.execute(f"INSERT INTO torture (id, {name}) VALUES ({number}, {sql})")
            expected[str(number)] = (name, canonical)
    app.commit()
    if filled:
        source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain(fill_rows=7)
    rows = {str(key[0]): row for key, row in follower.rows("torture").items()}
    assert {n: (name, rows[n][name]) for n, (name, _) in expected.items()} == expected
    for key, row in rows.items():
        others = {k: v for k, v in row.items() if k not in ("id", expected[key][0])}
        assert set(others.values()) == {None}


@pytest.mark.parametrize("size", [0, 1, 10_000_000], ids=["empty", "1 byte", "10 MB"])
def test_large_values_travel_whole(size: int, place: Place, app: Application, source: Source) -> None:
    t = place.types
    app.execute(f"CREATE TABLE doc (id {t['int']} NOT NULL PRIMARY KEY, body {t['blob']}, note {t['text']})")
    app.commit()
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    body = bytes(range(256)) * (size // 256) + b"\xff" * (size % 256)
    arrives = None if place.empty_is_null and not body else body
    for number in (1, 2, 3):
        app.execute("INSERT INTO doc VALUES (?, ?, 'small')", number, body)
    app.commit()
    cuts = follower.drain(bytes_max=1 << 16)
    assert [r["body"] for r in follower.rows("doc").values()] == [arrives] * 3
    if size > 1 << 16:  # one row larger than the limit travels alone
        assert [s.count for s in cuts[0].sections] == [1, 1, 1]
    source.capture.restart_fill(follower.table_id("doc"))
    follower.tables[follower.table_id("doc")].clear()
    follower.drain(bytes_max=1 << 16)
    assert [r["body"] for r in follower.rows("doc").values()] == [arrives] * 3


def test_null_and_the_empty_string_stay_apart(place: Place, app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, '', NULL)", "INSERT INTO item VALUES (2, NULL, NULL)")
    item.drain()
    assert [r["name"] for r in item.rows("item").values()] == [None if place.empty_is_null else "", None]


def test_a_row_with_nothing_but_its_key(place: Place, app: Application, source: Source) -> None:
    run_transaction(
        app, f"CREATE TABLE bare (id {place.types['int']} NOT NULL PRIMARY KEY)", "INSERT INTO bare VALUES (1)"
    )
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    run_transaction(app, "INSERT INTO bare VALUES (2)", "DELETE FROM bare WHERE id = 1")
    follower.drain()
    assert follower.rows("bare") == {("2",): {"id": "2"}}
