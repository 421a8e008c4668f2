"""Installation and removal change exactly what they announce, and refuse what is impossible."""

from __future__ import annotations

import re

import pytest

from venus.adapters.dialects.column_choice import exact_pattern
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.cli.install import check_patterns, find_refused_tables
from venus.cli.prove.follower import Follower
from venus.config import Settings
from venus.errors import ConfigError, Refused, VenusError


@pytest.fixture
def tables(place: Place, app: Application) -> None:
    """Create an application's tables."""
    t = place.types
    run_transaction(
        app,
        f"CREATE TABLE customer (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']} NOT NULL)",
        f"CREATE TABLE orders (id {t['int']} NOT NULL PRIMARY KEY, customer_id {t['int']} REFERENCES customer (id))",
        f"CREATE TABLE audit_a (id {t['int']} NOT NULL PRIMARY KEY)",
        f"CREATE TABLE audit_b (id {t['int']} NOT NULL PRIMARY KEY)",
        "CREATE INDEX orders_by_customer ON orders (customer_id)",
    )


@pytest.mark.usefixtures("tables")
def test_uninstalling_leaves_the_catalogue_as_it_was(place: Place, app: Application, source: Source) -> None:
    before = place.dump()
    source.installer.install(["*"], [])
    assert place.dump() != before
    run_transaction(app, "INSERT INTO customer VALUES (1, 'a')")
    Follower(source).drain()
    source.installer.uninstall()
    assert place.dump() == before
    run_transaction(app, "INSERT INTO customer VALUES (2, 'b')", "DELETE FROM customer WHERE id = 1")
    source.installer.install(["*"], [])
    source.installer.uninstall()
    assert place.dump() == before


@pytest.mark.usefixtures("tables")
def test_installing_twice_changes_nothing(place: Place, source: Source) -> None:
    first = source.installer.install(["*"], [])
    assert all(not s.exists for s in first)
    installed = place.dump()
    second = source.installer.install(["*"], [])
    assert all(s.exists for s in second)
    assert place.dump() == installed
    assert {t.state for t in source.registry.read_registered_tables()} == {"ACTIVE"}


@pytest.mark.usefixtures("tables")
def test_a_dry_run_shows_what_is_executed_and_changes_nothing(place: Place, source: Source) -> None:
    before = place.dump()
    plan = source.installer.plan_install(["*"], [])
    assert place.dump() == before
    assert source.installer.install(["*"], []) == plan
    removal = source.installer.plan_uninstall()
    installed = place.dump()
    assert place.dump() == installed
    assert source.installer.uninstall() == removal
    assert place.dump() == before


@pytest.mark.usefixtures("tables")
def test_a_check_reads_only(place: Place, source: Source) -> None:
    before = place.dump()
    findings = source.installer.check(["*"], [])
    assert not [f for f in findings if f.blocks]
    assert place.dump() == before


@pytest.mark.usefixtures("tables")
def test_patterns_choose_the_tables(place: Place, source: Source) -> None:
    def choose(include: list[str], exclude: list[str]) -> set[str]:
        """Return the names of the tables that these patterns choose."""
        return {t.name for t in source.dictionary.read_tables(include, exclude)}

    assert choose(["*"], []) == {"customer", "orders", "audit_a", "audit_b"}
    assert choose(["*"], ["audit_*"]) == {"customer", "orders"}
    assert choose([f"{place.namespace}.orders"], []) == {"orders"}
    assert choose(["audit_?"], ["audit_b"]) == {"audit_a"}
    assert choose(["nothing*"], []) == set()


@pytest.mark.usefixtures("tables")
def test_a_table_that_cannot_be_captured_can_be_excluded_by_name(
    place: Place, app: Application, source: Source
) -> None:
    run_transaction(app, f"CREATE TABLE keyless (a {place.types['int']})")
    names = ["customer", f"{place.namespace}.orders", "*.keyless", "audit_?"]
    for chosen in ("keyless", f"{place.namespace}.keyless", "key*"):
        settings = Settings(source={"url": "sqlite://", "tables": names, "exclude": [chosen]})  # type: ignore[arg-type]
        check_patterns(settings, source)
        assert [s.name for s in source.dictionary.read_tables(["customer", "keyless"], [chosen])] == ["customer"]
    settings = Settings(source={"url": "sqlite://", "exclude": ["keyles"]})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"source.exclude: 'keyles' matches no table \(did you mean .*keyless\?\)"):
        check_patterns(settings, source)


