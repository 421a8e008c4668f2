"""A single table leaves capture and comes back, while the others continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

import pytest

from venus.adapters.dialects.contract import RegisteredTable, Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.adapters.dialects.sqlite.installation.installer import SqliteInstaller
from venus.cli.prove.follower import Follower
from venus.errors import Refused

READERS_OF_TRIGGERS = {
    "postgresql": ("installer.PostgresInstalledObjects", "read"),
    "mysql": ("installed_objects.MysqlInstalledObjects", "read"),
    "oracle": ("schema_changes", "read_triggers"),
}


@pytest.fixture
def shop(place: Place, app: Application, source: Source) -> Follower:
    """Capture two tables, customer and orders, that have been filled already."""
    t = place.types
    run_transaction(
        app,
        f"CREATE TABLE customer (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']})",
        f"CREATE TABLE orders (id {t['int']} NOT NULL PRIMARY KEY, what {t['text']})",
        "INSERT INTO customer VALUES (1, 'one')",
        "INSERT INTO customer VALUES (2, 'two')",
        "INSERT INTO orders VALUES (1, 'a')",
    )
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


@pytest.fixture
def operator(place: Place) -> Iterator[Source]:
    """Open the source as a command does, in addition to the process that captures."""
    source = place.open()
    yield source
    source.close()


def follower_rows(app: Application, table: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the application's rows of a table, in the form of a follower."""
    found = app.execute(f"SELECT id, name FROM {table} ORDER BY id")
    app.commit()
    return {(str(i),): {"id": str(i), "name": None if v is None else str(v)} for i, v in found}


def number_of(follower: Follower, name: str) -> int:
    return follower.table_id(name)


def find_table(tables: list[RegisteredTable], name: str) -> RegisteredTable:
    return next(t for t in tables if t.schema.name == name)


def follow(follower: Follower) -> None:
    """Capture like a process that also compares dictionary and registry."""
    for _ in range(2):
        follower.source.capture.refresh_schemas()
        follower.read_registry()
        follower.drain()


def release(operator: Source, follower: Follower, name: str) -> None:
    """Release a table, while capture reads the rest of its log."""
    number = number_of(follower, name)
    operator.installer.release([number])
    follow(follower)
    operator.installer.drop_logs({number: "gone"})
    follow(follower)


def test_what_is_in_the_log_is_captured_before_the_table_leaves(
    app: Application, shop: Follower, operator: Source
) -> None:
    number = number_of(shop, "customer")
    run_transaction(app, "UPDATE customer SET name = 'uno' WHERE id = 1", "DELETE FROM customer WHERE id = 2")

    operator.installer.release([number])
    run_transaction(app, "INSERT INTO customer VALUES (3, 'three')", "INSERT INTO orders VALUES (2, 'b')")
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "RELEASING"
    assert operator.capture.read_backlog()[number][0] == 2
    follow(shop)
    assert operator.capture.read_backlog()[number][0] == 0
    operator.installer.drop_logs({number: "gone"})
    run_transaction(app, "INSERT INTO customer VALUES (4, 'four')", "INSERT INTO orders VALUES (3, 'c')")
    follow(shop)

    assert shop.rows("customer") == {("1",): {"id": "1", "name": "uno"}}
    assert list(shop.rows("orders")) == [("1",), ("2",), ("3",)]
    assert {t.state for t in operator.registry.read_registered_tables()} == {"ACTIVE"}
    assert [(t.schema.name, t.state, t.reason) for t in operator.registry.read_released_tables()] == [
        ("customer", "RELEASED", "gone")
    ]
    assert number not in operator.capture.read_backlog()


def test_nothing_of_it_stays_in_the_catalogue(place: Place, app: Application, operator: Source) -> None:
    t = place.types
    run_transaction(app, f"CREATE TABLE customer (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']})")
    operator.installer.install(["*"], [])
    before = place.dump()
    run_transaction(app, f"CREATE TABLE orders (id {t['int']} NOT NULL PRIMARY KEY, what {t['text']})")
    untouched = place.dump()
    operator.installer.install(["*"], [])
    assert place.dump() != untouched
    number = find_table(operator.registry.read_registered_tables(), "orders").schema.table_id
    operator.installer.release([number])
    operator.installer.drop_logs({number: "gone"})
    assert place.dump() == untouched
    run_transaction(app, "DROP TABLE orders")
    assert place.dump() == before
    operator.installer.uninstall()


