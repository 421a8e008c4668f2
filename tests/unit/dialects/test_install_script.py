"""The comment before each statement of a script that a DBA reads."""

from __future__ import annotations

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.statements import purpose_comment


def test_a_statement_for_no_table_has_no_table_name_in_its_comment() -> None:
    assert purpose_comment(InstallStep(table="", what="VENUS's own tables", sql="")) == "-- VENUS's own tables\n"
    assert purpose_comment(InstallStep(table="shop.t", what="log table l", sql="")) == "-- shop.t: log table l\n"
