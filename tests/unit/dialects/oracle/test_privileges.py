"""A table that the dictionary does not show is dropped or invisible; tested on a double of the driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.oracle import double
from tests.support.oracle.double import Answer, Module, error
from venus.adapters.dialects.contract import FillState, RegisteredTable
from venus.adapters.dialects.oracle.installation.schema_changes import find_missing_grants
from venus.adapters.dialects.oracle.installation.table_comparison import (
    OracleInstalledTrigger,
    OracleTableComparison,
    compare_table,
)
from venus.adapters.dialects.oracle.registry import REASON_CHARS, OracleRegistryEntry
from venus.adapters.dialects.oracle.session.connection import OracleNotPermitted, OracleSession
from venus.adapters.dialects.oracle.session.driver import ModuleDriver
from venus.model import Column, Kind, LogicalType, Sequence, TableSchema

TRIGGER = OracleInstalledTrigger(enabled=True, valid=True, on="SHOP.ITEM", text="")
GRANT = "`GRANT SELECT ON SHOP.ITEM TO VENUS`"
READING = 'SELECT 1 FROM "SHOP"'
ASKING = "SELECT 1 FROM DBA_TABLES"


@pytest.fixture
def module() -> Module:
    return Module()


@pytest.fixture
def session(module: Module) -> OracleSession:
    return OracleSession(ModuleDriver("db/shop", double.Error, module, module.connect))


def make_captured(
    *, owner: str = "SHOP", name: str = "ITEM", state: str = "ACTIVE", reason: str = ""
) -> OracleRegistryEntry:
    column = Column(name="ID", number=1, type=LogicalType(kind=Kind.INT, length=8), nullable=False)
    schema = TableSchema(table_id=7, version=1, namespace=owner, name=name, columns=(column,), key=("ID",))
    fill = FillState(table_id=7, sweep_from=Sequence(0), cursor=b"", rows_done=0, rows_estimate=0, done=True)
    return OracleRegistryEntry(
        table=RegisteredTable(schema=schema, state=state, reason=reason, fill=fill), number_max=1
    )


def compare_privileges(
    session: OracleSession, present: dict[str, OracleInstalledTrigger], *, owner: str = "SHOP", listed: bool = False
) -> str:
    shown = {("SHOP", "ITEM")} if listed else set()
    return find_missing_grants(session, "VENUS", [make_captured(owner=owner)], shown, present).get(7, "")


def test_a_table_that_still_has_our_triggers_was_not_dropped(session: OracleSession) -> None:
    assert compare_privileges(session, {"VENUS_I_00007": TRIGGER}) == GRANT
    assert compare_privileges(session, {"VENUS_C_00007": TRIGGER}) == GRANT


def test_a_table_whose_triggers_are_on_another_one_was_renamed(session: OracleSession) -> None:
    assert compare_privileges(session, {"VENUS_I_00007": replace(TRIGGER, on="SHOP.THING")}) == ""


def test_without_triggers_a_dba_view_decides(module: Module, session: OracleSession) -> None:
    module.answers[ASKING] = [Answer(types=[double.NUMBER], rows=[["1"]])]
    assert compare_privileges(session, {}) == GRANT
    module.answers[ASKING] = [Answer(types=[double.NUMBER], rows=[])]
    assert compare_privileges(session, {}) == ""


def test_without_an_answer_both_possibilities_are_named(module: Module, session: OracleSession) -> None:
    module.answers[ASKING] = [Answer(error=error("ORA-00942", "table or view does not exist"))]
    assert compare_privileges(session, {"VENUS_I_00008": TRIGGER}) == (
        f"{GRANT}, or if it was dropped or renamed, which looks alike: `venus uninstall-triggers SHOP.ITEM`"
    )


def test_a_missing_table_of_the_user_was_dropped(session: OracleSession) -> None:
    assert compare_privileges(session, {}, owner="VENUS") == ""


@pytest.mark.parametrize("code", ["ORA-00942", "ORA-01031", "ORA-41900"])
def test_a_visible_table_that_cannot_be_read_lacks_the_grant(module: Module, session: OracleSession, code: str) -> None:
    module.answers[READING] = [Answer(error=error(code)), Answer(error=error(code))]
    assert compare_privileges(session, {"VENUS_I_00007": TRIGGER}, listed=True) == GRANT


def test_a_table_that_can_be_read_lacks_nothing(session: OracleSession) -> None:
    assert compare_privileges(session, {"VENUS_I_00007": TRIGGER}, listed=True) == ""


def test_names_that_are_no_plain_identifiers_are_quoted(module: Module, session: OracleSession) -> None:
    named = make_captured(owner="Shop", name="Item 1")
    present = {"VENUS_I_00007": replace(TRIGGER, on="Shop.Item 1")}
    grant = find_missing_grants(session, "VENUS", [named], set(), present)[7]
    assert grant == '`GRANT SELECT ON "Shop"."Item 1" TO VENUS`'


def test_a_missing_privilege_is_named_as_a_grant(module: Module, session: OracleSession) -> None:
    module.answers["SELECT X"] = [Answer(error=error("ORA-01031", "insufficient privileges"))]
    with pytest.raises(OracleNotPermitted, match="ORA-01031") as refused:
        session.fetch_rows("SELECT X")
    assert refused.value.retryable


def test_a_reason_that_is_too_long_keeps_the_missed_changes() -> None:
    before = make_captured(state="RESYNC", reason="x" * REASON_CHARS)
    state, reason = OracleTableComparison(
        captured=before, table=None, grant="`" + "y" * REASON_CHARS + "`"
    ).new_state or ("", "")
    assert (state, len(reason)) == ("PAUSED", REASON_CHARS)
    halted = make_captured(state=state, reason=reason)
    assert OracleTableComparison(captured=halted, table=None, grant="`" + "y" * REASON_CHARS + "`").new_state is None
    assert (OracleTableComparison(captured=halted, table=None).new_state or ("", ""))[0] == "RESYNC"


def test_a_table_that_was_dropped_needs_a_resync() -> None:
    assert compare_table(make_captured(), None, {}).reason == "the table is gone: dropped or renamed at the source"
