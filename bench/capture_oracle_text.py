"""Cost of the generated Oracle triggers, on MariaDB in Oracle mode: ratios, not the figures of an Oracle server.

Run it with `python -m bench.capture_oracle_text [rows]`. It measures equal tables in turn: without triggers, captured
(the default), and with the paper's own columns (inline). The time that VENUS needs to read the log is not measured:
MariaDB's driver needs a round trip for each deleted row, where Oracle's needs one for ten thousand.
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

from bench.capture_mariadb import measure_time
from tests.support.databases.mariadb import ORACLE_MODE, running_mariadb
from tests.support.oracle.standin import SCHEMA, StandIn
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource

COLUMNS = (
    '"ID" NUMBER(9) NOT NULL PRIMARY KEY, "NAME" VARCHAR2(40) NOT NULL, "CLASS" VARCHAR2(40) NOT NULL,'
    ' "ADDRESS" VARCHAR2(80) NOT NULL'
)
TABLES = {"plain": "without triggers", "LOGGED": "captured", "PAPER": "the paper's columns"}


def statements(table: str, rows: int) -> dict[str, str]:
    """Return an INSERT, an UPDATE and a DELETE of all rows, by kind; the paper's variant only marks rows as deleted."""
    gone = f'UPDATE "{table}" SET ISDELETED = 1' if table == "PAPER" else f'DELETE FROM "{table}"'
    return {
        "insert": f"""INSERT INTO "{table}" ("ID", "NAME", "CLASS", "ADDRESS")
            SELECT seq, CONCAT('student ', seq), CONCAT('class ', MOD(seq, 100)), REPEAT('address ', 8)
            FROM seq_1_to_{rows}""",
        "update": f"""UPDATE "{table}" SET "CLASS" = CONCAT("CLASS", '+')""",
        "delete": gone,
    }


def measure(cursor: Any, rows: int) -> None:
    """Print the rows a second of each kind of statement, without triggers and with each kind of triggers."""
    every = {table: statements(table, rows) for table in TABLES}
    for kind in ("insert", "update", "delete"):
        for table, what in TABLES.items():
            took = measure_time(lambda: cursor.execute(every[table][kind]))  # noqa: B023
            print(f"{kind:8} {what:20} {rows / took:12,.0f} rows/s")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with running_mariadb(ORACLE_MODE) as server:
        standin = StandIn(server)
        standin.prepare()
        with closing(server.connect(SCHEMA, autocommit=True)) as application:
            cursor = application.cursor()
            for table in TABLES:
                cursor.execute(f'CREATE TABLE "{table}" ({COLUMNS})')
            with closing(OracleSource(standin, OracleOptions(inline=True))) as paper:
                paper.installer.install(["PAPER"], [])
            with closing(OracleSource(standin)) as source:
                source.installer.install(["LOGGED"], ["PAPER"])
            measure(cursor, rows)


if __name__ == "__main__":
    main()
