"""A target below a broker set with a predicate is compared with the source's rows of that predicate."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.servers import business_status
from tests.support.pipelines.end_to_end import Loop, difference_keys, end_to_end, run_at
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import run_capture_fill
from venus.adapters.verify.findings import ComparisonVerdict, VerifyResult
from venus.adapters.verify.run import VerifyOptions, run_verify
from venus.config import BrokerSettings, TargetSettings
from venus.process.runners import LocalRunner

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
WHERE = "v = 'EU' and id between 100 and 400"


@pytest.mark.parametrize("where", [{"item": WHERE}, {}])
def test_a_target_below_a_filtered_set_is_compared_with_its_own_rows(
    tmp_path: Path, database: str, second_database: str, where: dict[str, str]
) -> None:
    run_at(
        database,
        "CREATE TABLE item (id int PRIMARY KEY, v text)",
        "INSERT INTO item SELECT n, CASE WHEN n % 3 = 0 THEN 'EU' ELSE 'US' END FROM generate_series(1, 500) n",
    )
    with end_to_end(tmp_path, database, second_database) as e2e:
        e2e.install()
        run_capture_fill(e2e.settings, threading.Event())
        e2e.start("capture")
        below = networks.start(tmp_path / "eu", e2e.broker.address, where={"main": {"item": WHERE}})
        networks.has(below.address, business_status(e2e.broker.address).next_offset)
        target = TargetSettings.model_validate({"url": second_database, "where": where})
        settings = e2e.settings.model_copy(
            update={"broker": BrokerSettings(addresses=(below.address,)), "targets": {"main": target}}
        )

        def has_caught_up() -> bool:
            position = read_progress(settings, "main").position
            end = business_status(e2e.broker.address).next_offset
            return not e2e.log_rows() and position is not None and position.offset >= end

        def compare(leg: str) -> VerifyResult:
            return run_verify(settings, VerifyOptions(target="main", leg=leg), runner_for=lambda _: LocalRunner())

        try:
            assert full_sync(settings, "main").rows == {"public.item": 100}
            following = Loop(lambda stop: run_apply(settings, "main", stop))
            try:
                run_at(
                    database,
                    "UPDATE item SET v = 'US' WHERE id % 5 = 0",
                    "UPDATE item SET v = 'EU' WHERE id % 7 = 0",
                    "DELETE FROM item WHERE id % 11 = 0",
                    "UPDATE item SET id = id + 300 WHERE id BETWEEN 250 AND 260",
                )
                e2e.until(has_caught_up, "the target below the filtered set")
                for leg in ("auto", "all"):
                    result = compare(leg)
                    assert result.verdict is ComparisonVerdict.SAME, (leg, result.differences, result.undecided_rows)
                wanted = run_at(database, f"SELECT id, v FROM item WHERE {WHERE} ORDER BY id")
                assert run_at(second_database, "SELECT id, v FROM item ORDER BY id") == wanted
                (gone, *_), *_ = wanted
                run_at(second_database, f"DELETE FROM item WHERE id = {gone}")
                assert difference_keys(compare("all")) == {("item", (str(gone),), "missing", "apply")}
            finally:
                following.end()
        finally:
            below.stop()
