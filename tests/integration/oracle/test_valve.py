"""A log that would fill its tablespace: its table leaves capture before the application's statements fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.sqlplus import read
from tests.support.oracle.standin import SCHEMA, StandIn
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.dialects.registry_rules import LogLimits
from venus.adapters.upper.session import build_condition
from venus.cli.prove.follower import Follower
from venus.rpc.conditions import problems

pytestmark = pytest.mark.integration

ROWS_MAX = 10
LIMITED = LogLimits(rows_max=ROWS_MAX)


def open_limited(standin: StandIn, limits: LogLimits) -> OracleSource:
    return OracleSource(standin, OracleOptions(log=limits))


@pytest.fixture
def limited_source(application: Any, standin: StandIn) -> Iterator[OracleSource]:
    """Open the source of an installation with limited logs, on two tables."""
    for name in ("ITEM", "SHELF"):
        application.execute(f'CREATE TABLE "{name}" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20))')
    application.execute("INSERT INTO DICTIONARY.SESSION_PRIVS VALUES ('CREATE JOB')")
    source = open_limited(standin, LIMITED)
    source.installer.install(["*"], [])
    yield source
    source.close()


def run_job(application: Any, standin: StandIn) -> None:
    """Run the scheduler's job: the text that the installation stored."""
    application.execute("SELECT JOB_ACTION FROM DICTIONARY.JOBS WHERE JOB_NAME = 'VENUS_VALVE'")
    ((action,),) = application.fetchall()
    session = OracleSession(standin)
    session.run(str(action))
    session.commit()
    session.close()


def states(source: OracleSource) -> dict[str, tuple[str, str]]:
    return {t.schema.name: (t.state, t.reason) for t in source.registry.read_registered_tables()}


def triggers(application: Any, table: str) -> int:
    application.execute(f"SELECT COUNT(*) FROM information_schema.triggers WHERE event_object_table = '{table}'")
    return int(application.fetchone()[0])


def insert(application: Any, table: str, numbers: range) -> None:
    for number in numbers:
        application.execute(f"INSERT INTO \"{table}\" VALUES ({number}, 'v')")


def test_a_table_whose_log_is_full_is_given_up_while_venus_is_away_and_filled_again(
    limited_source: OracleSource, application: Any, standin: StandIn
) -> None:
    follower = Follower(limited_source)
    follower.drain()
    insert(application, "ITEM", range(ROWS_MAX - 1))
    run_job(application, standin)
    assert states(limited_source)["ITEM"] == ("ACTIVE", "")
    assert triggers(application, "ITEM") == 3

    insert(application, "ITEM", range(ROWS_MAX, ROWS_MAX + 2))
    insert(application, "SHELF", range(3))
    run_job(application, standin)
    insert(application, "ITEM", range(100, 140))  # the application continues, and the log does not grow
    state, reason = states(limited_source)["ITEM"]
    assert state == "RESYNC"
    assert reason.startswith("its log reached log_rows_max = 10 ")
    assert states(limited_source)["SHELF"] == ("ACTIVE", "")
    assert (triggers(application, "ITEM"), triggers(application, "SHELF")) == (0, 3)
    (problem,) = problems(build_condition(limited_source.registry.read_registered_tables(), {}))
    assert problem.startswith("source: APP.ITEM is RESYNC (its log reached log_rows_max = 10 ")
    assert "`venus install-triggers`, then `venus resync TABLE`" in problem

    follower.drain()
    limited_source.capture.refresh_schemas()
    assert states(limited_source)["ITEM"] == (state, reason)
    steps = [step.what for step in limited_source.installer.install(["*"], []) if not step.exists]
    assert "room of VENUS_L_00002" in steps
    limited_source.capture.restart_fill(follower.table_id("ITEM"))
    follower.drain()
    assert states(limited_source)["ITEM"] == ("ACTIVE", "")
    assert len(follower.rows("ITEM")) == ROWS_MAX + 1 + 40
    insert(application, "ITEM", range(200, 203))
    follower.drain()
    assert len(follower.rows("ITEM")) == ROWS_MAX + 1 + 43


