"""Output of `install-triggers` and `uninstall-triggers`: one line for each table, whatever was executed for it."""

from __future__ import annotations

from venus.adapters.dialects.contract import InstallStep
from venus.cli.install import format_per_table


def test_each_table_has_one_line_and_no_object_is_named_twice() -> None:
    made = [
        InstallStep(table=table, what=what, sql="")
        for table, what in [("", "VENUS's own tables")] * 3
        + [("shop.t", "log table venus.l_1"), ("shop.t", "function venus.f_1"), ("shop.t", "function venus.f_1")]
        + [("shop.u", "log table venus.l_2"), ("shop.t", "registration")]
    ]

    assert format_per_table("+", made) == [
        "+ VENUS's own tables",
        "+ shop.t: log table venus.l_1, function venus.f_1, registration",
        "+ shop.u: log table venus.l_2",
    ]
