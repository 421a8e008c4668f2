"""Cost of capture for a MariaDB application, and how fast VENUS reads: rows/s, a server of its own, nothing synced.

Run it with `python -m bench.capture_mariadb [rows]`. It measures twin tables in turn, one of them captured; then
the time from the application's commit until the cut is read and its local transaction is committed, beside the paper's
(on its own hardware).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import sqlalchemy

from tests.support.databases.mariadb import running_mariadb
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.mysql.source import MysqlSource
from venus.model import BatchNo, BatchRecord, Epoch, Sequence

COLUMNS = "id int PRIMARY KEY, name varchar(40) NOT NULL, class varchar(40) NOT NULL, address varchar(80) NOT NULL"
#: VENUS, table 5.
PAPER_S = {"insert": 18.161, "update": 18.084, "delete": 18.358}


def statements(table: str, rows: int) -> dict[str, str]:
    """Return an INSERT, an UPDATE and a DELETE of all rows, by kind."""
    return {
        "insert": f"INSERT INTO {table} SELECT seq, concat('student ', seq), concat('class ', seq % 100),"
        f" repeat('address ', 8) FROM seq_1_to_{rows}",
        "update": f"UPDATE {table} SET class = concat(class, '+')",
        "delete": f"DELETE FROM {table}",
    }


def measure_time(work: Callable[[], object]) -> float:
    """Return how many seconds the work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drain(source: Source) -> int:
    """Read and commit cuts until no change is left; return the number of changes."""
    found = 0
    while (cut := source.capture.open_cut([])) is not None:
        count = sum(s.count for s in cut.read_sections(rows_max=5000, bytes_max=1 << 20))
        state = source.registry.read_state()
        record = BatchRecord(
            batch_no=BatchNo(state.last_batch + 1),
            epoch=state.epoch,
            first_sequence=state.next_sequence,
            last_sequence=Sequence(state.next_sequence + count - 1),
            digest=0,
        )
        cut.commit(state.epoch, [record], [], record.batch_no)
        found += count
    return found


def measure(cursor: Any, source: Source, rows: int) -> None:
    """Print for each kind of statement the rows a second without and with triggers, and how long capture takes."""
    plain, captured = statements("plain", rows), statements("captured", rows)
    for kind in plain:
        without = measure_time(lambda kind=kind: cursor.execute(plain[kind]))  # type: ignore[misc]
        within = measure_time(lambda kind=kind: cursor.execute(captured[kind]))  # type: ignore[misc]
        began = time.perf_counter()
        count = drain(source)
        took = time.perf_counter() - began
        assert count == rows, count
        print(
            f"{kind:8} application {rows / without:12,.0f} rows/s, captured {rows / within:12,.0f};"
            f" capture {took:6.2f} s (paper: {PAPER_S[kind] * rows / 100_000:.2f} s)"
        )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with running_mariadb() as server:
        url = server.create_database()
        with closing(server.connect(sqlalchemy.make_url(url).database, autocommit=True)) as app:
            cursor = app.cursor()
            for table in ("plain", "captured"):
                cursor.execute(f"CREATE TABLE {table} ({COLUMNS})")
            with closing(MysqlSource(url)) as source:
                source.installer.install(["captured"], [])
                source.registry.raise_epoch(Epoch(1))
                source.capture.refresh_schemas()
                measure(cursor, source, rows)


if __name__ == "__main__":
    main()