def test_a_table_that_comes_back_becomes_equal(app: Application, shop: Follower, operator: Source) -> None:
    number = number_of(shop, "customer")
    version = find_table(operator.registry.read_registered_tables(), "customer").schema.version
    release(operator, shop, "customer")
    run_transaction(
        app,
        "DELETE FROM customer WHERE id = 1",
        "UPDATE customer SET name = 'zwei' WHERE id = 2",
        "INSERT INTO customer VALUES (3, 'three')",
    )
    operator.installer.install(["*"], [])
    run_transaction(app, "INSERT INTO customer VALUES (4, 'four')")
    follow(shop)
    run_transaction(app, "UPDATE customer SET name = 'vier' WHERE id = 4")
    follow(shop)

    assert shop.rows("customer") == follower_rows(app, "customer")
    back = find_table(operator.registry.read_registered_tables(), "customer")
    assert (back.schema.table_id, back.schema.version, back.state) == (number, version, "ACTIVE")
    assert operator.registry.read_released_tables() == []
    assert all(s.exists for s in operator.installer.install(["*"], []))


def test_a_table_that_leaves_before_it_was_read_is_swept_when_it_is_back(
    place: Place, app: Application, shop: Follower, operator: Source
) -> None:
    t = place.types
    run_transaction(
        app,
        f"CREATE TABLE late (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']})",
        "INSERT INTO late VALUES (1, 'x')",
    )
    operator.installer.install(["*"], [])
    shop.source.capture.refresh_schemas()
    shop.read_registry()
    run_transaction(app, "INSERT INTO late VALUES (2, 'noted')")
    while shop.cut(fill=False) is not None:  # the logged changes are captured; no existing row was read yet
        pass
    assert list(shop.rows("late")) == [("2",)]
    release(operator, shop, "late")
    run_transaction(app, "DELETE FROM late WHERE id = 2")
    operator.installer.install(["*"], [])
    follow(shop)
    assert shop.rows("late") == follower_rows(app, "late")


def test_its_columns_may_change_meanwhile(place: Place, app: Application, shop: Follower, operator: Source) -> None:
    release(operator, shop, "customer")
    run_transaction(
        app, f"ALTER TABLE customer ADD COLUMN extra {place.types['int']}", "UPDATE customer SET extra = 7 WHERE id = 2"
    )
    operator.installer.install(["*"], [])
    follow(shop)
    assert {k: row["extra"] for k, row in shop.rows("customer").items()} == {("1",): None, ("2",): "7"}
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "ACTIVE"
    assert find_table(operator.registry.read_registered_tables(), "customer").schema.version == 2


def test_it_may_be_another_table_of_its_name(place: Place, app: Application, shop: Follower, operator: Source) -> None:
    t = place.types
    release(operator, shop, "customer")
    run_transaction(
        app,
        "DROP TABLE customer",
        f"CREATE TABLE customer (id {t['int']} NOT NULL PRIMARY KEY, price {t['decimal']}, name {t['text']})",
        "INSERT INTO customer VALUES (5, 1.5, 'five')",
    )
    operator.installer.install(["*"], [])
    follow(shop)
    assert {k: (row["price"], row["name"]) for k, row in shop.rows("customer").items()} == {("5",): ("1.50", "five")}
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "ACTIVE"


def test_a_table_that_was_dropped_already_leaves_too(app: Application, shop: Follower, operator: Source) -> None:
    run_transaction(app, "INSERT INTO customer VALUES (3, 'three')", "DROP TABLE customer")
    follow(shop)
    release(operator, shop, "customer")
    run_transaction(app, "INSERT INTO orders VALUES (2, 'b')")
    follow(shop)
    assert list(shop.rows("orders")) == [("1",), ("2",)]
    assert [t.schema.name for t in operator.registry.read_released_tables()] == ["customer"]
    assert {t.state for t in operator.registry.read_registered_tables()} == {"ACTIVE"}


def test_what_the_configuration_leaves_out_stays_out(
    place: Place, app: Application, shop: Follower, operator: Source
) -> None:
    number = number_of(shop, "orders")
    release(operator, shop, "orders")
    operator.installer.install(["*"], ["orders"])
    assert [t.schema.name for t in operator.registry.read_released_tables()] == ["orders"]
    # a table keeps its number as long as the registry has the table
    run_transaction(app, f"CREATE TABLE zebra (id {place.types['int']} NOT NULL PRIMARY KEY)")
    operator.installer.install(["*"], ["orders"])
    assert find_table(operator.registry.read_registered_tables(), "zebra").schema.table_id > number


def test_an_installation_does_not_end_a_removal_that_was_cut_off(
    app: Application, shop: Follower, operator: Source
) -> None:
    number = number_of(shop, "customer")
    operator.installer.release([number])
    operator.installer.install(["*"], ["customer"])
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "RELEASING"
    operator.installer.install(["*"], [])
    with pytest.raises(Refused, match="customer has triggers again"):
        operator.installer.drop_logs({number: "gone"})
    run_transaction(app, "INSERT INTO customer VALUES (3, 'three')")
    follow(shop)
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "ACTIVE"
    assert shop.rows("customer") == follower_rows(app, "customer")


