"""Both streams of VENUS on any Spark master, in a driver of their own: changes for a job, and apply to a target.

python -m tests.support.spark.spark_streams MASTER FOLDER BROKER URL FAULT,FAULT FAULT,FAULT

The first list has the faults of `format("venus")`, the second those of `venus sync --engine spark`. It runs until its
input ends. FOLDER then has the rows of each micro-batch, and the final report.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.brokers.feed import settings_for
from tests.support.faults.stream_faults import PIECE_OFFSETS, FaultyStages, faulty_source
from tests.support.spark.sparks import note_application
from venus.adapters.targets.postgresql.apply import staged_apply as staged
from venus.config import Settings, SparkSettings
from venus.spark.runner import SparkRunner
from venus.spark.session import open_session
from venus.spark.streaming_apply import run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_ROWS = 200
#: Spark options for a small session with a fast start.
LEAN = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def start(spark: SparkSession, broker: str, folder: Path, faults: list[str]) -> StreamingQuery:
    """Start a query that writes its rows to a file for each micro-batch."""
    batches = folder / "batches"
    batches.mkdir()

    def keep(frame: DataFrame, number: int) -> None:
        rows: list[dict[str, Any]] = [row.asDict() for row in frame.drop("_committed_at").collect()]
        hidden = batches / f".{number}"
        hidden.write_text(json.dumps(rows))
        hidden.rename(batches / f"{number}.json")

    spark.dataSource.register(faulty_source(faults, folder))
    options = {"address": broker, "table": "shop.items", "starting": "earliest", "max_rows": str(MAX_ROWS)}
    stream = spark.readStream.format("venus_faulty").options(**options, splits="4").load()
    checkpoint = str(folder / "checkpoint")
    return stream.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).start()


def stopping() -> threading.Event:
    """Return an event that is set when the parent process closes its pipe."""
    stop = threading.Event()

    def read() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=read, daemon=True).start()
    return stop


def follow(settings: Settings, folder: Path, of_stream: list[str], of_apply: list[str]) -> dict[str, Any]:
    """Run both streams until the end; return the report."""
    staged.PIECE_OFFSETS_MIN = PIECE_OFFSETS
    stop = stopping()
    with open_session(settings) as spark:
        note_application(spark.sparkContext.applicationId, folder)
        query = start(spark, settings.broker.listen, folder, of_stream)
        runner = FaultyStages(SparkRunner(spark.sparkContext), of_apply, folder)
        applies = staged.StagedApply(settings, "a", runner, stop)
        try:
            run_stream(spark, settings, applies, stop)
        finally:
            applies.close()
        error = query.exception()
        query.stop()
    return {"staged": applies.staged, "ordinary": applies.ordinary, "error": str(error or "")}


def main() -> None:
    """Run the streams, and write the report."""
    master, folder, broker, url, of_stream, of_apply = sys.argv[1:]
    spark = SparkSettings(master=master, conf=LEAN, stage_rows_min=50, batch_rows_max=400)
    settings = settings_for(broker, {"a": url}).model_copy(update={"spark": spark})
    report = follow(settings, Path(folder), of_stream.split(","), of_apply.split(","))
    (Path(folder) / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
