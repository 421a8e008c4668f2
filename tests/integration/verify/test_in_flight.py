"""Changes in flight are never reported as differences; rows that cannot be decided are reported with the reason.

One PostgreSQL pipeline for the file; each test has a table of its own and leaves capture and apply running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys, run_at, start_numbered, values
from venus.adapters.dialects.postgresql import verify as postgresql
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.control import pause, resume
from venus.adapters.verify.findings import ComparisonVerdict, VerifyResult
from venus.adapters.verify.history import open_snapshot
from venus.adapters.verify.repair import run_repair
from venus.adapters.verify.run import VerificationFailed, VerifyOptions, run_verify
from venus.adapters.verify.slice_tasks import SliceResult, SliceTask, compare_slice
from venus.adapters.verify.table_comparison import VerifyProgress
from venus.errors import ConfigError, DatabaseUnavailable, VenusError
from venus.process.runners import Runner

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NAMES = ("behind", "logged", "sharing", "emptied", "racing", "refused", "paused", "partly", "spelt", "missed", "hidden")


@pytest.fixture(scope="module")
def e2e(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[EndToEnd]:
    with start_numbered(
        tmp_path_factory.mktemp("way"), postgres_server, NAMES, rows=200, on_error="quarantine"
    ) as made:
        yield made


def at_source(e2e: EndToEnd, *statements: str) -> None:
    run_at(e2e.source, *statements)


def verify_table(e2e: EndToEnd, table: str, **options: object) -> VerifyResult:
    return e2e.verify(tables=(table,), **options)


def test_a_lagging_target_is_waited_for_and_not_reported(e2e: EndToEnd) -> None:
    e2e.stop("apply")
    at_source(e2e, "UPDATE behind SET v = 'new' WHERE id < 10", "DELETE FROM behind WHERE id = 20")
    at_source(e2e, "INSERT INTO behind VALUES (999, 'new')")
    e2e.at_target("UPDATE behind SET v = 'by hand' WHERE id = 100")
    e2e.until(lambda: not e2e.log_rows(), "the capture")

    for leg in ("ends", "target"):
        stuck = verify_table(e2e, "behind", leg=leg, wait_s=0.2)
        assert difference_keys(stuck) == {("behind", ("100",), "different", "apply")}
        assert {u.key["id"] for u in stuck.undecided_rows} == {*map(str, range(1, 10)), "20", "999"}
        assert all("the target is at offset" in u.reason for u in stuck.undecided_rows)
        assert stuck.verdict is ComparisonVerdict.DIFFERENT

    threading.Timer(0.3, e2e.start, ["apply"]).start()
    moving = verify_table(e2e, "behind", wait_s=60.0)
    assert difference_keys(moving) == {("behind", ("100",), "different", "apply")}
    assert not moving.undecided_rows


def test_many_rows_in_flight_do_not_hide_a_wrong_one(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE hidden SET v = 'by hand' WHERE id = 150")
    e2e.stop("apply")
    at_source(e2e, "UPDATE hidden SET v = 'new' WHERE id < 10")
    e2e.until(lambda: not e2e.log_rows(), "the capture")

    started = threading.Event()

    def start_apply(_: object) -> None:
        """Start apply once the first slices, with the rows in flight, have been compared."""
        if not started.is_set():
            started.set()
            e2e.start("apply")

    chosen = VerifyOptions(target="main", tables=("hidden",), slice_rows=20, differences_max=5, wait_s=60.0)
    limited = run_verify(e2e.settings, chosen, report=start_apply)

    assert (limited.differences, limited.undecided_rows) == ([], [])
    assert limited.verdict is ComparisonVerdict.UNDECIDED


def test_a_change_that_is_not_captured_yet_is_not_reported_as_a_capture_fault(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    e2e.stop("capture")
    at_source(e2e, "UPDATE logged SET v = 'new' WHERE id < 4", "DELETE FROM logged WHERE id = 9")
    at_source(e2e, "SET session_replication_role = replica", "UPDATE logged SET v = 'past' WHERE id = 50")

    for leg in ("ends", "source"):
        waits = verify_table(e2e, "logged", leg=leg, wait_s=0.2)
        assert difference_keys(waits) == {("logged", ("50",), "different", "capture")}
        assert {(u.key["id"], u.reason) for u in waits.undecided_rows} == {
            (key, "its change waits in the source's log") for key in ("1", "2", "3", "9")
        }
    assert values(waits, "logged", ["50"]) == {"v": {"source": "past", "full data": "v50"}}

    threading.Timer(0.3, e2e.start, ["capture"]).start()
    moving = verify_table(e2e, "logged", wait_s=60.0)
    assert difference_keys(moving) == {("logged", ("50",), "different", "capture")}
    assert not moving.undecided_rows


def test_full_data_older_than_the_target_is_advanced_to_it(e2e: EndToEnd) -> None:
    """A snapshot is shared for half a minute while it has a lease: the comparison starts with its older state."""
    with open_snapshot(e2e.broker.address, "main", [], "test"):
        change_after_snapshot(e2e)


def change_after_snapshot(e2e: EndToEnd) -> None:
    at_source(e2e, "UPDATE sharing SET v = v || '!' WHERE id < 30", "DELETE FROM sharing WHERE id = 30")
    at_source(e2e, "DELETE FROM sharing WHERE id = 31", "INSERT INTO sharing VALUES (31, 'again'), (500, 'new')")
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE sharing SET v = 'by hand' WHERE id = 29")

    for leg in ("target", "source", "ends"):
        result = verify_table(e2e, "sharing", leg=leg, wait_s=0.0)
        assert not result.undecided_rows
        assert difference_keys(result) == (set() if leg == "source" else {("sharing", ("29",), "different", "apply")})
    # no difference on a machine so slow that the snapshot is no longer shared
    assert verify_table(e2e, "sharing", leg="target").tables[0].in_flight in (31, 0)


def test_a_truncate_and_a_sweep_in_between_are_followed(e2e: EndToEnd) -> None:
    with open_snapshot(e2e.broker.address, "main", [], "test"):
        at_source(e2e, "DELETE FROM emptied WHERE id > 100")
        e2e.wait_until_caught_up()
        refill(e2e, "emptied")
        at_source(e2e, "INSERT INTO emptied VALUES (300, 'during')")
        e2e.wait_until_caught_up()
        assert verify_table(e2e, "emptied", leg="all", wait_s=0.0).verdict is ComparisonVerdict.SAME
        at_source(e2e, "TRUNCATE emptied", "INSERT INTO emptied VALUES (1, 'after'), (7, 'v7')")
        e2e.wait_until_caught_up()
        assert verify_table(e2e, "emptied", leg="all", wait_s=0.0).verdict is ComparisonVerdict.SAME
        e2e.at_target("INSERT INTO emptied VALUES (8, 'v8')")
        assert difference_keys(verify_table(e2e, "emptied", wait_s=0.0)) == {("emptied", ("8",), "extra", "apply")}


def refill(e2e: EndToEnd, table: str) -> None:
    """Fill the table again from the source, and wait until the sweep has ended."""
    with closing(open_source(e2e.settings)) as source:
        table_id = next(t.schema.table_id for t in source.registry.read_registered_tables() if t.schema.name == table)
        source.capture.restart_fill(table_id)
        e2e.until(
            lambda: all(t.fill.done for t in source.registry.read_registered_tables() if t.schema.table_id == table_id),
            "the sweep",
        )


def test_a_newer_change_overrides_a_repair(e2e: EndToEnd) -> None:
    """The writer continuously changes the rows that are repaired: in the end they have its last values."""
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE racing SET v = 'damaged' WHERE id <= 20", "DELETE FROM racing WHERE id BETWEEN 21 AND 40")
    wrong = verify_table(e2e, "racing")
    assert len(wrong.differences) == 40
    stop, written = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            written[0] += 1
            at_source(
                e2e,
                f"UPDATE racing SET v = 'w{written[0]}' WHERE id <= 30",
                "DELETE FROM racing WHERE id = 35",
                f"INSERT INTO racing VALUES (35, 'w{written[0]}')",
            )

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        run_repair(e2e.settings, "main", wrong, wait_s=3.0)
        e2e.until(lambda: written[0] >= 3, "the writer")
    finally:
        stop.set()
        writer.join(60)
    e2e.wait_until_caught_up()

    rows = dict(e2e.at_target("SELECT id, v FROM racing WHERE id <= 40"))
    assert rows == {n: f"w{written[0]}" if n <= 30 or n == 35 else f"v{n}" for n in range(1, 41)}
    assert verify_table(e2e, "racing", leg="all").verdict is ComparisonVerdict.SAME


def test_a_paused_table_is_undecided_only_in_changed_rows(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    pause(e2e.settings, "main", ["paused"], reason="night")
    at_source(e2e, "UPDATE paused SET v = 'new' WHERE id = 3")
    e2e.until(lambda: not e2e.log_rows(), "the capture")

    waits = verify_table(e2e, "paused", wait_s=0.2)
    assert waits.verdict is ComparisonVerdict.UNDECIDED
    assert {(u.key["id"], u.reason) for u in waits.undecided_rows} == {
        ("3", "the table is PAUSED at the target (night)")
    }

    resume(e2e.settings, "main", ["paused"])
    assert verify_table(e2e, "paused", wait_s=60.0).verdict is ComparisonVerdict.SAME


def test_a_quarantined_row_is_reported_with_that_reason(e2e: EndToEnd) -> None:
    e2e.at_target("ALTER TABLE refused ADD CONSTRAINT no_bad CHECK (v <> 'bad')")
    at_source(e2e, "UPDATE refused SET v = 'bad' WHERE id = 7", "UPDATE refused SET v = 'good' WHERE id = 8")
    e2e.wait_until_caught_up()

    result = verify_table(e2e, "refused")

    assert difference_keys(result) == {("refused", ("7",), "different", "apply")}
    assert "parked in quarantine" in result.differences[0].note
    assert "no_bad" in result.differences[0].note


def test_a_table_that_has_missed_changes_is_compared_and_reported(e2e: EndToEnd) -> None:
    with closing(open_source(e2e.settings)) as source:
        table_id = next(
            t.schema.table_id for t in source.registry.read_registered_tables() if t.schema.name == "missed"
        )
        at_source(e2e, "SET session_replication_role = replica", "DELETE FROM missed WHERE id = 1")
        source.registry.set_table_state(table_id, "RESYNC", "a trigger was gone")

        result = verify_table(e2e, "missed")

        source.registry.set_table_state(table_id, "ACTIVE", "")
    assert difference_keys(result) == {("missed", ("1",), "extra", "capture")}
    assert result.tables[0].notes == ["RESYNC at the source: a trigger was gone"]


def test_conditions_samples_and_misspelt_options_of_verify(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE partly SET v = 'x' WHERE id IN (5, 150)")

    assert difference_keys(verify_table(e2e, "partly", where="id < 100")) == {("partly", ("5",), "different", "apply")}
    assert verify_table(e2e, "partly", where="id < 100").rows == 99
    part = verify_table(e2e, "partly", sample=0.5, slice_rows=50)
    assert 95 <= part.rows <= 105
    again = verify_table(e2e, "partly", sample=0.5, slice_rows=50)
    assert (
        difference_keys(part)
        == difference_keys(again)
        <= {("partly", ("5",), "different", "apply"), ("partly", ("150",), "different", "apply")}
    )
    limited = verify_table(e2e, "partly", slice_rows=20, differences_max=1)
    assert len(limited.differences) == 1
    assert limited.tables[0].cut_short
    assert not verify_table(e2e, "partly", where="id > 100", slice_rows=200, differences_max=1).tables[0].cut_short
    with pytest.raises(ConfigError, match="--where"):
        verify_table(e2e, "partly", where="id < 100", leg="target")
    with pytest.raises(ConfigError, match="no table is named 'sum'"):
        verify_table(e2e, "sum")
    with pytest.raises(ConfigError, match=r"no table is named 'prtly' \(did you mean partly\?\)"):
        verify_table(e2e, "prtly")
    with pytest.raises(VenusError, match="nonsense"):
        verify_table(e2e, "partly", where="nonsense = 1", wait_s=0.0)


def test_one_row_limit_applies_to_all_workers_and_no_slice_takes_more_than_a_second(e2e: EndToEnd) -> None:
    def several_workers(_: int) -> Runner:
        raise AssertionError("each of them would go as fast as all of them may")

    reports: list[VerifyProgress] = []
    options = VerifyOptions(target="main", tables=("spelt",), rows_per_s=100.0)
    began = time.monotonic()

    result = run_verify(e2e.settings, options, runner_for=several_workers, report=reports.append)

    assert time.monotonic() - began >= 1.9, "it went faster than it may"
    assert result.rows == 200
    assert len(reports) == 2


def test_a_database_with_other_text_forms_is_compared_row_by_row(
    e2e: EndToEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a server with another encoding: its checksums always differ, its rows do not."""
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE spelt SET v = 'x' WHERE id = 5")
    plain = postgresql.form_sql
    monkeypatch.setattr(
        postgresql, "form_sql", lambda kind, column, **options: f"{plain(kind, column, **options)} || chr(32)"
    )

    result = verify_table(e2e, "spelt")

    assert difference_keys(result) == {("spelt", ("5",), "different", "apply")}
    assert result.tables[0].method == "rows"
    assert any("column id is spelt differently there" in note or "keys" in note for note in result.tables[0].notes)
    with pytest.raises(VerificationFailed, match="cannot be used"):
        verify_table(e2e, "spelt", mode="hash")
    monkeypatch.setattr(postgresql, "form_sql", lambda *_, **__: "no_such_function(1)")
    assert difference_keys(verify_table(e2e, "spelt")) == difference_keys(result)


def test_temporary_errors_are_retried(e2e: EndToEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    e2e.wait_until_caught_up()
    calls: list[SliceTask] = []

    def fail_once(task: SliceTask) -> SliceResult:
        calls.append(task)
        if len(calls) == 1:
            raise DatabaseUnavailable("the server is started again")
        return compare_slice(task)

    monkeypatch.setattr("venus.adapters.verify.table_comparison.compare_slice", fail_once)

    result = verify_table(e2e, "missed", leg="target")

    assert result.verdict is ComparisonVerdict.SAME
    assert result.rows == 200
    assert len(calls) == 2


def test_a_table_that_missed_changes_and_a_new_table_are_compared(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    at_source(e2e, "CREATE TABLE fresh (id int PRIMARY KEY)", "INSERT INTO fresh VALUES (1)")
    e2e.stop("capture")
    e2e.install()

    (table,) = e2e.verify(tables=("fresh",)).tables
    assert table.verdict is ComparisonVerdict.UNDECIDED
    assert "does not have it yet" in table.undecided[0].reason
    e2e.start("capture")
    e2e.until(lambda: e2e.verify(tables=("fresh",)).verdict is ComparisonVerdict.SAME, "the new table")
