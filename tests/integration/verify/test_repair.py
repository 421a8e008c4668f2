"""A repair writes keys into the source's log and nothing else; capture and apply then ship the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, run_at, start_numbered
from venus.adapters.verify.findings import ComparisonVerdict, VerifyResult
from venus.adapters.verify.repair import run_repair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NAMES = ("waiting", "unapplied", "halfway", "shipped", "many", "parent")


@pytest.fixture(scope="module")
def e2e(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[EndToEnd]:
    with start_numbered(tmp_path_factory.mktemp("way"), postgres_server, NAMES, rows=100) as made:
        yield made


@pytest.fixture(autouse=True)
def both_run(e2e: EndToEnd) -> Iterator[None]:
    yield
    e2e.resume()


def verify_differences(e2e: EndToEnd, table: str, count: int, **options: Any) -> VerifyResult:
    found = e2e.verify(tables=(table,), **options)
    assert len(found.differences) == count
    return found


def target_rows(e2e: EndToEnd, table: str) -> list[tuple[Any, ...]]:
    return e2e.at_target(f"SELECT id, v FROM {table} ORDER BY id")


def source_rows(e2e: EndToEnd, table: str) -> list[tuple[Any, ...]]:
    return run_at(e2e.source, f"SELECT id, v FROM {table} ORDER BY id")


def test_a_repair_writes_nothing_to_the_target(e2e: EndToEnd) -> None:
    """The keys wait in the log while capture is away; the difference remains, and is reported again."""
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE waiting SET v = 'damaged' WHERE id <= 3", "DELETE FROM waiting WHERE id = 4")
    found, before = verify_differences(e2e, "waiting", 4), target_rows(e2e, "waiting")
    e2e.stop("capture")

    done = run_repair(e2e.settings, "main", found, wait_s=0.3)

    assert target_rows(e2e, "waiting") == before
    assert e2e.log_rows() == 4
    assert (done.emitted, done.repaired) == ({"public.waiting": 4}, 0)
    assert {(s.key["id"], s.reason) for s in done.left} == {
        (str(n), "its change waits in the source's log") for n in (1, 2, 3, 4)
    }
    e2e.start("capture")
    e2e.wait_until_caught_up()
    assert target_rows(e2e, "waiting") == source_rows(e2e, "waiting")


def test_a_row_that_no_target_can_apply_is_left_and_named(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE unapplied SET v = 'damaged' WHERE id <= 2")
    found = verify_differences(e2e, "unapplied", 2)
    e2e.stop("apply")

    done = run_repair(e2e.settings, "main", found, wait_s=0.3)

    assert {s.key["id"] for s in done.left} == {"1", "2"}
    assert all(s.reason for s in done.left)
    assert done.repaired == 0
    e2e.start("apply")
    e2e.until(lambda: e2e.verify(tables=("unapplied",)).verdict is ComparisonVerdict.SAME, "the repair")


def test_rows_that_were_shipped_but_not_applied_are_not_repaired(e2e: EndToEnd) -> None:
    """The target is right as of its offset, which lags: no repair has reached it yet."""
    e2e.wait_until_caught_up()
    run_at(e2e.source, "SET session_replication_role = replica", "UPDATE shipped SET v = 'past' WHERE id = 5")
    found = verify_differences(e2e, "shipped", 1)
    e2e.stop()

    waits = run_repair(e2e.settings, "main", found, wait_s=0.3)
    assert [(s.key, s.reason) for s in waits.left] == [({"id": "5"}, "its change waits in the source's log")]
    e2e.start("capture")
    done = run_repair(e2e.settings, "main", found, wait_s=2.0)
    assert [s.key for s in done.left] == [{"id": "5"}]
    assert target_rows(e2e, "shipped") != source_rows(e2e, "shipped")

    e2e.start("apply")
    again = run_repair(e2e.settings, "main", found, wait_s=60.0)
    assert (again.left, again.repaired) == ([], 1)
    assert target_rows(e2e, "shipped") == source_rows(e2e, "shipped")


def test_a_capture_fault_is_repaired_when_the_full_data_has_it(e2e: EndToEnd) -> None:
    """The comparison was of source and full data, so the repair does not wait for the stopped target."""
    e2e.wait_until_caught_up()
    run_at(
        e2e.source,
        "SET session_replication_role = replica",
        "UPDATE halfway SET v = 'past' WHERE id = 5",
        "DELETE FROM halfway WHERE id = 6",
    )
    found = verify_differences(e2e, "halfway", 2, leg="source")
    e2e.stop("apply")

    done = run_repair(e2e.settings, "main", found, wait_s=60.0)

    assert (done.left, done.repaired) == ([], 2)
    e2e.start("apply")
    e2e.wait_until_caught_up()
    assert target_rows(e2e, "halfway") == source_rows(e2e, "halfway")


def test_many_keys_are_repaired_in_several_transactions(e2e: EndToEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("venus.adapters.verify.repair.KEYS_AT_ONCE", 7)
    e2e.wait_until_caught_up()
    e2e.at_target("UPDATE many SET v = 'damaged' WHERE id <= 30", "UPDATE parent SET v = 'damaged' WHERE id <= 9")
    found = e2e.verify(tables=("many", "parent"))

    done = run_repair(e2e.settings, "main", found, wait_s=60.0)

    assert (done.left, done.repaired) == ([], 39)
    assert done.emitted == {"public.many": 30, "public.parent": 9}
    for table in ("many", "parent"):
        assert target_rows(e2e, table) == source_rows(e2e, table)


def test_keys_whose_rows_changed_since_the_comparison_are_repaired(e2e: EndToEnd) -> None:
    """A repair ships the current rows, even of changes without a log entry: a deletion, a new row, another value."""
    e2e.wait_until_caught_up()
    e2e.at_target(
        "UPDATE parent SET v = 'damaged' WHERE id IN (50, 51)",
        "DELETE FROM parent WHERE id IN (52, 53)",
        "INSERT INTO parent VALUES (900, 'ghost'), (901, 'ghost')",
    )
    found = verify_differences(e2e, "parent", 6)
    run_at(
        e2e.source,
        "SET session_replication_role = replica",
        "DELETE FROM parent WHERE id IN (50, 52)",
        "UPDATE parent SET v = 'newer' WHERE id IN (51, 53)",
        "INSERT INTO parent VALUES (900, 'real')",
    )

    done = run_repair(e2e.settings, "main", found, wait_s=60.0)

    assert (done.left, done.repaired) == ([], 6)
    assert target_rows(e2e, "parent") == source_rows(e2e, "parent")
    assert e2e.verify(tables=("parent",), leg="all").verdict is ComparisonVerdict.SAME
