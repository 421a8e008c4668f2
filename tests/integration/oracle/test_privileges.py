"""SELECT on one captured table is revoked (ORA-01031): the table halts alone, and continues after a new grant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.databases.mariadb import MariaServer
from tests.support.oracle.standin import DICTIONARY, SCHEMA, StandIn
from venus.adapters.dialects.oracle.session.connection import OracleNotPermitted
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

USER = "limited@'127.0.0.1'"


@pytest.fixture
def limited_source(standin: StandIn, mariadb_oracle_server: MariaServer) -> Iterator[OracleSource]:
    """Open the source as a user whose privileges can be revoked; the triggers belong to the administrator."""
    execute = mariadb_oracle_server.execute
    execute(f"CREATE USER {USER}")
    for grant in (f"ALL ON {SCHEMA}.*", f"ALL ON {DICTIONARY}.*", "SUPER, PROCESS ON *.*"):
        execute(f"GRANT {grant} TO {USER}")
    source = OracleSource(StandIn(mariadb_oracle_server, user="limited"))
    yield source
    source.close()
    execute(f"DROP USER {USER}")


@pytest.fixture
def follower(application: Any, source: OracleSource, limited_source: OracleSource, standin: StandIn) -> Follower:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20))')
    application.execute('CREATE TABLE "OTHER" ("ID" NUMBER(9) PRIMARY KEY)')
    source.installer.install(["*"], [])
    execute = standin.server.execute
    execute(f"REVOKE ALL ON {SCHEMA}.* FROM {USER}")
    execute(f"GRANT EXECUTE, CREATE TEMPORARY TABLES ON {SCHEMA}.* TO {USER}")
    for (table,) in execute(f"SHOW TABLES FROM {SCHEMA}"):
        execute(f'GRANT SELECT, INSERT, UPDATE, DELETE, ALTER ON {SCHEMA}."{table}" TO {USER}')
    follower = Follower(limited_source)
    follower.drain()
    return follower


def state(source: OracleSource) -> tuple[str, str]:
    return next((t.state, t.reason) for t in source.registry.read_registered_tables() if t.schema.name == "ITEM")


@pytest.mark.parametrize("is_noticed_by", ["a cut", "the comparison"])
def test_a_table_that_venus_may_not_read_halts_alone(
    is_noticed_by: str, follower: Follower, limited_source: OracleSource, application: Any, standin: StandIn
) -> None:
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'one')")
    application.execute('INSERT INTO "OTHER" VALUES (1)')
    cut = limited_source.capture.open_cut([]) if is_noticed_by == "a cut" else None
    standin.server.execute(f'REVOKE SELECT ON {SCHEMA}."ITEM" FROM {USER}')
    if cut is not None:
        with pytest.raises(OracleNotPermitted):
            list(cut.read_sections(rows_max=10, bytes_max=1000))
        cut.rollback()
    limited_source.capture.refresh_schemas()
    assert state(limited_source) == (
        "PAUSED",
        "may not be read: it is captured again by itself after `GRANT SELECT ON APP.ITEM TO APP`",
    )
    limited_source.capture.refresh_schemas()
    follower.drain()
    assert (follower.rows("ITEM"), len(follower.rows("OTHER"))) == ({}, 1)
    standin.server.execute(f'GRANT SELECT ON {SCHEMA}."ITEM" TO {USER}')
    limited_source.capture.refresh_schemas()
    assert state(limited_source) == ("ACTIVE", "")
    follower.drain()
    assert {key: row["V"] for key, row in follower.rows("ITEM").items()} == {("1",): "one"}


def test_changes_missed_before_a_halt_are_still_missed_after_it(
    follower: Follower, limited_source: OracleSource, standin: StandIn
) -> None:
    table_id = follower.table_id("ITEM")
    limited_source.registry.set_table_state(table_id, "RESYNC", "a reason")
    standin.server.execute(f'REVOKE SELECT ON {SCHEMA}."ITEM" FROM {USER}')
    limited_source.capture.refresh_schemas()
    limited_source.capture.restart_fill(table_id)
    now, reason = state(limited_source)
    assert (now, reason.endswith("; before that RESYNC: a reason")) == ("PAUSED", True)
    standin.server.execute(f'GRANT SELECT ON {SCHEMA}."ITEM" TO {USER}')
    limited_source.capture.refresh_schemas()
    assert state(limited_source) == ("RESYNC", "a reason")


def test_rows_that_vanished_when_the_table_halted_are_noticed(
    follower: Follower, limited_source: OracleSource, application: Any, standin: StandIn
) -> None:
    """VENUS stores no check of a table that it may not read, because it could store no reason with it."""
    limited_source.capture.refresh_schemas()
    application.execute(f"INSERT INTO {DICTIONARY}.SEGMENTS VALUES ('ITEM', NULL, 2)")  # a TRUNCATE
    standin.server.execute(f'REVOKE SELECT ON {SCHEMA}."ITEM" FROM {USER}')
    limited_source.capture.refresh_schemas()
    limited_source.capture.refresh_schemas()
    standin.server.execute(f'GRANT SELECT ON {SCHEMA}."ITEM" TO {USER}')
    limited_source.capture.refresh_schemas()
    limited_source.capture.refresh_schemas()
    assert state(limited_source)[0] == "RESYNC"


def test_an_operators_pause_stays(follower: Follower, limited_source: OracleSource, standin: StandIn) -> None:
    limited_source.registry.set_table_state(follower.table_id("ITEM"), "PAUSED", "by hand")
    standin.server.execute(f'REVOKE SELECT ON {SCHEMA}."ITEM" FROM {USER}')
    limited_source.capture.refresh_schemas()
    standin.server.execute(f'GRANT SELECT ON {SCHEMA}."ITEM" TO {USER}')
    limited_source.capture.refresh_schemas()
    assert state(limited_source) == ("PAUSED", "by hand")
