"""The Oracle dialect as a side of a comparison, on MariaDB in Oracle mode: a stand-in, not an Oracle.

This tests the statements of adapters/dialects/oracle/sql/verify.sql as far as both databases support them, the keys of
the log, and the steps of a repair. It cannot show how an Oracle's optimiser or driver executes them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.support.databases.mariadb import MariaServer
from tests.support.oracle.standin import StandIn
from tests.support.pipelines.end_to_end import difference_keys, end_to_end
from venus.adapters.dialects.oracle import source, verify
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.verify.findings import ComparisonVerdict
from venus.adapters.verify.repair import run_repair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_planted_differences_are_found_on_the_stand_in(
    mariadb_oracle_server: MariaServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin = StandIn(mariadb_oracle_server)
    standin.prepare()
    place = StandInPlace(standin)
    for module in (source, verify):
        monkeypatch.setattr(module, "parse_driver_url", lambda _: (standin, OracleOptions()))
    with closing(place.connect()) as app:
        app.execute("CREATE TABLE item (id NUMBER(9) NOT NULL PRIMARY KEY, name VARCHAR(40), price NUMBER(10,2))")
        app.execute("CREATE TABLE word (w VARCHAR(40) NOT NULL, n NUMBER(9) NOT NULL, PRIMARY KEY (w, n))")
        for n in range(1, 201):
            app.execute("INSERT INTO item VALUES (?, ?, ?)", n, f"name {n}" if n % 5 else None, n / 4)
            app.execute("INSERT INTO word VALUES (?, ?)", f"wörd {n}", n)
        app.commit()
    with end_to_end(tmp_path, "oracle+oracledb://venus@nowhere/", database) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.wait_until_caught_up()
        same = e2e.verify(leg="all")
        assert same.verdict is ComparisonVerdict.SAME, (same.differences, same.undecided_rows)

        e2e.at_target(
            'SET search_path = "app"',
            "DELETE FROM item WHERE id = 7",
            "UPDATE item SET name = 'x' WHERE id = 9",
            "INSERT INTO word VALUES ('ghost', 1)",
        )
        e2e.until(lambda: not e2e.log_rows(), "the log to be empty")
        e2e.stop("capture")
        with closing(place.connect()) as app:  # the triggers' log rows are removed before capture reads them
            app.execute("UPDATE item SET price = 99 WHERE id = 11")
            app.execute("DELETE FROM VENUS_L_00001")
            app.execute("DELETE FROM VENUS_L_00002")
            app.execute("DELETE FROM VENUS_L_00003")
            app.execute("UPDATE item SET price = 98 WHERE id = 12")
            app.commit()

        planted = {
            ("item", ("7",), "missing", "apply"),
            ("item", ("9",), "different", "apply"),
            ("word", ("ghost", "1"), "extra", "apply"),
            ("item", ("11",), "different", "capture"),
        }
        result = e2e.verify(wait_s=0.2)
        assert {(t.lower(), *rest) for t, *rest in difference_keys(result)} == planted
        (waits,) = result.undecided_rows
        assert (*waits.key.values(), waits.reason) == ("12", "its change waits in the source's log")
        e2e.start("capture")
        done = run_repair(e2e.settings, "main", result, wait_s=60)
        assert done.left == []
        assert e2e.verify(leg="all").verdict is ComparisonVerdict.SAME