def test_twice_is_once(app: Application, shop: Follower, operator: Source) -> None:
    number = number_of(shop, "customer")
    for _ in range(2):
        operator.installer.release([number])
    run_transaction(app, "INSERT INTO customer VALUES (3, 'three')")
    follow(shop)
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "RELEASING"
    operator.installer.drop_logs({number: "gone"})
    assert {s.what.partition(" ")[0] for s in operator.installer.plan_release([number])} == {"state"}
    assert operator.installer.release([number]) == []
    operator.installer.drop_logs({number: "gone"})
    assert [t.reason for t in operator.registry.read_released_tables()] == ["gone"]
    with pytest.raises(Refused, match="table 9999 is not registered"):
        operator.installer.release([9999])


def test_the_plan_is_what_is_executed(place: Place, shop: Follower, operator: Source) -> None:
    from venus.adapters.dialects.registry_rules import BY_SCRIPT

    number = number_of(shop, "customer")
    before = place.dump()
    plan = operator.installer.plan_release([number])
    assert place.dump() == before
    assert "customer" in operator.installer.as_script(plan, removal=True)
    done = operator.installer.release([number]) + operator.installer.drop_logs({number: BY_SCRIPT})
    assert [s.sql for s in done] == [s.sql for s in plan]


def test_a_truncation_while_it_leaves_is_no_accident(
    place: Place, app: Application, shop: Follower, operator: Source
) -> None:
    if place.dialect == "sqlite":
        pytest.skip("there is no TRUNCATE")
    number = number_of(shop, "customer")
    operator.installer.release([number])
    run_transaction(app, "TRUNCATE TABLE customer")
    run_transaction(app, "INSERT INTO orders VALUES (2, 'b')")
    follow(shop)
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "RELEASING"
    assert list(shop.rows("orders")) == [("1",), ("2",)]
    operator.installer.drop_logs({number: "gone"})
    run_transaction(app, "INSERT INTO customer VALUES (5, 'five')")
    run_transaction(app, "TRUNCATE TABLE customer")
    operator.installer.install(["*"], [])
    follow(shop)
    follow(shop)
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "ACTIVE"
    assert shop.rows("customer") == follower_rows(app, "customer") == {}


def test_no_other_table_is_read_again(app: Application, shop: Follower, operator: Source) -> None:
    """The rule holds even if capture was down, and only sees that DDL was run."""
    number = number_of(shop, "customer")
    follow(shop)
    before = find_table(operator.registry.read_registered_tables(), "orders").fill
    operator.installer.release([number])
    operator.installer.drop_logs({number: "gone"})
    operator.installer.install(["*"], [])
    follow(shop)
    assert find_table(operator.registry.read_registered_tables(), "orders").fill == before
    assert find_table(operator.registry.read_registered_tables(), "customer").fill.done


def test_it_may_come_back_with_another_key(place: Place, app: Application, shop: Follower, operator: Source) -> None:
    t = place.types
    release(operator, shop, "customer")
    run_transaction(
        app,
        "DROP TABLE customer",
        f"CREATE TABLE customer (pos {t['int']} NOT NULL, id {t['int']} NOT NULL, name {t['text']},"
        " PRIMARY KEY (pos, id))",
        "INSERT INTO customer VALUES (7, 1, 'one')",
    )
    if place.dialect == "oracle":
        with pytest.raises(Refused, match=r"customer: its key was \(id\) when it was released"):
            operator.installer.install(["*"], [])
        operator.installer.install(["*"], ["customer"])
        return
    operator.installer.install(["*"], [])
    run_transaction(app, "INSERT INTO customer VALUES (7, 2, 'two')")
    follow(shop)
    assert {key: row["name"] for key, row in shop.rows("customer").items()} == {("7", "1"): "one", ("7", "2"): "two"}
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "ACTIVE"


