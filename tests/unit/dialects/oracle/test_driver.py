"""Fetched values and the meaning of errors, on a double of the driver that follows the driver's documentation."""

from __future__ import annotations

import time
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.oracle import double
from tests.support.oracle.double import Answer, Module, error
from tests.support.oracle.scripts import make_full_table
from venus.adapters.dialects.contract import InstallStep, SchemaChanged, SnapshotLost
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary
from venus.adapters.dialects.oracle.dictionary.tables import ListedTable, OracleTable, build_table, with_id
from venus.adapters.dialects.oracle.installation import installer
from venus.adapters.dialects.oracle.installation.check import check, room_findings
from venus.adapters.dialects.oracle.installation.install import OracleStep
from venus.adapters.dialects.oracle.installation.row_checks import sample_findings, sample_query
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.rows import build_access
from venus.adapters.dialects.oracle.session.connection import (
    EDITION,
    SESSION,
    OracleBusy,
    OracleNotPermitted,
    OracleSession,
)
from venus.adapters.dialects.oracle.session.driver import (
    ACTIONS,
    ErrorAction,
    ModuleDriver,
    NationalText,
    OracleOptions,
    RotatingDriver,
    error_action,
    error_code,
    first_line,
    output_handler,
)
from venus.adapters.dialects.oracle.session.options import find_version
from venus.adapters.dialects.oracle.verify import bind_value
from venus.adapters.dialects.rows import FillCursor
from venus.errors import ConfigError, DatabaseUnavailable, LoginRefused, SourceError


@pytest.fixture
def module() -> Module:
    return Module()


@pytest.fixture
def session(module: Module) -> OracleSession:
    return OracleSession(ModuleDriver("db/shop", double.Error, module, module.connect))


def test_numbers_are_fetched_exactly_and_lobs_with_their_row(module: Module, session: OracleSession) -> None:
    stored = [["0.1234567890123456789012345678901234567", "text", b"\x00", "plain"]]
    module.answers["SELECT"] = [Answer(types=[double.NUMBER, double.CLOB, double.BLOB, double.VARCHAR], rows=stored)]
    assert session.fetch_rows("SELECT X") == [(Decimal(str(stored[0][0])), "text", b"\x00", "plain")]


def test_without_the_handler_the_double_loses_digits_and_gives_locators(module: Module) -> None:
    module.answers["SELECT"] = [Answer(types=[double.NUMBER, double.CLOB], rows=[["0.12345678901234567890", "text"]])]
    cursor = module.connect().cursor()
    cursor.execute("SELECT X")
    number, lob = cursor.fetchall()[0]
    assert isinstance(number, float)
    assert isinstance(lob, double.Lob)


def test_cx_oracle_describes_a_column_by_a_tuple(module: Module) -> None:
    cursor = SimpleNamespace(var=lambda kind, arraysize: kind, arraysize=1)
    assert output_handler(module)(cursor, "NAME", double.NUMBER, 22, 10, 2) is Decimal


def test_a_new_session_overrides_other_settings(module: Module, session: OracleSession) -> None:
    session.fetch_rows("SELECT 1 FROM DUAL")
    assert tuple(text for text, _ in module.said[: len(SESSION)]) == SESSION


def test_a_session_uses_its_own_schema_durable_commits_and_utc() -> None:
    said = " ".join(SESSION)
    for setting in (
        "CURRENT_SCHEMA = \"' || USER || '\"",
        "ISOLATION_LEVEL = READ COMMITTED",
        "COMMIT_WAIT = WAIT",
        "COMMIT_LOGGING = IMMEDIATE",
        "NLS_NCHAR_CONV_EXCP = TRUE",
        "TIME_ZONE = '+00:00'",
        "QUERY_REWRITE_ENABLED = FALSE",
    ):
        assert setting in said


def test_a_session_has_the_edition_of_the_database(module: Module, session: OracleSession) -> None:
    editions = [["V2", "ORA$BASE"]]
    module.answers[EDITION] = [Answer(types=[double.VARCHAR] * 2, rows=editions)]
    session.fetch_rows("SELECT 1 FROM DUAL")
    said = [text for text, _ in module.said]
    assert said[len(SESSION) :] == [EDITION, "ROLLBACK", 'ALTER SESSION SET EDITION = "ORA$BASE"', "SELECT 1 FROM DUAL"]


