"""After statements on partitions, which fire no trigger, the source is compared, and only differences are shipped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.oracle.standin import StandIn
from tests.support.pipelines.end_to_end import EndToEnd, Loop, end_to_end, run_at
from venus.adapters.dialects.contract import RegisteredTable, Source
from venus.adapters.dialects.oracle import source as oracle_source
from venus.adapters.dialects.oracle import verify as oracle_verify
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.registry import open_source
from venus.adapters.verify import differences, slice_tasks, table_comparison
from venus.adapters.verify.differences import ComparedFill, ComparisonEnded
from venus.adapters.verify.findings import ComparisonVerdict
from venus.cli.tables import request_comparison
from venus.config import TargetSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
ROWS = 80
#: Keys of rows that the application changes meanwhile.
BUSY = "mod(id, 10) = 1"


@pytest.fixture(scope="module", params=["postgresql", "oracle-standin", "mariadb"])
def parted_table(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PartitionedTable]:
    server: Server = request.getfixturevalue("postgres_server")
    target = server.create_database()
    made: PartitionedTable
    if request.param == "mariadb":
        maria: MariaServer = request.getfixturevalue("mariadb_server")
        made = MariaParted(maria.create_database(), maria)
    elif request.param == "postgresql":
        made = PostgresParted(server.create_database())
    else:
        made = OracleParted(request.getfixturevalue("mariadb_oracle_server"))
    with pytest.MonkeyPatch.context() as patch:
        made.prepare(patch)
        made.create()
        with end_to_end(tmp_path_factory.mktemp("way"), made.url, target, tables=["t"]) as e2e:
            made.e2e = e2e
            e2e.install()
            e2e.load()
            e2e.start()
            e2e.wait_until_caught_up()
            yield made
    server.drop_database(target)


class PartitionedTable:
    """A source with a table t of partitions by its column p."""

    e2e: EndToEnd
    #: Whether VENUS notices every statement on a partition and compares by itself.
    knows = True
    #: The partition that was lost last.
    lost = -1

    def __init__(self, url: str) -> None:
        self.url = url

    def prepare(self, patch: pytest.MonkeyPatch) -> None:
        """Prepare the database as the dialect needs it."""

    def create(self) -> None:
        """Create the table and fill it."""
        raise NotImplementedError

    def run(self, *statements: str) -> None:
        """Execute statements of the application."""
        run_at(self.url, *statements)

    def lose(self, partition: int, rng: random.Random) -> None:
        """Make the rows of a partition vanish without a trigger; other rows may appear."""
        self.lost = partition
        self._lose(partition, rng)

    def _lose(self, partition: int, rng: random.Random) -> None:
        """Execute the statement that makes the rows vanish."""
        raise NotImplementedError

    def _has_lost(self) -> bool:
        """Whether the target has lost the rows as well."""
        return not any(p == self.lost and number < ROWS for number, p in self.versions())

    def read_registration(self) -> RegisteredTable:
        """Return the table as the registry has it."""
        with closing(open_source(self.e2e.settings)) as source:
            return find_table(source)

    def wait_until_noticed(self, before: str = "") -> None:
        """Wait until capture has noticed the loss; request a comparison if the dialect does not compare by itself."""
        if self.knows:
            self.e2e.until(  # a comparison of few rows may be over before a look at it
                lambda: self.read_registration().reason != before or self._has_lost(), "capture to notice the statement"
            )
            return
        self.e2e.until(lambda: self.read_registration().state == "RESYNC", "capture to notice the statement")
        with closing(open_source(self.e2e.settings)) as source:
            table_id = find_table(source).schema.table_id
            source.capture.restart_fill(table_id)
            assert request_comparison(source, table_id)

    def wait_until_compared(self) -> None:
        """Wait until the comparison has ended and the target has everything."""
        self.e2e.until(
            lambda: (t := self.read_registration()).fill.done and t.state == "ACTIVE", "the comparison to end"
        )
        self.e2e.wait_until_caught_up()

    def start_over(self, value: str) -> None:
        """Set this value in every row, and wait until the target has it."""
        self.e2e.resume()
        self.run("DELETE FROM t", *(f"INSERT INTO t VALUES ({n}, {n % PARTITIONS}, '{value}')" for n in range(ROWS)))
        self.wait_until_compared()

    def versions(self) -> dict[tuple[int, int], tuple[str, str]]:
        """Return value and row version of each row of the target; an applied row gets another version."""
        namespace = self.read_registration().schema.namespace.lower()
        rows = self.e2e.at_target(f'SELECT id, p, v, xmin::text FROM "{namespace}".t')
        return {(number, p): (v, version) for number, p, v, version in rows}

    def assert_equal(self) -> None:
        found = self.e2e.verify(tables=("t",), leg="all")
        assert found.verdict is ComparisonVerdict.SAME, (found.differences, found.undecided_rows)


class MariaParted(PartitionedTable):
    """MariaDB: TRUNCATE, DROP and EXCHANGE PARTITION; no log entry names the statement."""

    knows = False

    def __init__(self, url: str, server: MariaServer) -> None:
        super().__init__(url)
        self.server = server

    def create(self) -> None:
        bounds = ", ".join(f"PARTITION p{n} VALUES IN ({n})" for n in range(PARTITIONS))
        columns = "id int, p int, v varchar(20), PRIMARY KEY (id, p)"
        self.run(f"CREATE TABLE t ({columns}) PARTITION BY LIST (p) ({bounds})")
        self.fill()

    def fill(self) -> None:
        """Insert the first rows."""
        self.run(*(f"INSERT INTO t VALUES ({n}, {n % PARTITIONS}, 'first')" for n in range(ROWS)))

    def run(self, *statements: str) -> None:
        with closing(self.server.connect(self.url.rpartition("/")[2])) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            session.commit()

    def _lose(self, partition: int, rng: random.Random) -> None:
        match rng.choice(("truncate", "drop", "exchange")):
            case "truncate":
                self.run(f"ALTER TABLE t TRUNCATE PARTITION p{partition}")
            case "drop":
                self.run(
                    f"ALTER TABLE t DROP PARTITION p{partition}",
                    f"ALTER TABLE t ADD PARTITION (PARTITION p{partition} VALUES IN ({partition}))",
                )
            case _:
                self.exchange(partition)

    def exchange(self, partition: int) -> None:
        """Exchange a partition with a table of other rows, in a session with autocommit.

        Without autocommit MariaDB 10.11 blocks itself until innodb_lock_wait_timeout: the statement has read that table
        in the session's transaction, and waits in another transaction for a lock on it.
        """
        statements = (
            "CREATE OR REPLACE TABLE stage (id int, p int, v varchar(20), PRIMARY KEY (id, p))",
            f"INSERT INTO stage VALUES (900, {partition}, 'new'), (901, {partition}, 'new')",
            f"ALTER TABLE t EXCHANGE PARTITION p{partition} WITH TABLE stage",
        )
        for statement in statements:
            self.server.execute(statement, self.url.rpartition("/")[2])


class OracleParted(MariaParted):
    """The Oracle stand-in, whose DDL trigger notes each statement."""

    knows = True

    def __init__(self, server: MariaServer) -> None:
        super().__init__("oracle+oracledb://venus@nowhere/", server)
        self.standin = StandIn(server)

    def prepare(self, patch: pytest.MonkeyPatch) -> None:
        self.standin.prepare()
        for module in (oracle_source, oracle_verify):
            patch.setattr(module, "parse_driver_url", lambda _: (self.standin, OracleOptions()))

    def create(self) -> None:
        bounds = ", ".join(f"PARTITION p{n} VALUES IN ({n})" for n in range(PARTITIONS))
        columns = "id NUMBER(9) NOT NULL, p NUMBER(9) NOT NULL, v VARCHAR(20), PRIMARY KEY (id, p)"
        self.run(f"CREATE TABLE t ({columns}) PARTITION BY LIST (p) ({bounds})")
        self.fill()

    def _lose(self, partition: int, rng: random.Random) -> None:
        """Execute the statement while capture is away: an Oracle writes its note in the statement's own transaction."""
        if is_capturing := "capture" in self.e2e.loops:
            self.e2e.stop("capture")
        super()._lose(partition, rng)
        if is_capturing:
            self.e2e.start("capture")

    def exchange(self, partition: int) -> None:
        """Change the rows as the statement would, which the stand-in does not support as Oracle does."""
        log = f"VENUS_L_{self.read_registration().schema.table_id:05}"
        self.run(
            f"ALTER TABLE t TRUNCATE PARTITION p{partition}",
            f"INSERT INTO t VALUES (900, {partition}, 'new'), (901, {partition}, 'new')",
            f"DELETE FROM {log} WHERE k1 >= 900",
        )

    def run(self, *statements: str) -> None:
        with closing(StandInPlace(self.standin).connect()) as app:
            for statement in statements:
                app.execute(statement)
            app.commit()


