"""`format("venus")` in a Spark job: full data at a cut, streams of changes, and how both survive failures."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.brokers.feed import INT, Feed, column, deletion, items, put, table
from tests.support.brokers.real_broker import KillableBroker
from tests.support.brokers.servers import business_status
from tests.support.pipelines import lakes
from tests.support.spark.collected import WAIT_S, CollectedQuery, apply_rows
from tests.support.waiting import eventually
from venus.model import Kind, LogicalType
from venus.spark.session import last_cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(spark_session: SparkSession) -> SparkSession:
    from venus.spark.datasource import VenusSource

    spark_session.dataSource.register(VenusSource)
    return spark_session


@pytest.fixture
def broker(spark: SparkSession, tmp_path: Path) -> Iterator[KillableBroker]:
    made = KillableBroker(tmp_path / "data")
    yield made
    made.stop()


@pytest.fixture
def feed(broker: KillableBroker) -> Feed:
    return Feed(broker)


def full(spark: SparkSession, broker: KillableBroker, name: str = "shop.items", **options: object) -> DataFrame:
    texts = {key: str(value) for key, value in options.items()}
    return spark.read.format("venus").options(address=broker.address, table=name, **texts).load()


def test_full_data_at_a_cut_in_many_partitions(spark: SparkSession, broker: KillableBroker, feed: Feed) -> None:
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(2000)), put(1, "o", 1, table=2), batch_rows=300)
    feed.cut(deletion(5), put(7, "seven", None))

    frame = full(spark, broker, splits=4)
    rows = {(str(r["id"]),): (r["label"], r["amount"]) for r in frame.collect()}

    assert rows == {k: (v[0], None if v[1] is None else int(v[1])) for k, v in feed.model[1].items()}
    assert frame.rdd.getNumPartitions() >= 4
    feed.cut(put(9000, "later", 1))
    assert frame.filter("id < 10").count() == 9
    assert frame.count() == 1999, "a DataFrame has one cut; a filter of another query must not leak into it"
    assert frame.alias("a").join(frame.alias("b"), "id").count() == 1999


def test_bounds_and_columns(spark: SparkSession, broker: KillableBroker, feed: Feed) -> None:
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(-50, 1200)))

    some = full(spark, broker, low=-5, high=1100, columns="_sequence,id")
    few = full(spark, broker, low=99, high=101, splits=8)

    assert some.columns == ["_sequence", "id"]
    assert sorted(r["id"] for r in some.collect()) == list(range(-5, 1100))
    assert sorted(r["id"] for r in few.collect()) == [99, 100]
    numbers = full(spark, broker, columns="_sequence")
    assert numbers.columns == ["_sequence"]
    assert sorted(r["_sequence"] for r in numbers.collect()) == list(range(1, 1251))
    assert few.rdd.getNumPartitions() < full(spark, broker, splits=8).rdd.getNumPartitions()
    as_text = (
        spark.read.format("venus")
        .schema("amount string, id bigint")
        .options(address=broker.address, table="items", low="7", high="8")
    )
    assert as_text.load().collect() == [("7", 7)]


def test_every_type_is_exact(spark: SparkSession, broker: KillableBroker, feed: Feed) -> None:
    def typed_column(number: int, name: str, which: Kind, **more: Any) -> Any:
        return column(number, name, LogicalType(kind=which, **more))

    schema = table(
        1,
        "types",
        column(1, "id", INT),
        typed_column(2, "money", Kind.DECIMAL, precision=38, scale=2),
        typed_column(3, "number", Kind.DECIMAL),
        typed_column(4, "born", Kind.DATE),
        typed_column(5, "at", Kind.TIMESTAMP, precision=6),
        typed_column(6, "moment", Kind.TIMESTAMPTZ, precision=6),
        typed_column(7, "raw", Kind.BYTES),
        typed_column(8, "yes", Kind.BOOL),
        typed_column(9, "real", Kind.FLOAT, length=8),
    )
    feed.describe(schema)
    big = "9" * 36 + ".99"
    feed.cut(
        put(1, big, "1.00", "0001-01-01", "2026-03-29 02:30:00.000001", "1899-12-31 23:06:32+00", b"\0", "t", "NaN"),
        put(2, *[None] * 8),
        put(3, "1", "1", "0044-03-15 BC", None, None, None, None, None),
    )
    dated = full(spark, broker, "types", text_columns="born")

    (first, second, third) = sorted(dated.collect(), key=lambda r: int(r["id"]))

    assert first["money"] == Decimal(big)
    assert (first["number"], first["born"], first["yes"]) == ("1.00", "0001-01-01", True)
    assert third["born"] == "0044-03-15 BC"
    assert first["at"] == dt.datetime(2026, 3, 29, 2, 30, 0, 1)  # without a time zone and daylight saving
    assert bytes(first["raw"]) == b"\0"
    assert first["real"] != first["real"]  # NaN
    assert list(second)[1:] == [None] * 8
    types = dict(full(spark, broker, "types").dtypes)
    assert (types["at"], types["moment"], types["money"]) == ("timestamp_ntz", "timestamp", "decimal(38,2)")
    assert full(spark, broker, "types", columns="born", high=3).collect()[0][0] == dt.date(1, 1, 1)
    with pytest.raises(Exception, match="'0044-03-15 BC'") as refused:
        full(spark, broker, "types").collect()
    assert "text_columns" in str(refused.value)


def test_spark_reads_a_lake(spark: SparkSession, broker: KillableBroker, feed: Feed, tmp_path: Path) -> None:
    """Without VENUS, Spark reads the current state, and the changes of two versions of a table side by side."""
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(50)))
    lakes.load(settings)
    with lakes.follow_in_thread(settings):
        feed.cut(put(1, "one", None), deletion(2))
        feed.describe(replace(items(), version=2, columns=(*items().columns, column(4, "new"))))
        feed.cut(put(60, "sixty", 6, "n"))
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    state = spark.read.parquet(str(tmp_path / "lake/current/shop.items"))
    changes = spark.read.option("mergeSchema", True).parquet(str(tmp_path / "lake/history/shop.items"))

    assert {row["id"] for row in state.collect()} == {*range(50), 60} - {2}
    assert state.filter("id = 60").collect()[0]["new"] == "n"
    seen = changes.orderBy("_offset").select("_offset", "_deleted", "id", "label", "new").collect()
    assert [tuple(row) for row in seen] == [
        (50, False, 1, "one", None),
        (51, True, 2, None, None),
        (52, False, 60, "sixty", "n"),
    ]


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"tables": "x"}, "format venus has no option 'tables' (did you mean table?)"),
    ({"table": "nothing"}, "no table is called 'nothing' in business main; there are: shop.items"),
    ({"columns": "id,nix"}, "shop.items has no column 'nix'; it has: id, label, amount"),
    ({"business": "other"}, "has no business 'other'; it has: main"),
    ({"address": "127.0.0.1:1"}, "broker at 127.0.0.1:1 cannot be reached"),
    ({"group": "g"}, "option group is for streams, and option starting is missing"),
    ({"low": "abc"}, "bounds of id: 'abc' is no int64"),
]


def test_a_wrong_option_is_reported_in_one_line_with_the_remedy(
    spark: SparkSession, broker: KillableBroker, feed: Feed
) -> None:
    feed.describe(items())
    feed.cut(put(1, "a", 1))

    for options, said in MISTAKES:
        given = {"address": broker.address, "table": "items"} | options
        with pytest.raises(Exception, match=r"venus\.errors") as refused:
            spark.read.format("venus").options(**given).load().count()
        assert said in last_cause(refused.value)


def test_a_table_may_have_columns_with_names_that_venus_uses(
    spark: SparkSession, broker: KillableBroker, feed: Feed
) -> None:
    feed.describe(table(1, "own", column(1, "id", INT), column(2, "_sequence", INT), column(3, "_deleted")))
    feed.cut(put(1, "777", "perhaps"))

    everything, named = full(spark, broker, "own"), full(spark, broker, "own", columns="_sequence,id")

    assert [tuple(r) for r in everything.collect()] == [(1, 777, "perhaps")]
    assert [(r["_sequence"], r["id"]) for r in named.collect()] == [(777, 1)]
    streams = spark.readStream.format("venus").options(address=broker.address, table="own", starting="full")
    with pytest.raises(Exception, match="has a column '_sequence', and so has every stream of VENUS") as refused:
        streams.load()
    assert ".option('columns', 'id')" in str(refused.value)
    assert streams.option("columns", "id").load().columns == [
        "_offset",
        "_sequence",
        "_deleted",
        "_gone_before",
        "_committed_at",
        "id",
    ]


SCHEMAS = [
    ("id bigint, label array<string>", "column label cannot be read as list<", "say STRING in the schema"),
    ("id bigint, label interval day to second", "column label cannot be read as duration", "say STRING"),
    ("id bigint, label string not null", "column label has NULL, and the schema that was given says NOT NULL", "leave"),
    ("id bigint, amount int not null", "column amount has NULL, and the schema that was given says NOT NULL", "leave"),
]


@pytest.mark.parametrize(("schema", "said", "hint"), SCHEMAS)
def test_a_schema_that_does_not_fit_is_refused_by_column_name(
    spark: SparkSession, broker: KillableBroker, feed: Feed, schema: str, said: str, hint: str
) -> None:
    feed.describe(items())
    feed.cut(put(1, None, None))

    with pytest.raises(Exception, match="ConfigError") as refused:
        spark.read.format("venus").schema(schema).options(address=broker.address, table="items").load().collect()

    assert said in last_cause(refused.value)
    assert hint in last_cause(refused.value)


@pytest.mark.slow
def test_a_stream_survives_stops_failures_and_the_brokers_death(
    spark: SparkSession, broker: KillableBroker, feed: Feed, tmp_path: Path
) -> None:
    rng = random.Random(1)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(300)), batch_rows=40)
    stream = CollectedQuery(spark, broker, tmp_path, starting="earliest", max_rows=200, splits=3)

    def write_random_cuts(cuts: int) -> None:
        for n in range(cuts):
            keys = rng.sample(range(300), 30)
            feed.cut(
                put(1, "other", n, table=2),
                *(deletion(k) if rng.random() < 0.3 else put(k, "x", n) for k in keys),
                batch_rows=7,
            )

    with stream:
        write_random_cuts(4)
        stream.wait_for(broker.next_offset)
        broker.kill()
        broker.start()
        feed.truncate(1, put(3, "behind", 3))
        write_random_cuts(3)
        stream.wait_for(broker.next_offset)
    stream.fails = True
    write_random_cuts(3)
    stream.start()
    eventually(lambda: not stream.query.isActive, "the failure", timeout_s=WAIT_S)
    stream.fails = False
    with stream:
        write_random_cuts(3)
        stream.wait_for(broker.next_offset)

    assert not stream.different
    assert len(set(stream.offsets)) == len(stream.offsets), "a change is there twice"
    assert len(stream.offsets) == feed.committed[1]
    assert apply_rows(stream.rows, items()) == feed.model[1]
    for batch in stream.batches[1:]:
        assert len(batch) <= 200


@pytest.mark.slow
def test_micro_batches_end_where_cuts_end(
    spark: SparkSession, broker: KillableBroker, feed: Feed, tmp_path: Path
) -> None:
    feed.describe(items())
    ends = []
    for n in range(6):
        feed.cut(*(put(i, "x", n) for i in range(40)), batch_rows=9)
        ends.append(broker.next_offset)
    whole = CollectedQuery(spark, broker, tmp_path / "whole", starting="earliest", max_rows=90)
    parts = CollectedQuery(spark, broker, tmp_path / "parts", starting="earliest", max_rows=15, whole_cuts="false")

    for stream in (whole, parts):
        stream.start(availableNow=True).query.awaitTermination(int(WAIT_S))

    assert [max(r["_offset"] for r in batch) + 1 for batch in whole.batches] == ends[1::2]
    assert {len(batch) for batch in parts.batches} <= {4, 9, 13}
    assert parts.offsets == whole.offsets == list(range(240))


@pytest.mark.slow
def test_a_stream_begins_with_the_full_data_and_continues_with_changes(
    spark: SparkSession, broker: KillableBroker, feed: Feed, tmp_path: Path
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(500)), batch_rows=100)
    feed.cut(deletion(3), put(4, "four", 4))
    with CollectedQuery(spark, broker, tmp_path, starting="full", group="lab", splits=2) as stream:
        eventually(lambda: len(stream.batches) == 1, "the full data", timeout_s=WAIT_S)
        feed.cut(put(5, "five", 5), deletion(4))
        stream.wait_for(broker.next_offset)
        feed.cut(put(6, "six", 6))  # Spark commits the previous batch together with this batch
        stream.wait_for(broker.next_offset)
        pinned = next(c for c in business_status(broker.address).consumers if c.group == "lab")

    assert len(stream.batches[0]) == 499
    assert stream.offsets == [502, 503, 504]
    assert apply_rows(stream.rows, items()) == feed.model[1]
    assert pinned.acknowledged == 504
    again = CollectedQuery(spark, broker, tmp_path / "lost", starting="full", group="lab")  # its checkpoint is lost
    feed.cut(put(7, "seven", 7))
    again.start(availableNow=True).query.awaitTermination(int(WAIT_S))
    assert again.offsets == [504, 505], "it continues where the group is"


@pytest.mark.slow
def test_columns_appear_and_vanish_under_a_running_stream(
    spark: SparkSession, broker: KillableBroker, feed: Feed, tmp_path: Path
) -> None:
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    newer = replace(items(), version=2, columns=(column(1, "id", INT), column(3, "amount", INT), column(4, "new")))
    with CollectedQuery(spark, broker, tmp_path, starting="earliest") as stream:
        stream.wait_for(broker.next_offset)
        feed.describe(newer)
        feed.cut(put(2, 2, "n"))
        stream.wait_for(broker.next_offset)

    assert [(r["id"], r["label"], r["amount"]) for r in stream.rows] == [(1, "a", 1), (2, None, 2)]
    assert full(spark, broker).columns == ["id", "amount", "new"]


@pytest.mark.slow
def test_sync_with_spark_applies_exactly_and_survives_the_brokers_death(
    spark: SparkSession, broker: KillableBroker, feed: Feed, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.brokers.feed import applied_offset as applied_offset
    from tests.support.brokers.feed import rows_at, settings_for
    from venus.adapters.targets.postgresql.apply.staged_apply import StagedApply
    from venus.adapters.targets.relational.control import read_progress
    from venus.adapters.targets.relational.full_sync import full_sync
    from venus.config import SparkSettings as SparkSettings
    from venus.spark.runner import SparkRunner
    from venus.spark.streaming_apply import run_stream

    monkeypatch.setattr("venus.adapters.targets.postgresql.apply.staged_apply.PIECE_OFFSETS_MIN", 50)
    settings = settings_for(broker.address, {"a": database})
    settings = settings.model_copy(update={"spark": SparkSettings(stage_rows_min=100, batch_rows_max=1000)})
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    full_sync(settings, "a")
    stop, errors = threading.Event(), list[BaseException]()
    applies = StagedApply(settings, "a", SparkRunner(spark.sparkContext), stop)

    def follow() -> None:
        try:
            run_stream(spark, settings, applies, stop)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    rng = random.Random(2)
    try:
        for n in range(3):
            feed.cut(
                *(deletion(k) if rng.random() < 0.2 else put(k, f"{n}", n) for k in rng.sample(range(2000), 900)),
                batch_rows=100,
            )
            eventually(
                lambda: bool(errors) or applied_offset(database) == broker.next_offset,
                "the micro-batch",
                timeout_s=WAIT_S,
            )
            if n == 1:
                broker.kill()
                broker.start()
        feed.cut(put(5000, "small", 1))
        eventually(
            lambda: bool(errors) or applied_offset(database) == broker.next_offset, "the small one", timeout_s=WAIT_S
        )
    finally:
        stop.set()
        thread.join(60)
        applies.close()
    assert not errors
    assert rows_at(database, items()) == feed.model[1]
    assert applies.staged >= 2
    assert read_progress(settings, "a").unaccounted == 0