@pytest.mark.usefixtures("tables")
def test_a_table_that_is_refused_does_not_stop_the_others(place: Place, app: Application, source: Source) -> None:
    run_transaction(app, f"CREATE TABLE keyless (a {place.types['int']})")
    settings = Settings(source={"url": "sqlite://"})  # type: ignore[arg-type]
    refused = find_refused_tables(source, settings)
    assert [name.lower() for name in refused] == [f"{place.namespace}.keyless".lower()]
    assert "exclude the table" in next(iter(refused.values()))
    source.installer.install(["*"], [*map(exact_pattern, refused)])
    registered = {t.schema.name.lower() for t in source.registry.read_registered_tables() if not t.schema.is_heartbeat}
    assert registered == {"customer", "orders", "audit_a", "audit_b"}


@pytest.mark.usefixtures("tables")
def test_a_list_of_names_is_held_against_one_reading_of_the_dictionary(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(source.dictionary), "read_tables", lambda *_: pytest.fail("the whole dictionary is read"))
    names = ["customer", "orders", *(f"audit_[ab{n}]" for n in range(300))]
    check_patterns(Settings(source={"url": "sqlite://", "tables": names}), source)  # type: ignore[arg-type]
    assert source.dictionary.find_unmatched_patterns([*names, "nowhere", "no*where"]) == ["nowhere", "no*where"]


@pytest.mark.usefixtures("tables")
def test_only_chosen_tables_are_captured_and_more_can_join(app: Application, source: Source) -> None:
    source.installer.install(["customer"], [])
    follower = Follower(source)
    run_transaction(app, "INSERT INTO customer VALUES (1, 'a')", "INSERT INTO audit_a VALUES (1)")
    follower.drain()
    assert len(follower.rows("customer")) == 1
    numbers = {t.schema.qualified_name: t.schema.table_id for t in source.registry.read_registered_tables()}
    source.installer.install(["customer", "audit_a"], [])
    joined = {t.schema.qualified_name: t.schema.table_id for t in source.registry.read_registered_tables()}
    assert numbers.items() < joined.items()
    follower.read_registry()
    run_transaction(app, "INSERT INTO audit_a VALUES (2)")
    follower.drain()
    assert len(follower.rows("audit_a")) == 2


@pytest.mark.usefixtures("tables")
def test_the_dictionary_is_read_whole(place: Place, source: Source) -> None:
    schemas = {t.name: t for t in source.dictionary.read_tables(["*"], [])}
    orders = schemas["orders"]
    assert orders.table_id == 0
    assert orders.namespace == place.namespace
    assert orders.key == ("id",)
    assert [c.name for c in orders.columns] == ["id", "customer_id"]
    assert orders.source_dialect == place.dialect
    assert [c.nullable for c in schemas["customer"].columns] == [False, False]
    assert [(i.name, i.columns, i.unique) for i in orders.indexes] == [("orders_by_customer", ("customer_id",), False)]
    (reference,) = orders.foreign_keys
    assert (reference.columns, reference.referred_table, reference.referred_columns) == (
        ("customer_id",),
        "customer",
        ("id",),
    )


