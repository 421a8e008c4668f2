"""A table that the patterns choose but that is not captured is reported, with the obstacle to its capture."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.cli.prove.follower import Follower

EXCLUDE = ["audit*"]


@pytest.fixture
def shop(place: Place, app: Application, source: Source) -> Follower:
    """Capture one table, orders."""
    run_transaction(app, f"CREATE TABLE orders (id {place.types['int']} NOT NULL PRIMARY KEY)")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def uncaptured_obstacles(
    source: Source, include: list[str] | None = None, exclude: list[str] | None = None
) -> dict[str, str]:
    """Return the obstacles of the tables that are not captured, by name without the namespace."""
    tables = source.dictionary.find_uncaptured_tables(include or ["*"], exclude or EXCLUDE)
    assert [t.name for t in tables] == sorted(t.name for t in tables)
    return {t.name.rpartition(".")[2]: t.obstacle for t in tables}


def test_before_the_installation_nothing_is_missing(place: Place, app: Application, source: Source) -> None:
    run_transaction(app, f"CREATE TABLE orders (id {place.types['int']} NOT NULL PRIMARY KEY)")

    assert source.dictionary.find_uncaptured_tables(["*"], []) == []


def test_a_table_that_was_made_later_is_named_until_it_is_captured(
    place: Place, app: Application, source: Source, shop: Follower
) -> None:
    integer = place.types["int"]
    assert uncaptured_obstacles(source) == {}
    run_transaction(
        app,
        f"CREATE TABLE later (id {integer} NOT NULL PRIMARY KEY)",
        f"CREATE TABLE audit_log (id {integer} NOT NULL PRIMARY KEY)",
        "INSERT INTO later VALUES (1)",
    )

    source.capture.refresh_schemas()
    assert uncaptured_obstacles(source) == {"later": ""}
    assert uncaptured_obstacles(source) == {"later": ""}  # capture asks repeatedly
    assert uncaptured_obstacles(source, include=["orders"]) == {}
    assert [t.name for t in source.dictionary.find_uncaptured_tables(["later"], [])] == [f"{place.namespace}.later"]

    source.installer.install(["*"], EXCLUDE)
    source.capture.refresh_schemas()
    assert uncaptured_obstacles(source) == {}


def test_another_process_sees_it_as_well(place: Place, app: Application, shop: Follower) -> None:
    run_transaction(app, f"CREATE TABLE later (id {place.types['int']} NOT NULL PRIMARY KEY)")
    other = place.open()
    try:
        assert uncaptured_obstacles(other) == {"later": ""}
    finally:
        other.close()


@pytest.mark.usefixtures("shop")
def test_a_table_that_cannot_be_captured_is_named_with_the_reason(
    place: Place, app: Application, source: Source
) -> None:
    run_transaction(app, f"CREATE TABLE keyless (a {place.types['int']})")
    (obstacle,) = uncaptured_obstacles(source).values()
    assert " key" in obstacle

    run_transaction(app, f"CREATE TABLE keyed (a {place.types['int']} NOT NULL PRIMARY KEY)", "DROP TABLE keyless")
    source.capture.refresh_schemas()
    assert uncaptured_obstacles(source) == {"keyed": ""}


def test_a_table_that_an_operator_took_out_is_not_named(app: Application, source: Source, shop: Follower) -> None:
    number = shop.table_id("orders")
    source.installer.release([number])
    assert uncaptured_obstacles(source) == {}
    shop.read_registry()
    shop.drain()
    source.installer.drop_logs({number: "gone"})

    assert uncaptured_obstacles(source) == {}


def test_a_renamed_table_is_named(place: Place, app: Application, source: Source, shop: Follower) -> None:
    app.execute("ALTER TABLE orders RENAME TO purchases")
    app.commit()
    source.capture.refresh_schemas()

    assert uncaptured_obstacles(source) == {"purchases": ""}
