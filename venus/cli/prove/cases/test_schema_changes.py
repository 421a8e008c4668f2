"""DDL on a captured table: a new version if VENUS can follow it, else a reason; the application continues."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.cli.prove.follower import Follower
from venus.codec.schema import message_class
from venus.rpc.conditions import GONE


def state_of(source: Source, name: str) -> tuple[str, str]:
    """Return the state of a captured table, and the reason for it."""
    (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == name]
    return table.state, table.reason


def test_nothing_new_is_nothing(item: Follower) -> None:
    assert item.source.capture.refresh_schemas() == []
    assert item.source.capture.refresh_schemas() == []


def test_an_added_column_is_a_new_version_and_old_rows_get_its_value(
    place: Place, app: Application, item: Follower
) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'old', NULL)")
    item.drain()
    run_transaction(app, f"ALTER TABLE item ADD extra {place.types['int']} DEFAULT 7")
    run_transaction(app, "INSERT INTO item (id, name, extra) VALUES (2, 'new', 8)")
    (schema,) = item.source.capture.refresh_schemas()
    assert schema.version == 2
    assert [c.name for c in schema.columns] == ["id", "name", "price", "extra"]
    item.read_registry()
    item.drain()
    assert {k: r["extra"] for k, r in item.rows("item").items()} == {("1",): "7", ("2",): "8"}
    assert state_of(item.source, "item")[0] == "ACTIVE"
    assert message_class(schema).DESCRIPTOR.fields_by_name


def test_ddl_that_was_not_announced_does_not_mix_versions(place: Place, app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'old', NULL)")
    run_transaction(app, f"ALTER TABLE item ADD extra {place.types['int']} DEFAULT 7")
    item.drain()  # handles SchemaChanged
    assert item.rows("item")["1",] == {"id": "1", "name": "old", "price": None, "extra": "7"}


def test_a_dropped_column_is_a_new_version(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'old', 5)")
    item.drain()
    run_transaction(app, "ALTER TABLE item DROP COLUMN price")
    run_transaction(app, "INSERT INTO item VALUES (2, 'new')")
    item.drain()
    assert item.rows("item")["2",] == {"id": "2", "name": "new"}
    newest = max(v for t, v in item.schemas if t == item.table_id("item"))
    assert newest == 2


def test_an_index_is_a_new_version_and_no_row_is_read_again(place: Place, app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'old', 5)")
    item.drain()
    run_transaction(app, "CREATE INDEX item_price ON item (price)")
    (schema,) = item.source.capture.refresh_schemas()
    assert (schema.version, [i.columns for i in schema.indexes]) == (2, [("price",)])
    assert item.source.capture.refresh_schemas() == []
    item.read_registry()
    assert all(t.fill.done for t in item.source.registry.read_registered_tables())
    run_transaction(app, "UPDATE item SET name = 'new'")
    item.drain()
    assert item.rows("item")["1",]["name"] == "new"
    if place.dialect == "oracle":
        return  # the stand-in's spelling of DROP INDEX differs from Oracle's
    run_transaction(app, "DROP INDEX item_price ON item" if place.dialect == "mysql" else "DROP INDEX item_price")
    (schema,) = item.source.capture.refresh_schemas()
    assert (schema.version, schema.indexes) == (3, ())
    assert state_of(item.source, "item")[0] == "ACTIVE"


def test_a_column_number_is_never_used_twice(place: Place, app: Application, item: Follower) -> None:
    run_transaction(app, "ALTER TABLE item DROP COLUMN price")
    item.source.capture.refresh_schemas()
    run_transaction(app, f"ALTER TABLE item ADD price {place.types['text']}")
    (schema,) = item.source.capture.refresh_schemas()
    numbers = {c.name: c.number for c in schema.columns}
    assert numbers["price"] == 4


def test_a_dropped_table_is_noted_and_the_others_continue(place: Place, app: Application, item: Follower) -> None:
    app.execute(f"CREATE TABLE other (id {place.types['int']} NOT NULL PRIMARY KEY)")
    app.commit()
    item.source.installer.install(["*"], [])
    item.read_registry()
    item.drain()
    run_transaction(app, "DROP TABLE item")
    run_transaction(app, "INSERT INTO other VALUES (1)")
    item.drain()
    item.source.capture.refresh_schemas()
    state, reason = state_of(item.source, "item")
    assert state == "RESYNC"
    assert reason.startswith(GONE)
    assert list(item.rows("other")) == [("1",)]
    item.source.capture.restart_fill(item.table_id("item"))
    assert state_of(item.source, "item") == (state, reason), "there is nothing that could be read"


def test_tables_registered_by_another_process_join(place: Place, app: Application, item: Follower) -> None:
    app.execute(f"CREATE TABLE other (id {place.types['int']} NOT NULL PRIMARY KEY)")
    app.commit()
    run_transaction(app, "INSERT INTO other VALUES (1)")
    installer = place.open()
    try:
        installer.installer.install(["*"], [])
    finally:
        installer.close()
    assert [s.name for s in item.source.capture.refresh_schemas()] == ["other"]
    item.read_registry()
    run_transaction(app, "INSERT INTO other VALUES (2)")
    item.drain()
    assert list(item.rows("other")) == [("1",), ("2",)]


def test_a_trigger_that_vanished_is_made_again_and_the_table_marked(
    place: Place, app: Application, item: Follower
) -> None:
    steps = [
        s for s in item.source.installer.plan_install(["*"], []) if s.what.startswith("trigger") and "item" in s.table
    ]
    name = steps[-1].what.split()[-1]
    suffix = " ON item" if place.dialect == "postgresql" else ""
    run_transaction(app, f"DROP TRIGGER {name}{suffix}")
    item.source.capture.refresh_schemas()
    item.source.capture.restart_fill(item.table_id("item"))
    assert state_of(item.source, "item")[0] == "RESYNC", "reading does not bring the trigger back"
    made = [s for s in item.source.installer.install(["*"], []) if not s.exists]
    assert [s.what for s in made if s.what.startswith("trigger")] == [steps[-1].what]
    assert state_of(item.source, "item")[0] == "RESYNC"
    item.source.capture.restart_fill(item.table_id("item"))
    assert state_of(item.source, "item") == ("ACTIVE", "")
    run_transaction(app, "INSERT INTO item VALUES (1, 'a', NULL)")
    item.drain()
    assert list(item.rows("item")) == [("1",)]


#: How each database widens a column of a key.
_WIDENS = {
    "postgresql": "ALTER TABLE wide ALTER code TYPE {code}, ALTER letter TYPE {letter}, ALTER n TYPE {n},"
    " ALTER id TYPE {id}",
    "mysql": "ALTER TABLE wide MODIFY code {code} NOT NULL, MODIFY letter {letter} NOT NULL, MODIFY n {n} NOT NULL,"
    " MODIFY id {id} NOT NULL",
}
_WIDENS["oracle"] = _WIDENS["mysql"]


def test_widening_a_key_never_fails_the_application_and_is_followed(
    place: Place, app: Application, source: Source
) -> None:
    if place.dialect not in _WIDENS:
        pytest.skip("its columns have no width")
    number = "NUMBER" if place.dialect == "oracle" else "numeric"
    varchar = "varchar"
    narrow = {"code": f"{number}(4)", "letter": f"{varchar}(3)", "n": f"{number}(4,2)", "id": "int"}
    wide = {"code": f"{number}(15)", "letter": f"{varchar}(30)", "n": f"{number}(9,2)", "id": "bigint"}
    if place.dialect == "oracle":
        narrow["id"], wide["id"] = "NUMBER(9)", "NUMBER(19)"
    run_transaction(
        app,
        f"CREATE TABLE wide (code {narrow['code']} NOT NULL, letter {narrow['letter']} NOT NULL,"
        f" n {narrow['n']} NOT NULL, id {narrow['id']} NOT NULL, what {place.types['text']},"
        " PRIMARY KEY (code, letter, n, id))",
        "INSERT INTO wide VALUES (1, 'a', 1.50, 7, 'first')",
    )
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    run_transaction(app, "UPDATE wide SET what = 'before'")
    run_transaction(app, _WIDENS[place.dialect].format(**wide))
    run_transaction(
        app, "INSERT INTO wide VALUES (123456789012345, 'a much longer letter', 1234567.25, 3000000000, 'second')"
    )
    run_transaction(app, "UPDATE wide SET what = 'third', code = 223456789012345 WHERE n > 100")
    follower.drain()
    assert {(t.state, t.reason) for t in source.registry.read_registered_tables()} == {("ACTIVE", "")}
    rows = follower.rows("wide")
    assert {key: row["what"] for key, row in rows.items()} == {
        ("1", "a", "1.50", "7"): "before",
        ("223456789012345", "a much longer letter", "1234567.25", "3000000000"): "third",
    }
    run_transaction(app, "DELETE FROM wide")
    follower.drain()
    assert follower.rows("wide") == {}
    assert all(step.exists for step in source.installer.install(["*"], []))


#: The form of a log that an older version created.
_NARROWS = {
    "postgresql": ("ALTER TABLE venus.l_00002 ALTER k1 TYPE varchar(5)",),
    "mysql": (
        "ALTER TABLE venus_l_00002 MODIFY k1 varchar(5) CHARACTER SET {charset} COLLATE {collation} NULL,"
        " COMMENT='k1 varchar(5) CHARACTER SET {charset} COLLATE {collation}'",
    ),
}


def test_a_log_of_an_older_version_is_widened_without_a_resync(place: Place, app: Application, source: Source) -> None:
    if place.dialect not in _NARROWS:
        pytest.skip("tests/integration/oracle has it for Oracle")
    run_transaction(app, "CREATE TABLE word (w varchar(5) NOT NULL PRIMARY KEY, n int)")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    parts = {}
    if place.dialect == "mysql":
        ((charset, collation),) = app.execute(
            "SELECT character_set_name, collation_name FROM information_schema.columns"
            " WHERE table_schema = database() AND table_name = 'word' AND column_name = 'w'"
        )
        parts = {"charset": charset, "collation": collation}
    run_transaction(app, *(sql.format(**parts) for sql in _NARROWS[place.dialect]), "INSERT INTO word VALUES ('a', 1)")
    done = [step.what for step in source.installer.install(["*"], []) if not step.exists]
    assert [what.partition(" of ")[0] for what in done] == ["width"]
    source.capture.refresh_schemas()
    follower.drain()
    assert set(follower.rows("word")) == {("a",)}
    assert {t.state for t in source.registry.read_registered_tables()} == {"ACTIVE"}
    assert all(step.exists for step in source.installer.install(["*"], []))
