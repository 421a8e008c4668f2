"""Times in a Spark job are exact in every time zone of the session and its machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.brokers.feed import Feed, column, put, table
from tests.support.brokers.real_broker import KillableBroker
from venus.model import Kind, LogicalType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

MOMENTS = (
    "0001-01-01 00:00:00+00",
    "1582-10-10 12:00:00+00",
    "1899-12-31 23:06:32+00",
    "2024-10-27 00:30:00+00",
    "2024-10-27 01:30:00+00",
    "2024-11-03 05:30:00.000001+00",
    "9999-12-31 23:59:59.999999+00",
)


@pytest.fixture(scope="module")
def broker(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableBroker]:
    from venus.spark.datasource import VenusSource

    spark_session.dataSource.register(VenusSource)
    made = KillableBroker(tmp_path_factory.mktemp("broker") / "data")
    feed = Feed(made)
    zoned, plain = (LogicalType(kind=k, precision=6) for k in (Kind.TIMESTAMPTZ, Kind.TIMESTAMP))
    feed.describe(
        table(
            1,
            "moments",
            column(1, "moment", zoned),
            column(2, "at", plain),
            column(3, "day", LogicalType(kind=Kind.DATE)),
            key=("moment",),
        )
    )
    feed.cut(*(put(m, m.removesuffix("+00"), m[:10]) for m in MOMENTS))
    yield made
    made.stop()


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns", "Europe/Berlin", "Pacific/Apia"])
def test_full_data_has_exact_times(
    zone: str, spark_session: SparkSession, broker: KillableBroker, tmp_path: Path
) -> None:
    before = spark_session.conf.get("spark.sql.session.timeZone")
    spark_session.conf.set("spark.sql.session.timeZone", zone)
    try:
        reader = spark_session.read.format("venus").options(address=broker.address, table="shop.moments")
        frame = reader.load().cache()
        few = reader.option("low", MOMENTS[3]).option("high", MOMENTS[4]).load().count()
        spark_session.conf.set("spark.sql.session.timeZone", "UTC")
        found = frame.selectExpr("cast(moment as string)", "cast(at as string)", "cast(day as string)").collect()
    finally:
        spark_session.conf.set("spark.sql.session.timeZone", before or "UTC")
    plain = [m.removesuffix("+00") for m in MOMENTS]
    assert sorted(tuple(row) for row in found) == [(p, p, p[:10]) for p in plain]
    assert few == 1