def test_a_comparison_that_began_before_a_removal_keeps_its_state(
    place: Place, shop: Follower, operator: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, begun = number_of(shop, "customer"), [place.dialect == "sqlite"]  # SQLite compares under a lock
    if begun[0]:
        operator.installer.release([number])
    else:
        owner, name = READERS_OF_TRIGGERS[place.dialect]
        whole = getattr(resolve_name(f"venus.adapters.dialects.{place.dialect}.installation.{owner}"), name)

        def read(*arguments: Any) -> Any:
            if not begun[0]:
                begun[0] = True
                operator.installer.release([number])
            return whole(*arguments)

        monkeypatch.setattr(f"venus.adapters.dialects.{place.dialect}.installation.{owner}.{name}", read)
    shop.source.capture.refresh_schemas()
    assert begun == [True]
    assert find_table(operator.registry.read_registered_tables(), "customer").state == "RELEASING"


@contextmanager
def cut_off(place: Place, operator: Source, after: int) -> Iterator[list[str]]:
    """Run this many statements, and then none, as after kill -9."""
    ran: list[str] = []
    names = {
        "postgresql": "venus.adapters.dialects.postgresql.connection.PostgresConnection.run",
        "mysql": "venus.adapters.dialects.mysql.installation.installer.run_with_retries",
        "oracle": "venus.adapters.dialects.oracle.installation.installer._run_step",
    }
    with pytest.MonkeyPatch.context() as patch:
        if place.dialect == "sqlite":
            whole = SqliteInstaller._execute

            def execute_some(installation: Any, steps: Any) -> None:
                ran.extend(s.sql for s in steps[: after - len(ran)])
                whole(installation, steps[:after])
                if len(steps) > after:
                    raise KeyboardInterrupt

            patch.setattr(SqliteInstaller, "_execute", execute_some)
        else:
            module, _, name = names[place.dialect].rpartition(".")
            owner = resolve_name(module)
            whole = getattr(owner, name)

            def step(*arguments: Any, **named: Any) -> Any:
                text = str(getattr(getattr(arguments[1], "shown", None), "sql", arguments[1]))
                if not text.startswith(("SET ", "ALTER SESSION")):
                    if len(ran) == after:
                        raise KeyboardInterrupt
                    ran.append(text)
                return whole(*arguments, **named)

            patch.setattr(owner, name, step)
        yield ran


def remove(source: Source, number: int) -> None:
    source.installer.release([number])
    source.installer.drop_logs({number: "first"})
    pytest.skip("it has fewer steps")


def install(source: Source) -> None:
    source.installer.install(["*"], [])
    pytest.skip("it has fewer steps")


@pytest.mark.parametrize("after", range(8))
def test_a_removal_that_is_cut_off_is_finished_by_the_next(
    place: Place, app: Application, shop: Follower, operator: Source, after: int
) -> None:
    number = number_of(shop, "customer")
    run_transaction(app, "INSERT INTO customer VALUES (3, 'three')")
    dead = place.open()
    try:
        with cut_off(place, dead, after), pytest.raises(KeyboardInterrupt):
            remove(dead, number)
    finally:
        dead.close()
    run_transaction(app, "INSERT INTO customer VALUES (4, 'four')", "INSERT INTO orders VALUES (2, 'b')")
    follow(shop)
    assert list(shop.rows("orders")) == [("1",), ("2",)]
    states = {
        t.schema.name: t.state
        for t in [*operator.registry.read_registered_tables(), *operator.registry.read_released_tables()]
    }
    assert states["orders"] == "ACTIVE"
    assert states["customer"] in ("ACTIVE", "RELEASING", "RELEASED")
    operator.installer.release([number])
    follow(shop)
    operator.installer.drop_logs({number: "second"})
    follow(shop)
    run_transaction(app, "INSERT INTO customer VALUES (5, 'five')", "INSERT INTO orders VALUES (3, 'c')")
    follow(shop)
    assert list(shop.rows("orders")) == [("1",), ("2",), ("3",)]
    assert [(t.schema.name, t.reason) for t in operator.registry.read_released_tables()] == [("customer", "second")]
    operator.installer.install(["*"], [])
    follow(shop)
    assert shop.rows("customer") == follower_rows(app, "customer")


@pytest.mark.parametrize("after", range(12))
def test_a_return_that_is_cut_off_is_finished_by_the_next(
    place: Place, app: Application, shop: Follower, operator: Source, after: int
) -> None:
    release(operator, shop, "customer")
    run_transaction(app, "DELETE FROM customer WHERE id = 1")
    dead = place.open()
    try:
        with cut_off(place, dead, after), pytest.raises(KeyboardInterrupt):
            install(dead)
    finally:
        dead.close()
    run_transaction(app, "INSERT INTO customer VALUES (4, 'four')", "INSERT INTO orders VALUES (2, 'b')")
    follow(shop)
    assert list(shop.rows("orders")) == [("1",), ("2",)]
    operator.installer.install(["*"], [])
    follow(shop)
    run_transaction(app, "INSERT INTO customer VALUES (5, 'five')")
    follow(shop)
    assert shop.rows("customer") == follower_rows(app, "customer")
    assert {t.state for t in operator.registry.read_registered_tables()} == {"ACTIVE"}
