"""The session of an Oracle target on a double of the driver: its statements, its binds, and its commits."""

from __future__ import annotations

import re

import pytest

from tests.support.brokers.feed import INT, column, items, settings_for, table
from tests.support.oracle.double import LONG, NUMBER, VARCHAR, Answer, Error, Module, error
from venus.adapters.dialects.oracle.session.driver import ModuleDriver
from venus.adapters.targets.oracle import session as sessions
from venus.adapters.targets.oracle.database import OracleTargetDatabase
from venus.adapters.targets.oracle.ddl import place_table
from venus.adapters.targets.oracle.rowsql import insert_rows, row_sql, statement
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.relational.session import DdlNeeded, Refusal
from venus.codec.columns import from_columns
from venus.codec.row_bytes import Layout
from venus.errors import DatabaseUnavailable, LoginRefused, TargetError
from venus.model import Kind, LogicalType


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    module.answers["SELECT USER"] = [Answer(types=[VARCHAR] * 2, rows=[["APP", "APP"]])]
    driver = ModuleDriver("double", Error, module, module.connect)
    monkeypatch.setattr(sessions, "open_driver", lambda url, option: driver)
    return module


@pytest.fixture
def session(module: Module) -> OracleTargetSession:
    opened = OracleTargetSession("oracle://u@h/x", application="apply main/o", target="o")
    module.said.clear()
    return opened


def test_a_transaction_commits_once_and_at_its_end(session: OracleTargetSession, module: Module) -> None:
    session.run("BEGIN; SAVEPOINT venus; DELETE FROM A; RELEASE SAVEPOINT venus; UPDATE B SET C = 1; COMMIT")
    assert [text for text, _ in module.said] == ["SAVEPOINT venus", "DELETE FROM A", "UPDATE B SET C = 1", "COMMIT"]
    session.run("DELETE FROM A")
    assert [text for text, _ in module.said][4:] == ["DELETE FROM A", "COMMIT"]


def test_an_upsert_inserts_only_if_its_update_found_no_row(session: OracleTargetSession, module: Module) -> None:
    values = {"group": "main/o", "table_id": 1, "purpose": "resync", "offset": 5, "business": "main"}
    for rows, words in ((1, ["UPDATE"]), (0, ["UPDATE", "INSERT"])):
        module.said.clear()
        module.answers["UPDATE"] = [Answer(rowcount=rows)]
        session.run("BEGIN")
        session.run(statement("own", "put_sweep"), values)
        assert [text.split()[0] for text, _ in module.said] == words
        session.rollback()


def test_only_the_values_of_a_statement_are_bound_and_an_empty_one_is_none(
    session: OracleTargetSession, module: Module
) -> None:
    values = {"group": "main/o", "table_id": 1, "state": "ACTIVE", "held_from": None, "reason": "", "business": "main"}
    session.run(statement("own", "set_state"), values)
    assert module.said[0][1] == {
        "p_group": "main/o",
        "p_table_id": 1,
        "p_state": "ACTIVE",
        "p_held_from": None,
        "p_reason": None,
    }


def test_values_inside_a_statement_text_are_bound(session: OracleTargetSession, module: Module) -> None:
    text = session.literal("UPDATE A SET B = :p_b, C = :p_c, D = ':p_d' WHERE E = :p_b", {"b": "it's", "c": 7})
    session.run(f"BEGIN; {text}; COMMIT")
    assert module.said[0] == ("UPDATE A SET B = :v1, C = 7, D = ':p_d' WHERE E = :v2", {"v1": "it's", "v2": "it's"})