def test_the_number_that_a_refusal_offers_tells_equal_rows_apart(
    place: Place, app: Application, source: Source
) -> None:
    if place.dialect in ("sqlite", "oracle"):
        pytest.skip("the database cannot give a table a key, or the stand-in cannot as Oracle does")
    t = place.types
    run_transaction(
        app, f"CREATE TABLE twins (a {t['int']}, b {t['text']})", "INSERT INTO twins (a, b) VALUES (1, 'x')"
    )
    (finding,) = [f for f in source.installer.check(["*"], []) if f.blocks]
    offer = re.match(r"ALTER TABLE .* PRIMARY KEY(?= \()", finding.remedy)
    assert offer is not None
    run_transaction(app, offer[0], "INSERT INTO twins (a, b) VALUES (1, 'x'), (2, 'y')")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    assert sorted((r["a"], r["b"]) for r in follower.rows("twins").values()) == [("1", "x"), ("1", "x"), ("2", "y")]
    run_transaction(app, "DELETE FROM twins WHERE venus_record_id = 1", "INSERT INTO twins (a, b) VALUES (2, 'y')")
    follower.drain()
    assert sorted((r["a"], r["b"]) for r in follower.rows("twins").values()) == [("1", "x"), ("2", "y"), ("2", "y")]


def test_a_table_without_a_key_is_refused_with_the_choices(place: Place, app: Application, source: Source) -> None:
    t = place.types
    run_transaction(
        app,
        f"CREATE TABLE keyless (a {t['int']}, b {t['int']} NOT NULL, c {t['text']})",
        "CREATE UNIQUE INDEX nearly ON keyless (a, b)",
    )
    before = place.dump()
    blocking = [f for f in source.installer.check(["*"], []) if f.blocks]
    assert [f.where for f in blocking] == [f"{place.namespace}.keyless"]
    assert "PRIMARY KEY" in blocking[0].remedy.upper()
    assert "exclude" in blocking[0].remedy
    for refuse in (source.installer.install, source.installer.plan_install):
        with pytest.raises(Refused, match="keyless"):
            refuse(["*"], [])
    assert place.dump() == before
    source.installer.install(["*"], ["keyless"])


def test_a_unique_index_over_not_null_columns_is_a_key(place: Place, app: Application, source: Source) -> None:
    t = place.types
    run_transaction(
        app,
        f"CREATE TABLE coded (label {t['text']}, code varchar(8) NOT NULL, n {t['int']} NOT NULL)",
        "CREATE UNIQUE INDEX coded_key ON coded (n, code)",
    )
    source.installer.install(["*"], [])
    follower = Follower(source)
    run_transaction(app, "INSERT INTO coded VALUES ('x', 'a', 1)", "INSERT INTO coded VALUES ('y', 'b', 1)")
    follower.drain()
    run_transaction(app, "UPDATE coded SET code = 'c' WHERE code = 'a'")
    follower.drain()
    assert set(follower.rows("coded")) == {("1", "b"), ("1", "c")}


def test_a_table_that_is_named_like_ours_is_the_applications(place: Place, app: Application, source: Source) -> None:
    t = place.types
    log, history = (
        ("VENUS_L_00002", "VENUS_L_HISTORY") if place.dialect == "oracle" else ("venus_l_00002", "venus_l_00007")
    )
    for name in (log, history):
        run_transaction(
            app, f"CREATE TABLE {name} (id {t['int']} NOT NULL PRIMARY KEY)", f"INSERT INTO {name} VALUES (7)"
        )
    before = place.dump()
    source.installer.install(["*"], [])
    assert {r.schema.name for r in source.registry.read_registered_tables() if not r.schema.is_heartbeat} == {
        log,
        history,
    }
    follower = Follower(source)
    follower.drain()
    run_transaction(app, f"INSERT INTO {log} VALUES (8)")
    follower.drain()
    assert set(follower.rows(log)) == {("7",), ("8",)}
    source.installer.uninstall()
    assert place.dump() == before


@pytest.mark.usefixtures("tables")
def test_names_that_venus_makes_are_short(source: Source) -> None:
    for step in source.installer.plan_install(["*"], []):
        for word in step.what.split():
            assert len(word.split(".")[-1].encode()) <= 30, step.what


def test_nothing_works_before_the_installation(source: Source) -> None:
    with pytest.raises(VenusError):
        source.registry.read_state()
    assert source.installer.uninstall() == []


@pytest.mark.usefixtures("tables")
def test_a_source_without_tables_can_be_installed(source: Source) -> None:
    source.installer.install(["nothing_like_this"], [])
    follower = Follower(source)
    follower.drain()
    assert follower.cut() is None