def test_a_session_with_incomplete_settings_is_not_used(module: Module, session: OracleSession) -> None:
    module.answers["ALTER SESSION SET COMMIT_WAIT"] = [Answer(error=error("ORA-03113", "end-of-file"))]
    with pytest.raises(DatabaseUnavailable):
        session.fetch_rows("SELECT 1 FROM DUAL")
    module.said.clear()
    module.answers["ALTER SESSION SET COMMIT_LOGGING"] = [Answer(error=error("ORA-01031", "insufficient privileges"))]
    with pytest.raises(SourceError):
        session.fetch_rows("SELECT 1 FROM DUAL")
    assert ("close", None) in module.said
    session.fetch_rows("SELECT 1 FROM DUAL")
    assert module.connections == 3


@pytest.mark.parametrize("code", ["DPY-3001", "DPY-3010", "DPY-3015"])
def test_an_error_of_the_thin_mode_suggests_the_thick_one(code: str, module: Module, session: OracleSession) -> None:
    module.answers["connect"] = [Answer(error=error(code, "not supported in thin mode"))]
    with pytest.raises(ConfigError, match=f"the thin mode cannot connect: {code}") as raised:
        session.open()
    assert "thick_mode=true" in raised.value.hint
    assert "12.1" in raised.value.hint


def test_a_poll_outside_of_a_transaction_ends_none(module: Module, session: OracleSession) -> None:
    module.answers["SELECT 1"] = [Answer(types=[double.NUMBER], rows=[["1"]])]
    session.run("UPDATE T SET A = 1")
    session.peek("SELECT 1 FROM DUAL")
    session.peek("SELECT 1 FROM DUAL")
    session.rollback()
    said = [text for text, _ in module.said][len(SESSION) + 1 :]
    assert said == ["UPDATE T SET A = 1", "ROLLBACK", "SELECT 1 FROM DUAL", "SELECT 1 FROM DUAL"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ORA-01555", SnapshotLost),
        ("ORA-08103", SnapshotLost),
        ("ORA-03113", DatabaseUnavailable),
        ("DPY-4011", DatabaseUnavailable),
        ("ORA-00054", OracleBusy),
        ("ORA-00942", SchemaChanged),
        ("ORA-01031", OracleNotPermitted),
        ("ORA-01653", DatabaseUnavailable),
        ("ORA-01591", OracleBusy),
        ("ORA-00001", SourceError),
    ],
)
def test_a_driver_error_becomes_an_error_by_its_remedy(
    code: str, kind: type[Exception], module: Module, session: OracleSession
) -> None:
    module.answers["SELECT"] = [Answer(error=error(code))]
    with pytest.raises(kind, match=code) as raised:
        session.fetch_rows("SELECT X")
    assert type(raised.value) is kind
    assert "Help:" not in str(raised.value)


def test_a_lost_connection_is_reopened(module: Module, session: OracleSession) -> None:
    module.answers["SELECT"] = [Answer(error=error("ORA-03113"))]
    with pytest.raises(DatabaseUnavailable):
        session.fetch_rows("SELECT X")
    session.fetch_rows("SELECT Y")
    assert module.connections == 2


@pytest.mark.parametrize("code", ["DPI-1047", "DPI-1050", "DPI-1072", "ORA-01804"])
def test_a_missing_client_library_is_not_reported_as_a_listener_error(
    code: str, module: Module, session: OracleSession
) -> None:
    module.answers["connect"] = [Answer(error=error(code, "libclntsh.so: cannot open shared object file"))]
    with pytest.raises(ConfigError, match=r"client library cannot be loaded.*libclntsh") as raised:
        session.open()
    assert "Instant Client" in raised.value.hint
    assert "listener" not in raised.value.hint


def test_a_wrong_password_is_not_retried(module: Module, session: OracleSession) -> None:
    module.answers["connect"] = [Answer(error=error("ORA-01017", "invalid username/password"))]
    with pytest.raises(ConfigError, match="cannot be reached") as raised:
        session.open()
    assert not raised.value.retryable
    assert raised.value.exit_code == 2, "`venus sync` ends: more tries would lock the account"