def test_an_existing_or_missing_table_is_no_error_where_that_was_requested(
    session: OracleTargetSession, module: Module
) -> None:
    module.answers["CREATE TABLE A"] = [Answer(error=error("ORA-00955"))]
    module.answers["DROP TABLE A"] = [Answer(error=error("ORA-00942"))]
    session.run("CREATE TABLE IF NOT EXISTS A (B NUMBER(1))")
    session.run("DROP TABLE IF EXISTS A PURGE")
    assert [text for text, _ in module.said if text != "COMMIT"] == [
        "CREATE TABLE A (B NUMBER(1))",
        "DROP TABLE A PURGE",
    ]
    module.answers["DROP TABLE A"] = [Answer(error=error("ORA-00054"))]
    with pytest.raises(DatabaseUnavailable):
        session.run("DROP TABLE IF EXISTS A PURGE")


def test_errors_are_classified_by_the_reaction(session: OracleTargetSession, module: Module) -> None:
    refused = ("ORA-00001", "ORA-01400", "ORA-01438", "ORA-01861", "ORA-02290", "ORA-12899", "ORA-20007")
    for code in refused:
        module.answers["DELETE"] = [Answer(error=error(code, 'value too large for column "A" (actual: 9, maximum: 5)'))]
        with pytest.raises(Refusal) as found:
            session.write_many("DELETE FROM A WHERE B = :1", [(1,)])
        assert (found.value.sqlstate, "actual" in found.value.summary) == (code, False)
    for code, kind in (
        ("ORA-00060", DatabaseUnavailable),
        ("ORA-01653", DatabaseUnavailable),
        ("ORA-00904", TargetError),
    ):
        module.answers["DELETE"] = [Answer(error=error(code))]
        with pytest.raises(kind):
            session.run("DELETE FROM A")
    assert not session.is_closed
    module.answers["DELETE"] = [Answer(error=error("ORA-03113"))]
    with pytest.raises(DatabaseUnavailable):
        session.run("DELETE FROM A")
    assert session.is_closed


def test_a_locked_row_keeps_a_second_process_away(session: OracleTargetSession, module: Module) -> None:
    insert, select = statement("own", "make_lock"), statement("own", "try_lock")
    module.answers["INSERT INTO VENUS_TARGET_LOCK"] = [Answer(error=error("ORA-00001"))]
    module.answers["SELECT 1 FROM VENUS_TARGET_LOCK"] = [Answer(error=error("ORA-00054"))]
    assert not session.try_lock(insert, select, {"group": "main/o"})
    module.answers["SELECT 1 FROM VENUS_TARGET_LOCK"] = [Answer()]
    with pytest.raises(DatabaseUnavailable, match="cannot be written"):
        session.try_lock(insert, select, {"group": "main/o"})
    module.answers["SELECT 1 FROM VENUS_TARGET_LOCK"] = [Answer(types=[VARCHAR], rows=[["1"]])]
    assert session.try_lock(insert, select, {"group": "main/o"})