class PostgresParted(PartitionedTable):
    """PostgreSQL: DROP and DETACH of a partition. TRUNCATE of a partition fires triggers and is captured."""

    def create(self) -> None:
        self.run(
            "CREATE TABLE t (id int, p int, v text, PRIMARY KEY (id, p)) PARTITION BY LIST (p)",
            *(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES IN ({n})" for n in range(PARTITIONS)),
            f"INSERT INTO t SELECT n, n % {PARTITIONS}, 'first' FROM generate_series(0, {ROWS - 1}) n",
        )

    def _lose(self, partition: int, rng: random.Random) -> None:
        if rng.choice((True, False)):
            self.run(f"ALTER TABLE t DETACH PARTITION t{partition}")
        self.run(f"DROP TABLE t{partition}")

    def start_over(self, value: str) -> None:
        self.e2e.resume()
        self.run(
            *(f"CREATE TABLE IF NOT EXISTS t{n} PARTITION OF t FOR VALUES IN ({n})" for n in range(PARTITIONS)),
        )
        super().start_over(value)


def find_table(source: Source) -> RegisteredTable:
    return next(t for t in source.registry.read_registered_tables() if t.schema.name.lower() == "t")


class BusyRows:
    """An application that changes rows of all partitions within the block."""

    def __init__(self, parted_table: PartitionedTable) -> None:
        self._parted = parted_table
        self._loop: Loop

    def _write(self, stop: Event) -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            self._parted.run(f"UPDATE t SET v = 'busy{number}' WHERE {BUSY}")

    def __enter__(self) -> None:
        self._loop = Loop(self._write)

    def __exit__(self, *_: object) -> None:
        self._loop.end()


@pytest.mark.parametrize("seed", range(3))
def test_only_differences_are_shipped_after_partition_ddl(parted_table: PartitionedTable, seed: int) -> None:
    rng = random.Random(seed)
    parted_table.start_over(f"v{seed}")
    before = parted_table.versions()
    assert len(before) == ROWS
    lost = rng.randrange(PARTITIONS)

    with BusyRows(parted_table):
        parted_table.lose(lost, rng)
        parted_table.wait_until_noticed()
        parted_table.e2e.until(lambda: parted_table.read_registration().fill.done, "the comparison to end")
    parted_table.wait_until_compared()

    parted_table.assert_equal()
    now = parted_table.versions()
    kept = [key for key in before if key[1] != lost and key[0] % 10 != 1]
    assert [key for key in kept if now[key] != before[key]] == [], "rows of other partitions travel"
    table = parted_table.read_registration()
    assert (table.state, table.reason) == ("ACTIVE", "")


def test_a_stop_while_comparing_loses_nothing(parted_table: PartitionedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture stops after each portion of keys is in the log, as if it were killed there."""
    parted_table.start_over("stopped")
    monkeypatch.setattr(differences, "KEYS_AT_ONCE", 3)
    stops: list[str] = []
    ship = ComparedFill._ship

    def stop_behind_a_portion(self: ComparedFill, source: Any, reader: Any, *args: Any) -> None:
        ends, subject, suspects = args
        ship(self, source, reader, ends, subject, suspects[: len(suspects) // 2])
        stops.append(self.table.reason)
        raise ComparisonEnded

    def wait_for_stops(count: int) -> None:
        parted_table.e2e.until(lambda: len(stops) >= count, "the comparison to be stopped")

    monkeypatch.setattr(ComparedFill, "_ship", stop_behind_a_portion)
    parted_table.lose(0, random.Random(5))
    parted_table.wait_until_noticed()
    for number in range(2):
        wait_for_stops(number + 1)
        parted_table.e2e.stop("capture")
        table = parted_table.read_registration()
        assert table.is_compared, "it is begun again"
        if number:
            monkeypatch.undo()
        parted_table.e2e.start("capture")
    parted_table.wait_until_compared()
    parted_table.assert_equal()


def test_rows_lost_during_a_comparison_are_compared_as_well(
    parted_table: PartitionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second statement runs when the first comparison has read everything, and before it ends."""
    parted_table.start_over("twice")
    advance, ends, first = ComparedFill._advance, list[bool](), [True]

    def lose_more(self: ComparedFill, source: Source, *, after: str, done: bool = False) -> bool:
        if done and first:
            first.clear()
            parted_table.lose(2, random.Random(2))
            parted_table.wait_until_noticed(self.table.reason)
        found = advance(self, source, after=after, done=done)
        ends.extend([found] if done else [])
        return found

    monkeypatch.setattr(ComparedFill, "_advance", lose_more)
    parted_table.lose(1, random.Random(1))
    parted_table.wait_until_noticed()
    parted_table.e2e.until(lambda: True in ends, "the last comparison to end")
    assert not ends[0], "the first one has not seen what was lost then"
    parted_table.wait_until_compared()
    parted_table.assert_equal()


def test_too_many_differences_in_a_slice_cause_a_new_fill(
    parted_table: PartitionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted_table.start_over("many")
    monkeypatch.setattr(slice_tasks, "SUSPECT_BYTES_MAX", 1)
    monkeypatch.setattr(slice_tasks, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(differences, "PASSES_MAX", 1)
    before = parted_table.versions()
    parted_table.lose(0, random.Random(1))
    parted_table.wait_until_noticed()
    parted_table.wait_until_compared()
    parted_table.assert_equal()
    kept = [key for key in before if key[1] != 0]
    now = parted_table.versions()
    assert all(now[key][0] == before[key][0] for key in kept)


def test_differences_are_shipped_while_the_table_is_compared(
    parted_table: PartitionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices have few rows, and a portion of suspect keys follows each."""
    parted_table.start_over("portions")
    for name, value in {"SLICE_BYTES": 300, "PORTION_ROWS": 2}.items():
        monkeypatch.setattr(table_comparison, name, value)
    monkeypatch.setattr(differences, "KEYS_AT_ONCE", 2)
    with BusyRows(parted_table):
        parted_table.lose(3, random.Random(4))
        parted_table.wait_until_noticed()
        parted_table.e2e.until(lambda: parted_table.read_registration().fill.done, "the comparison to end")
    parted_table.wait_until_compared()
    parted_table.assert_equal()


def test_a_target_with_a_predicate_and_column_rules_gets_only_its_rows(
    tmp_path: Path, database: str, second_database: str
) -> None:
    parted_table = PostgresParted(database)
    parted_table.create()
    with end_to_end(tmp_path, database, second_database, tables=["t"]) as e2e:
        given = e2e.settings.targets["main"].model_dump(by_alias=True)
        rules = {"where": {"t": "id < 40"}, "columns": {"t.v": {"truncate": 2}}}
        target = TargetSettings.model_validate({**given, **rules})
        e2e.settings = e2e.settings.model_copy(update={"targets": {"main": target}})
        parted_table.e2e = e2e
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.wait_until_caught_up()
        before = parted_table.versions()
        assert len(before) == 40

        with BusyRows(parted_table):
            parted_table.lose(1, random.Random(1))
            parted_table.wait_until_noticed()
            e2e.until(lambda: parted_table.read_registration().fill.done, "the comparison to end")
        parted_table.wait_until_compared()

        parted_table.assert_equal()
        now = parted_table.versions()
        assert now.keys() == {key for key in before if key[1] != 1}
        assert {v[0] for v, _ in now.values()} <= {"f", "b"}
        assert [key for key in now if key[0] % 10 != 1 and now[key] != before[key]] == []