def test_a_password_that_may_change_is_retried_rarely(module: Module) -> None:
    """Ten refusals lock the account."""
    now = [1000.0]
    refusal = Answer(error=error("ORA-01017", "invalid username/password"))

    def session(url: str) -> OracleSession:
        driver = ModuleDriver("db/shop", double.Error, module, module.connect)
        return OracleSession(RotatingDriver(driver, url, lambda: now[0]))

    module.answers["connect"] = [refusal]
    for _ in range(20):
        with pytest.raises(LoginRefused, match="invalid username/password") as raised:
            session("oracle://venus:old@db").open()
        assert raised.value.retryable
        now[0] += 1.0
    assert module.answers["connect"] == [], "one attempt"
    now[0] += 300.0
    module.answers["connect"] = [refusal]
    with pytest.raises(LoginRefused):
        session("oracle://venus:old@db").open()
    session("oracle://venus:new@db").open()


def test_a_transaction_that_fails_leaves_no_rows(module: Module, session: OracleSession) -> None:
    module.answers["UPDATE"] = [Answer(error=error("ORA-02290", "no room"))]

    def fill() -> None:
        with session.transaction():
            session.run("INSERT")
            session.run("UPDATE")

    with pytest.raises(SourceError, match="no room"):
        fill()
    ended = [text for text, _ in module.said if text in ("COMMIT", "ROLLBACK")]
    assert ended == ["ROLLBACK"]


def test_error_codes_are_listed_once_and_unknown_ones_fail() -> None:
    every = [code for codes in ACTIONS.values() for code in codes]
    assert len(every) == len(set(every))
    assert error_action("ORA-99999") is ErrorAction.FAIL
    assert error_code(Exception("ORA-00060: deadlock detected")) == "ORA-00060"


@pytest.mark.parametrize("wrapped", [True, False])
def test_an_error_in_a_recursive_statement_is_reported_by_its_cause(wrapped: bool) -> None:
    text = "error occurred at recursive SQL level 1\nORA-01653: unable to extend table SYS.AUD$"
    found = error("ORA-00604", text) if wrapped else Exception(f"ORA-00604: {text}")
    assert error_action(error_code(found)) is ErrorAction.SPACE
    assert first_line(found) == "ORA-01653: unable to extend table SYS.AUD$"
    assert error_code(Exception("ORA-00604: error occurred at recursive SQL level 1")) == "ORA-00604"
    raised = "ORA-20101: VENUS: open\nORA-06512: at line 5"
    assert (error_code(Exception(raised)), first_line(Exception(raised))) == ("ORA-20101", "ORA-20101: VENUS: open")


def test_privileges_on_schemas_are_enough_in_23ai(module: Module, session: OracleSession) -> None:
    options = OracleOptions(schemas=("APP", "HR"))
    privileges = ("CREATE ANY TRIGGER", "SELECT ANY TABLE")
    rows = [[privilege, schema] for privilege in privileges for schema in ("APP", "HR")]

    def missing_privileges(version: str) -> set[str]:
        dictionary = OracleDictionary(session, find_version(version), "VENUS", options.schemas)
        found = check(session, dictionary, find_version(version), options, ["*"], [])
        return {f.message.split(" is not")[0] for f in found if f.where == "privileges"} & set(privileges)

    module.answers["SELECT PRIVILEGE, SCHEMA"] = [Answer(types=[double.VARCHAR] * 2, rows=rows)]
    assert missing_privileges("23ai") == set()
    assert missing_privileges("19c") == set(privileges)
    module.answers["SELECT PRIVILEGE, SCHEMA"] = [Answer(types=[double.VARCHAR] * 2, rows=rows[:-1])]
    assert missing_privileges("23ai") == {"SELECT ANY TABLE"}