def test_the_end_of_the_locking_connection_is_noticed(
    session: OracleTargetSession, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, select = statement("own", "make_lock"), statement("own", "try_lock")
    module.answers["SELECT 1 FROM VENUS_TARGET_LOCK"] = [Answer(types=[VARCHAR], rows=[["1"]])]
    assert session.try_lock(insert, select, {"group": "main/o"})
    module.answers["SELECT 1 FROM DUAL"] = [Answer(error=error("ORA-02396", "exceeded maximum idle time"))]
    session.run("BEGIN; COMMIT")
    monkeypatch.setattr(sessions, "LOCK_CHECK_S", 0.0)
    with pytest.raises(DatabaseUnavailable, match="the connection that locks it is lost: ORA-02396"):
        session.run("BEGIN; COMMIT")
    assert session.is_closed


def test_a_refused_password_is_not_retried_at_once(module: Module) -> None:
    """Ten refusals lock the account."""
    module.answers["connect"] = [Answer(error=error("ORA-01017", "invalid username/password")) for _ in range(2)]
    for _ in range(20):
        with pytest.raises(LoginRefused, match="target double cannot be reached: ORA-01017") as refused:
            OracleTargetSession("oracle://u:wrong@other/x", application="apply main/o", target="o")
        assert refused.value.hint == "check user and password of url in [targets.o], and CREATE SESSION"
    assert module.connections == 1
    module.answers["connect"] = []
    OracleTargetSession("oracle://u:right@other/x", application="apply main/o", target="o").close()


def test_no_bind_determines_the_type_of_a_coalesce() -> None:
    """A NULL bind is a VARCHAR2 for the driver, and COALESCE needs arguments of one type."""
    texts = [statement("own", block) for block in statement.blocks("own")]
    assert [text for text in texts if re.search(r"(?i)coalesce\(:p_(?!n\d)", text)] == []


def test_a_blocking_session_is_named_if_visible(session: OracleTargetSession, module: Module) -> None:
    target = OracleTargetDatabase(settings_for("h:1", {"o": "oracle://app@h/x"}), "o")
    blocker = ["ITEMS", "17", "JOE", "laptop", "INACTIVE", "2026-11-25 15:00:00"]
    module.answers["SELECT O.OBJECT_NAME"] = [Answer(types=[VARCHAR] * 6, rows=[blocker])]
    (wait,) = target.find_lock_waits(session, {})
    assert (wait.name, wait.state) == ("APP.ITEMS", "WAITING")
    assert wait.reason == "for a lock of session 17 (user JOE, laptop, inactive, since 2026-11-25 15:00:00)"
    assert module.said[-1][1] == {"p_action": "apply main/o"}
    module.answers["SELECT O.OBJECT_NAME"] = [Answer(error=error("ORA-00942"))]
    assert target.find_lock_waits(session, {}) == []


def test_a_temporary_table_is_created_outside_of_the_transaction(session: OracleTargetSession, module: Module) -> None:
    sql = row_sql(place_table(items(), "APP", "auto"), "main/o")
    session.run("BEGIN")
    with pytest.raises(DdlNeeded, match="a temporary table for") as needed:
        sql.make_stage(session, sql.stage)
    assert [text for text, _ in module.said if text.startswith("CREATE")] == []
    session.rollback()
    needed.value.run()
    assert [text for text, _ in module.said][-2].startswith(f"CREATE GLOBAL TEMPORARY TABLE {sql.stage} (")


def test_lobs_are_bound_after_all_other_values(session: OracleTargetSession, module: Module) -> None:
    """No long value may follow one of a LOB (ORA-24816)."""
    short = LogicalType(kind=Kind.TEXT, length=9)
    schema = table(1, "items", column(1, "id", INT), column(2, "label"), column(3, "short", short))
    record_ids, rows = from_columns([["1"], ["x"], ["y"]], Layout.of(schema))
    insert_rows(session, row_sql(place_table(schema, "APP", "auto"), "main/o"), schema, record_ids, rows)
    assert [text for text, _ in module.said] == ['INSERT INTO "ITEMS" ("ID", "SHORT", "LABEL") VALUES (:1, :2, :3)']
    assert module.sizes == (NUMBER, None, LONG), "the driver chooses what a text of a VARCHAR2 is"


def test_an_empty_text_in_own_tables_is_read_as_empty(session: OracleTargetSession, module: Module) -> None:
    """An Oracle stores NULL; only a former predicate may be empty or missing, and has a prefix."""
    target = OracleTargetDatabase(settings_for("h:1", {"o": "oracle://app@h/x"}), "o")
    row = [1, 1, None, "ITEMS", "shop.items", "ACTIVE", None, None, 0, 0, 0, 0, 0, 1, None]
    former = [None, "=", "=amount < 1"]
    rows = [[*row, before, 0, 0] for before in former]
    module.answers["SELECT table_id, schema_version"] = [Answer(types=[VARCHAR] * 18, rows=rows)]
    found = target.read_tables(session)
    assert [(t.namespace, t.held_from, t.reason, t.predicate) for t in found] == [("", None, "", "")] * 3
    assert [t.predicate_before for t in found] == [None, "", "amount < 1"]
