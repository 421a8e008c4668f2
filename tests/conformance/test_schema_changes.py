"""DDL on a captured table: new versions where it can be followed, a reason where not; the application goes on."""

from __future__ import annotations

from tests.conformance.places import Application, Place, do
from tests.support.follower import Follower
from venus.adapters.dialects.contract import Source
from venus.codec.schema import message_class


def state_of(source: Source, name: str) -> tuple[str, str]:
    (table,) = [t for t in source.registered() if t.schema.name == name]
    return table.state, table.reason


def test_nothing_new_is_nothing(item: Follower) -> None:
    assert item.source.refresh_schemas() == []
    assert item.source.refresh_schemas() == []


def test_an_added_column_is_a_new_version_and_old_rows_get_its_value(
    place: Place, app: Application, item: Follower
) -> None:
    do(app, "INSERT INTO item VALUES (1, 'old', NULL)")
    item.drain()
    do(app, f"ALTER TABLE item ADD extra {place.types['int']} DEFAULT 7")
    do(app, "INSERT INTO item (id, name, extra) VALUES (2, 'new', 8)")
    (schema,) = item.source.refresh_schemas()
    assert schema.version == 2
    assert [c.name for c in schema.columns] == ["id", "name", "price", "extra"]
    item.read_registry()
    item.drain()
    assert {k: r["extra"] for k, r in item.rows("item").items()} == {("1",): "7", ("2",): "8"}
    assert state_of(item.source, "item")[0] == "ACTIVE"
    assert message_class(schema).DESCRIPTOR.fields_by_name


def test_ddl_that_nobody_announced_does_not_mix_versions(place: Place, app: Application, item: Follower) -> None:
    do(app, "INSERT INTO item VALUES (1, 'old', NULL)")
    do(app, f"ALTER TABLE item ADD extra {place.types['int']} DEFAULT 7")
    item.drain()  # follows SchemaChanged
    assert item.rows("item")["1",] == {"id": "1", "name": "old", "price": None, "extra": "7"}


def test_a_dropped_column_is_a_new_version(app: Application, item: Follower) -> None:
    do(app, "INSERT INTO item VALUES (1, 'old', 5)")
    item.drain()
    do(app, "ALTER TABLE item DROP COLUMN price")
    do(app, "INSERT INTO item VALUES (2, 'new')")
    item.drain()
    assert item.rows("item")["2",] == {"id": "2", "name": "new"}
    newest = max(v for t, v in item.schemas if t == item.table_id("item"))
    assert newest == 2


def test_a_column_number_is_never_used_twice(place: Place, app: Application, item: Follower) -> None:
    do(app, "ALTER TABLE item DROP COLUMN price")
    item.source.refresh_schemas()
    do(app, f"ALTER TABLE item ADD price {place.types['text']}")
    (schema,) = item.source.refresh_schemas()
    numbers = {c.name: c.number for c in schema.columns}
    assert numbers["price"] == 4


def test_a_dropped_table_is_told_and_the_others_go_on(place: Place, app: Application, item: Follower) -> None:
    app.execute(f"CREATE TABLE other (id {place.types['int']} NOT NULL PRIMARY KEY)")
    app.commit()
    item.source.install(["*"], [])
    item.read_registry()
    item.drain()
    do(app, "DROP TABLE item")
    do(app, "INSERT INTO other VALUES (1)")
    item.drain()
    item.source.refresh_schemas()
    state, reason = state_of(item.source, "item")
    assert state == "RESYNC"
    assert reason
    assert list(item.rows("other")) == [("1",)]


def test_tables_registered_by_another_process_join(place: Place, app: Application, item: Follower) -> None:
    app.execute(f"CREATE TABLE other (id {place.types['int']} NOT NULL PRIMARY KEY)")
    app.commit()
    do(app, "INSERT INTO other VALUES (1)")
    installer = place.open()
    try:
        installer.install(["*"], [])
    finally:
        installer.close()
    assert [s.name for s in item.source.refresh_schemas()] == ["other"]
    item.read_registry()
    do(app, "INSERT INTO other VALUES (2)")
    item.drain()
    assert list(item.rows("other")) == [("1",), ("2",)]


def test_a_trigger_that_vanished_is_made_again_and_the_table_marked(
    place: Place, app: Application, item: Follower
) -> None:
    steps = [s for s in item.source.install_plan(["*"], []) if s.what.startswith("trigger") and "item" in s.table]
    name = steps[-1].what.split()[-1]
    suffix = " ON item" if place.dialect == "postgresql" else ""
    do(app, f"DROP TRIGGER {name}{suffix}")
    made = [s for s in item.source.install(["*"], []) if not s.exists]
    assert [s.what for s in made if s.what.startswith("trigger")] == [steps[-1].what]
    assert state_of(item.source, "item")[0] == "RESYNC"
    item.source.restart_fill(item.table_id("item"))
    item.source.set_table_state(item.table_id("item"), "ACTIVE", "")
    do(app, "INSERT INTO item VALUES (1, 'a', NULL)")
    item.drain()
    assert list(item.rows("item")) == [("1",)]
