"""RAW(16) as uuid and whole numbers as bigint: one switch each, also for keys, verified by reading the data."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.contract import TableHalted
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import ConfigError, Refused

pytestmark = pytest.mark.integration

EVERYTHING: tuple[list[str], list[str]] = (["*"], [])
SWITCHES = {"raw(16)": "uuid", "NUMBER(*, 0)": "bigint"}
UUIDS = [f"{n:08x}-0203-0405-0607-08090a0b0c0d" for n in range(5)]


@pytest.fixture
def shop(application: Any) -> Any:
    application.execute(
        'CREATE TABLE "ORDERS" ("ID" RAW(16) PRIMARY KEY, "NO" NUMBER(4) NOT NULL, "BOOK" NUMBER(38), "R" RAW(20))'
    )
    rows = [(bytes.fromhex(uuid.replace("-", "")), n, n) for n, uuid in enumerate(UUIDS)]
    application.executemany('INSERT INTO "ORDERS" ("ID", "NO", "BOOK") VALUES (%s, %s, %s)', rows)
    return application


def types(source: OracleSource) -> dict[str, str]:
    found = {
        c.name: c.type
        for t in source.registry.read_registered_tables()
        if t.schema.name == "ORDERS"
        for c in t.schema.columns
    }
    return {name: f"{kind.kind.name} {kind.length}" for name, kind in found.items()}


def test_keys_are_carried_as_uuid_through_fill_change_and_deletion(shop: Any, standin: StandIn) -> None:
    with closing(OracleSource(standin, OracleOptions(type_map=SWITCHES))) as source:
        source.installer.install(*EVERYTHING)
        assert types(source) == {"ID": "UUID 0", "NO": "INT 8", "BOOK": "DECIMAL 0", "R": "BYTES 20"}
        follower = Follower(source)
        follower.drain(fill_rows=2)
        assert set(follower.rows("ORDERS")) == {(uuid,) for uuid in UUIDS}
        shop.execute('DELETE FROM "ORDERS" WHERE "NO" = 0')
        shop.execute('UPDATE "ORDERS" SET "BOOK" = 77 WHERE "NO" = 1')
        follower.drain()
        assert {key[0]: row["BOOK"] for key, row in follower.rows("ORDERS").items()} == {
            UUIDS[1]: "77",
            UUIDS[2]: "2",
            UUIDS[3]: "3",
            UUIDS[4]: "4",
        }


def test_a_switch_on_the_command_line_is_recorded_column_by_column(
    shop: Any, source: OracleSource, standin: StandIn
) -> None:
    source.installer.request_types({"RAW(16)": "uuid", "ORDERS.BOOK": "bigint"}, *EVERYTHING)
    source.installer.install(*EVERYTHING)
    shop.execute("SELECT COLUMN_NAME, TRAVELS_AS FROM VENUS_TYPE_MAP ORDER BY 1")
    assert shop.fetchall() == (("BOOK", "bigint"), ("ID", "uuid"))
    with closing(OracleSource(standin)) as another:
        assert another.capture.refresh_schemas() != []
        assert types(another)["ID"] == "UUID 0"


def test_an_option_for_one_column_takes_precedence_over_the_switch(shop: Any, standin: StandIn) -> None:
    asked = SWITCHES | {"ORDERS.ID": "usual"}
    with closing(OracleSource(standin, OracleOptions(type_map=asked))) as source:
        (table,) = source.dictionary.read_tables(*EVERYTHING)
        assert {c.name: c.type.kind.name for c in table.columns}["ID"] == "BYTES"


def test_the_verification_reads_every_row_and_blocks_on_a_value_that_does_not_fit(shop: Any, standin: StandIn) -> None:
    asked = {"RAW(16)": "uuid", "ORDERS.BOOK": "bigint"}
    with closing(OracleSource(standin, OracleOptions(type_map=asked))) as source:
        said = {f.message for f in source.installer.check(*EVERYTHING) if f.where == "APP.ORDERS"}
        assert said == {"column ID fits uuid: all 5 rows were read", "column BOOK fits bigint: all 5 rows were read"}
    shop.execute("INSERT INTO \"ORDERS\" VALUES (X'0102', 9, 9223372036854775808, NULL)")
    with closing(OracleSource(standin, OracleOptions(type_map=asked))) as source:
        (first, second) = [f for f in source.installer.check(*EVERYTHING) if f.blocks]
        assert first.message == "column ID cannot be carried as uuid: 1 of 6 values do not have 16 bytes"
        assert (
            second.message == "column BOOK cannot be carried as bigint: 1 of 6 values are not whole numbers of 64 bits"
        )
        assert first.remedy == '"APP.ORDERS.ID" = "usual" in [source.type_map]'
        with pytest.raises(Refused, match="column ID cannot be carried as uuid"):
            source.installer.install(*EVERYTHING)


def test_a_table_is_verified_once_and_not_while_it_is_captured(shop: Any, standin: StandIn) -> None:
    with closing(OracleSource(standin, OracleOptions(type_map=SWITCHES))) as source:
        source.installer.check(*EVERYTHING)
        source.installer.install(*EVERYTHING)
        source.installer.check(*EVERYTHING)
    assert sum("VSIZE(" in text for text in standin.said) == 1


def test_a_later_value_that_does_not_fit_halts_its_table(shop: Any, standin: StandIn) -> None:
    with closing(OracleSource(standin, OracleOptions(type_map={"RAW(16)": "uuid"}))) as source:
        source.installer.install(*EVERYTHING)
        follower = Follower(source)
        follower.drain()
        shop.execute("INSERT INTO \"ORDERS\" VALUES (X'0102', 9, 1, NULL)")
        cut = source.capture.open_cut([])
        assert cut is not None
        with pytest.raises(TableHalted, match="column ID: a uuid has 16 bytes, not 2"):
            list(cut.read_sections(rows_max=100, bytes_max=1 << 20))
        cut.rollback()


def test_check_suggests_the_switches_that_were_not_requested(shop: Any, source: OracleSource) -> None:
    offered = [f for f in source.installer.check(*EVERYTHING) if f.where == "types"]
    assert [(f.message, f.blocks) for f in offered] == [
        ("1 columns of type RAW(16) could be carried as uuid, for example APP.ORDERS.ID", False)
    ]
    assert offered[0].remedy.startswith('"RAW(16)" = "uuid" in [source.type_map]')


def test_a_key_with_another_text_form_makes_no_new_version(shop: Any, source: OracleSource, standin: StandIn) -> None:
    source.installer.install(*EVERYTHING)
    with closing(OracleSource(standin, OracleOptions(type_map=SWITCHES))) as other:
        other.capture.refresh_schemas()
        state = next(t for t in other.registry.read_registered_tables() if t.schema.name == "ORDERS")
        assert (state.state, "uninstall and install again" in state.reason) == ("RESYNC", True)
        assert types(other)["ID"] == "BYTES 16"


def test_a_switch_that_matches_no_column_is_refused(application: Any, source: OracleSource) -> None:
    application.execute('CREATE TABLE "T" ("ID" NUMBER(9) PRIMARY KEY)')
    with pytest.raises(ConfigError, match=r"--type-map RAW\(16\): no captured table has a column of type RAW\(16\)"):
        source.installer.request_types({"RAW(16)": "uuid"}, *EVERYTHING)