def test_the_fence_waits_until_the_table_is_free(
    module: Module, session: OracleSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    waits = error(
        "ORA-20101", "VENUS: a transaction that wrote APP.EXAM before its triggers were enabled is still open"
    )
    fence = InstallStep(table="APP.EXAM", what="fence", sql=ddl.fence_block(make_full_table().keyed))
    assert "LOCK TABLE" not in fence.sql
    module.answers[fence.sql] = [Answer(error=waits), Answer(error=waits), Answer()]
    installer.run_steps(session, [OracleStep(shown=fence, kind="run")])
    said = [text for text, _ in module.said if text in (fence.sql, "COMMIT")]
    assert said == [fence.sql, fence.sql, fence.sql, "COMMIT"]


def test_ddl_on_a_busy_table_is_retried_but_not_after_a_lost_connection(
    module: Module, session: OracleSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    step = OracleStep(shown=InstallStep(table="APP.EXAM", what="trigger X", sql="CREATE TRIGGER X"), kind="run")
    module.answers["CREATE TRIGGER"] = [Answer(error=error("ORA-00054", "resource busy")), Answer()]
    installer.run_steps(session, [step])
    said = [text for text, _ in module.said]
    assert said.count("CREATE TRIGGER X") == 2
    assert said.index("ALTER SESSION SET DDL_LOCK_TIMEOUT = 5") < said.index("CREATE TRIGGER X")
    module.answers["CREATE TRIGGER"] = [Answer(error=error("ORA-03113", "end-of-file on communication channel"))]
    with pytest.raises(DatabaseUnavailable):
        installer.run_steps(session, [step])
    assert [text for text, _ in module.said].count("CREATE TRIGGER X") == 3


def test_missing_privileges_are_ready_grants(module: Module, session: OracleSession) -> None:
    module.answers["SELECT PRIVILEGE"] = [Answer(types=[double.VARCHAR], rows=[["CREATE TABLE"]])]
    dictionary = OracleDictionary(session, find_version("19c"), "VENUS", ["APP"])
    found = list(check(session, dictionary, find_version("19c"), OracleOptions(schemas=("APP",)), ["*"], []))
    remedies = {f.remedy for f in found if f.blocks}
    assert 'GRANT CREATE TRIGGER TO "VENUS";' in remedies
    assert 'GRANT CREATE ANY TRIGGER TO "VENUS";' in remedies
    assert 'GRANT CREATE TABLE TO "VENUS";' not in remedies
    assert any("QUOTA" in remedy for remedy in remedies)


def test_an_identity_is_suggested_for_a_table_without_a_key(module: Module, session: OracleSession) -> None:
    listed = [["APP", "NOKEY", "NO", "3", "N", "NO", "N", None, None, "DISABLED"]]
    column: list[Any] = ["NOKEY", "NOTE", "VARCHAR2", None, "40", "10", "C", None, None, "Y", None]
    module.answers["SELECT T.OWNER"] = [Answer(types=[double.VARCHAR] * 10, rows=listed), Answer()]
    module.answers["SELECT C.TABLE_NAME, C.COLUMN_NAME, C.DATA_TYPE"] = [
        Answer(types=[double.VARCHAR] * 11, rows=[column])
    ]
    dictionary = OracleDictionary(session, find_version("19c"), "APP", [])
    found = [
        f for f in check(session, dictionary, find_version("19c"), OracleOptions(), ["*"], []) if f.where == "APP.NOKEY"
    ]
    assert "neither a primary key" in found[0].message
    assert "INVISIBLE" in found[0].remedy
    assert found[0].blocks


def test_low_space_and_unreadable_rows_are_findings(module: Module, session: OracleSession) -> None:
    module.answers["SELECT U.DEFAULT_TABLESPACE"] = [Answer(types=[double.VARCHAR] * 2, rows=[["USERS", 30 << 20]])]
    quota = [["LOGS", 900 << 20, 1000 << 20], ["USERS", 5, -1]]
    module.answers["SELECT TABLESPACE_NAME"] = [Answer(types=[double.VARCHAR] * 3, rows=quota)]
    found = list(room_findings(session))
    assert [f.message for f in found] == [
        "tablespace USERS has 30 MiB free in its present files",
        "the quota on LOGS has 100 MiB left",
    ]
    module.answers["SELECT COUNT(*), SUM"] = [Answer(error=error("ORA-01031", "insufficient privileges"))]
    (found_here,) = sample_findings(session, make_full_table(), "VENUS")
    assert found_here.remedy == 'GRANT SELECT ON "APP"."EXAM" TO "VENUS";'
    assert found_here.blocks


def test_a_large_table_is_sampled_by_blocks() -> None:
    table = make_full_table()
    assert "SAMPLE" not in sample_query(table)
    large = replace(table, listed=replace(table.listed, rows=10_000_000))
    assert 'FROM "APP"."EXAM" SAMPLE BLOCK (0.200000) WHERE ROWNUM <= 20000' in sample_query(large)


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("ORA-01555", ErrorAction.AGAIN),
        ("ORA-08103", ErrorAction.AGAIN),
        ("ORA-22922", ErrorAction.AGAIN),
        ("ORA-08176", ErrorAction.AGAIN),
        ("ORA-08177", ErrorAction.AGAIN),
        ("ORA-04068", ErrorAction.AGAIN),
        ("ORA-01013", ErrorAction.RECONNECT),
        ("ORA-03113", ErrorAction.RECONNECT),
        ("ORA-03114", ErrorAction.RECONNECT),
        ("ORA-03135", ErrorAction.RECONNECT),
        ("ORA-12170", ErrorAction.RECONNECT),
        ("ORA-12541", ErrorAction.RECONNECT),
        ("ORA-12154", ErrorAction.FAIL),
        ("ORA-00060", ErrorAction.WAIT),
        ("ORA-00054", ErrorAction.WAIT),
        ("ORA-01031", ErrorAction.DENIED),
        ("ORA-28000", ErrorAction.DENIED),
        ("ORA-01653", ErrorAction.SPACE),
        ("ORA-00001", ErrorAction.FAIL),
        ("ORA-04098", ErrorAction.FAIL),
        ("ORA-01591", ErrorAction.WAIT),
        ("ORA-04031", ErrorAction.WAIT),
        ("ORA-00603", ErrorAction.RECONNECT),
        ("ORA-25401", ErrorAction.RECONNECT),
        ("ORA-25409", ErrorAction.RECONNECT),
        ("ORA-16456", ErrorAction.RECONNECT),
        ("ORA-01950", ErrorAction.SPACE),
        ("ORA-01652", ErrorAction.SPACE),
        ("ORA-30036", ErrorAction.SPACE),
        ("ORA-01655", ErrorAction.SPACE),
        ("ORA-30032", ErrorAction.SPACE),
        ("ORA-04036", ErrorAction.WAIT),
        ("ORA-03111", ErrorAction.RECONNECT),
        ("ORA-12152", ErrorAction.RECONNECT),
        ("ORA-12523", ErrorAction.RECONNECT),
        ("ORA-12757", ErrorAction.RECONNECT),
        ("ORA-47401", ErrorAction.DENIED),
        ("DPY-4001", ErrorAction.DENIED),
        ("DPY-3010", ErrorAction.THICK),
        ("DPY-3015", ErrorAction.THICK),
    ],
)
def test_the_table_of_error_codes_is_complete(code: str, action: ErrorAction) -> None:
    assert error_action(code) is action