def test_capture_gives_up_a_table_with_a_full_log_without_a_job(limited_source: OracleSource, application: Any) -> None:
    insert(application, "ITEM", range(ROWS_MAX))
    limited_source.capture.limit_logs()
    assert states(limited_source)["ITEM"][0] == "RESYNC"
    assert triggers(application, "ITEM") == 0


def test_the_log_of_a_paused_table_is_limited_too(limited_source: OracleSource, application: Any) -> None:
    limited_source.registry.set_table_state(2, "PAUSED", "by an operator")
    insert(application, "ITEM", range(ROWS_MAX))
    limited_source.capture.limit_logs()
    assert states(limited_source)["ITEM"] == ("PAUSED", "by an operator")
    assert triggers(application, "ITEM") == 0
    limited_source.registry.set_table_state(2, "ACTIVE", "")
    limited_source.capture.refresh_schemas()
    assert states(limited_source)["ITEM"][0] == "RESYNC"


@pytest.mark.parametrize(("bytes_max", "left"), [(16_384, 0), (1 << 40, 3)])
def test_a_log_is_limited_in_bytes_too(
    limited_source: OracleSource, application: Any, standin: StandIn, bytes_max: int, left: int
) -> None:
    insert(application, "ITEM", range(5))
    with closing(open_limited(standin, LogLimits(bytes_max=bytes_max))) as source:
        source.capture.limit_logs()
        assert triggers(application, "ITEM") == left


def test_the_job_follows_the_settings_and_is_removed_with_the_installation(
    limited_source: OracleSource, application: Any, standin: StandIn
) -> None:
    def job() -> str:
        application.execute("SELECT JOB_ACTION FROM DICTIONARY.JOBS")
        return "".join(text for (text,) in application.fetchall())

    assert [step.what for step in limited_source.installer.install(["*"], []) if not step.exists] == []
    with closing(open_limited(standin, LogLimits(rows_max=77))) as source:
        source.installer.install(["*"], [])
        assert ">= 77" in job()
    with closing(open_limited(standin, LogLimits())) as source:
        source.installer.install(["*"], [])
        assert job() == ""
    limited_source.installer.install(["*"], [])
    assert job() != ""
    limited_source.installer.uninstall()
    assert job() == ""


def test_an_inventory_lists_jobs_of_the_application_only(limited_source: OracleSource, application: Any) -> None:
    def jobs() -> list[str]:
        return [o.name for o in limited_source.dictionary.read_other_objects() if o.kind == "job"]

    application.execute("INSERT INTO DICTIONARY.JOBS VALUES ('NIGHTLY', 'BEGIN NULL; END;')")
    assert jobs() == ["APP.NIGHTLY"]
    application.execute("UPDATE DICTIONARY.JOBS SET JOB_ACTION = 'BEGIN NULL; END;' WHERE JOB_NAME = 'VENUS_VALVE'")
    assert sorted(jobs()) == ["APP.NIGHTLY", "APP.VENUS_VALVE"], "one of the application, whatever its name is"


def test_the_script_has_the_job_and_names_the_grants(application: Any, standin: StandIn) -> None:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) PRIMARY KEY)')
    application.execute("INSERT INTO DICTIONARY.SESSION_PRIVS VALUES ('CREATE JOB')")
    limits = LogLimits(rows_max=ROWS_MAX, tablespace="venus_log")
    with closing(open_limited(standin, limits)) as source:
        text = source.installer.as_script(source.installer.plan_install(["*"], []), removal=False)
        assert f'ALTER USER "{SCHEMA}" QUOTA UNLIMITED ON venus_log;' in text
        assert f'GRANT CREATE JOB TO "{SCHEMA}";' in text
        assert 'TABLESPACE "VENUS_LOG"' in text
        assert sum("DBMS_SCHEDULER.CREATE_JOB" in s for s in read(text).statements) == 1
        application.execute("DELETE FROM DICTIONARY.SESSION_PRIVS WHERE PRIVILEGE = 'CREATE JOB'")
        lacking = [f for f in source.installer.check(["*"], []) if "CREATE JOB" in f.message]
        assert [f.blocks for f in lacking] == [True]
