"""`venus sync --engine spark`: Structured Streaming drives the scale-out apply of one target (VENUS 3.4).

Spark decides when there is a micro-batch and runs the tasks that lay it down; what is applied is decided by the target:
everything between its own applied offset and the micro-batch's end, by the functions that are passed in. So Spark's
checkpoint holds nothing that matters. It is created again with every start, and a driver may be killed at any moment.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from typing import TYPE_CHECKING, Protocol

from venus.config import Settings
from venus.errors import SparkFailed, VenusError
from venus.rpc.address import broker_of, in_options
from venus.spark.session import last_cause
from venus.spark.streaming_ranges import NAME, RangesSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

STOP_S = 0.2


class Applies(Protocol):
    """The target, as far as the stream needs it."""

    def start(self) -> tuple[int, int]:
        """Return the applied offset and its epoch."""
        ...

    def up_to(self, end: int) -> None:
        """Apply everything below an offset, exactly once however often that is asked for."""
        ...


def run_stream(spark: SparkSession, settings: Settings, applies: Applies, stop: threading.Event) -> None:
    """Apply until `stop`. Raises what `applies` raises, and SparkFailed."""
    offset, epoch = applies.start()
    failures: list[VenusError] = []

    def micro_batch(frame: DataFrame, _: int) -> None:
        try:
            for row in frame.collect():
                applies.up_to(row["end"])
        except VenusError as error:
            failures.append(error)
            raise

    spark.dataSource.register(RangesSource)
    with tempfile.TemporaryDirectory(prefix="venus-checkpoint-", ignore_cleanup_errors=True) as checkpoint:
        query = (
            spark.readStream.format(NAME)
            .options(**in_options(broker_of(settings)), business=settings.business.name)
            .options(offset=offset, epoch=epoch, rows_max=settings.spark.batch_rows_max)
            .load()
            .writeStream.foreachBatch(micro_batch)
            .option("checkpointLocation", f"file://{checkpoint}")
            .start()
        )
        try:
            while query.isActive and not stop.wait(STOP_S):
                pass
            error = query.exception() if not query.isActive else None
        finally:
            query.stop()
    if failures:
        raise failures[0]
    if error is not None and not stop.is_set():
        raise SparkFailed(f"the stream has ended: {last_cause(error)}")