def test_keys_of_the_national_character_set_are_bound_as_such(module: Module, session: OracleSession) -> None:
    """Bound as ordinary text they would lose characters that the database's own character set lacks."""
    access = build_access(national_table())
    cursor = FillCursor([["text", "日本"]], [["text", "語"]]).cursor
    ((sql, binds),) = access.fill.build_reads(cursor, 1)
    session.fetch_rows(sql, binds)
    assert module.bound == {"p1": double.NVARCHAR, "e1": double.NVARCHAR}
    key = access.readings[0]
    assert isinstance(bind_value(key, access.layout.columns[0].type, "日本"), NationalText)
    assert not isinstance(key.bind_value(Decimal(1)), NationalText)


def national_table() -> OracleTable:
    rows = [("W", "NVARCHAR2", None, 40, 20, "C", None, None, "N", None)]
    listed = ListedTable(owner="APP", name="WORD", partitioned=False, rows=0)
    return with_id(build_table(listed, rows, [("WORD_PK", "P", "W")]), 1)


@pytest.mark.parametrize(
    ("kind", "used", "chars", "log_type", "logged"),
    [
        ("CHAR", "B", 10, "VARCHAR2(4000 CHAR)", "CAST(K1 AS CHAR(10 BYTE))"),
        ("CHAR", "C", 10, "VARCHAR2(4000 CHAR)", "CAST(K1 AS CHAR(10 CHAR))"),
        ("NCHAR", "C", 10, "NVARCHAR2(2000)", "CAST(K1 AS NCHAR(10))"),
        ("VARCHAR2", "B", 10, "VARCHAR2(4000 CHAR)", "K1"),
        ("VARCHAR2", "B", 5000, "VARCHAR2(32767 CHAR)", "K1"),
        ("NVARCHAR2", "C", 10, "NVARCHAR2(2000)", "K1"),
        ("NVARCHAR2", "C", 3000, "NVARCHAR2(16383)", "K1"),
    ],
)
def test_a_text_key_is_logged_in_its_widest_type(kind: str, used: str, chars: int, log_type: str, logged: str) -> None:
    rows = [("W", kind, None, 40, chars, used, None, None, "N", None)]
    table = build_table(ListedTable(owner="APP", name="WORD", partitioned=False, rows=0), rows, [("WORD_PK", "P", "W")])
    assert table.keyed.key[0].log_type == log_type
    assert table.readings["W"].cast_logged("K1") == logged
