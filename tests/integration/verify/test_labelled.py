"""Loads and comparisons below a set that mirrors some tables: they use these, and name the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.brokers import networks
from tests.support.brokers.feed import INT, column
from tests.support.brokers.feed import table as table_of
from tests.support.brokers.servers import business_status
from tests.support.pipelines import lakes
from tests.support.pipelines.end_to_end import EndToEnd, Loop, difference_keys, end_to_end, run_at
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import run_capture_fill
from venus.adapters.verify.findings import ComparisonVerdict, VerifyResult
from venus.adapters.verify.run import VerifyOptions, run_verify
from venus.broker.service.process import RunningBroker
from venus.config import BrokerSettings, LakeSettings, Settings, TargetSettings
from venus.errors import ConfigError
from venus.process.runners import LocalRunner, Runner
from venus.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROWS = 500
LEFT_OUT = "the broker set here mirrors item only, so not compared: public.other"


@dataclass
class Region:
    """A home with capture, and a set below it that mirrors one of its two tables."""

    e2e: EndToEnd
    set: RunningBroker
    settings: Settings

    def wait_for_target(self) -> None:
        """Wait until the target has everything that its set has."""

        def has_arrived() -> bool:
            if self.e2e.log_rows():
                return False
            offset = business_status(self.e2e.broker.address).next_offset
            position = read_progress(self.settings, "main").position
            return position is not None and position.offset >= offset

        self.e2e.until(has_arrived, "the region's target")

    def compare(self, runner: Runner | None = None, **options: object) -> VerifyResult:
        chosen = VerifyOptions(**{"target": "main", "slice_rows": 200, **options})  # type: ignore[arg-type]
        return run_verify(self.settings, chosen, runner_for=lambda _: runner or LocalRunner())

    def load(self, runner: Runner | None = None) -> dict[str, int]:
        return full_sync(self.settings, "main", runner=runner).rows


@pytest.fixture
def region(tmp_path: Path, database: str, second_database: str) -> Iterator[Region]:
    for name in ("item", "other"):
        run_at(
            database,
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT n, 'v' || n FROM generate_series(1, {ROWS}) n",
        )
    with end_to_end(tmp_path, database, second_database) as e2e:
        e2e.install()
        run_capture_fill(e2e.settings, threading.Event())
        e2e.start("capture")
        labels = {"eu": ("item",)}
        below = networks.start(tmp_path / "eu", e2e.broker.address, labels=["eu"], known_labels=labels)
        try:
            networks.has(below.address, business_status(e2e.broker.address).next_offset)
            yield Region(
                e2e, below, e2e.settings.model_copy(update={"broker": BrokerSettings(addresses=(below.address,))})
            )
        finally:
            below.stop()


def check_planted(result: VerifyResult) -> None:
    """Check that a result has exactly the two planted differences."""
    assert difference_keys(result) == {("item", ("7",), "missing", "apply"), ("item", ("499",), "different", "apply")}
    assert [t.table for t in result.tables] == ["public.item"]
    assert result.undecided_rows == []


def plant_differences(region: Region) -> None:
    run_at(region.e2e.target, "DELETE FROM item WHERE id = 7", "UPDATE item SET v = 'x' WHERE id = 499")


def test_a_comparison_names_the_tables_without_a_label(region: Region) -> None:
    assert region.load() == {"public.item": ROWS}
    for leg in ("auto", "source", "all"):
        result = region.compare(leg=leg)
        assert (result.verdict, result.notes) == (ComparisonVerdict.SAME, [LEFT_OUT]), leg
        assert {t.table for t in result.tables} == {"public.item"}
    away = region.compare(leg="target")
    assert (away.verdict, away.notes) == (ComparisonVerdict.SAME, ["the broker set here mirrors item only"])

    plant_differences(region)
    check_planted(region.compare())
    check_planted(region.compare(leg="target"))
    with pytest.raises(ConfigError, match="'oth\\*' is not mirrored by the broker set here"):
        region.compare(tables=("oth*",))


def test_rows_of_later_changes_are_the_same_too(region: Region) -> None:
    region.load()
    following = Loop(lambda stop: run_apply(region.settings, "main", stop))
    try:
        run_at(
            region.e2e.source,
            "UPDATE item SET v = 'new' WHERE id % 3 = 0",
            "UPDATE other SET v = 'new'",
            "DELETE FROM item WHERE id < 20",
            "TRUNCATE other",
        )
        region.wait_for_target()
        result = region.compare(leg="all")
        assert (result.verdict, result.notes) == (ComparisonVerdict.SAME, [LEFT_OUT])
    finally:
        following.end()


def test_a_table_that_lost_its_label_is_not_reported_as_the_same(region: Region, tmp_path: Path) -> None:
    region.load()
    region.set.stop()
    labels = {"eu": ("item",), "more": ("other",)}
    again = networks.start(tmp_path / "eu", region.e2e.broker.address, labels=["more"], known_labels=labels)
    try:
        region.e2e.until(
            lambda: networks.wait_for_state(again.address, "following").only == ["other"], "the other table"
        )
        region.settings = region.settings.model_copy(update={"broker": BrokerSettings(addresses=(again.address,))})
        reasons = {undecided.table: undecided.reason for undecided in region.compare().undecided_rows}
        assert reasons.keys() == {"public.item", "public.other"}
        assert reasons["public.item"].startswith("the broker set here does not mirror it any more")
    finally:
        again.stop()


@pytest.mark.spark
def test_spark_uses_the_labels_too(region: Region, spark_session: SparkSession) -> None:
    runner = SparkRunner(spark_session.sparkContext)
    assert region.load(runner) == {"public.item": ROWS}
    assert run_at(region.e2e.target, "SELECT to_regclass('other')") == [(None,)]
    result = region.compare(runner)
    assert (result.verdict, result.rows, result.notes) == (ComparisonVerdict.SAME, ROWS, [LEFT_OUT])
    plant_differences(region)
    check_planted(region.compare(runner))


def test_a_folder_of_parquet_files_has_the_labelled_tables(region: Region, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    lake = TargetSettings.model_validate({"url": f"parquet://{root}"})
    settings = region.settings.model_copy(update={"targets": {"lake": lake}, "lake": LakeSettings(**lakes.QUICK)})
    assert lakes.load(settings) == {"public.item": ROWS}
    (table_id,) = lakes.manifest_of(settings).tables
    schema = table_of(table_id, "item", column(1, "id", INT), column(2, "v"))
    with lakes.follow_in_thread(settings):
        run_at(region.e2e.source, "UPDATE other SET v = 'new'", "DELETE FROM item WHERE id <= 100")
        region.e2e.until(lambda: not region.e2e.log_rows(), "capture")
        lakes.check_state(settings, business_status(region.e2e.broker.address).next_offset)
    assert len(lakes.newest_rows(settings, schema)) == ROWS - 100
    assert sorted(path.name for path in (root / "current").iterdir()) == ["public.item"]
