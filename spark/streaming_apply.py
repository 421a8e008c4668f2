"""`venus sync --engine spark`: Structured Streaming drives the scale-out apply of one target (VENUS 3.4).

Spark starts micro-batches and runs the tasks that stage them. The target determines the changes to apply: everything
between its own applied offset and the micro-batch's end, by the functions passed in. So Spark's checkpoint holds no
state that matters: every start creates a new checkpoint, and a driver may be killed at any moment.

The stream has one row for each micro-batch, with its first offset and its end.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from typing import TYPE_CHECKING, Protocol

from venus.config import Settings
from venus.errors import SparkFailed, VenusError
from venus.rpc.address import broker_address, to_options
from venus.spark.session import last_cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from venus.rpc.address import from_options
from venus.spark.streaming_plan import BatchLimit, BatchPlanner

NAME = "venus_ranges"
#: A micro-batch ends after this many bytes of changes, because its tasks hold them in memory.
BATCH_BYTES_MAX = 256 << 20


@dataclass
class RangePartition(InputPartition):
    """One micro-batch."""

    start: int
    end: int


class RangesReader(DataSourceStreamReader):
    """Reader that ends micro-batches at the ends of whole cuts, within a limit of rows."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._planner: BatchPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the connection: the copy goes to executors."""
        return {"_options": self._options, "_planner": None}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the target's applied offset."""
        return {"offset": int(self._options["offset"]), "epoch": int(self._options["epoch"])}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next micro-batch; an unreachable broker has nothing new."""
        options = self._options
        if self._planner is None:
            self._planner = BatchPlanner(from_options(options), options["business"], "", lambda _: True)
        try:
            self._planner.begin(start["offset"], start["epoch"])
            most = BatchLimit(rows=int(options["rows_max"]), nbytes=BATCH_BYTES_MAX)
            mark = self._planner.end_within(most, whole_cuts=True)
        except VenusError as error:
            self._planner.close()
            if not error.retryable:
                raise
            logger.warning("%s; waiting for it", error)
            return start
        return start if mark is None else {"offset": mark.end, "epoch": mark.epoch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one partition for the micro-batch."""
        return [RangePartition(start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        """Yield the row of the micro-batch."""
        assert isinstance(partition, RangePartition)
        yield partition.start, partition.end

    def stop(self) -> None:
        """Close the connection to the broker."""
        if self._planner is not None:
            self._planner.close()


class RangesSource(DataSource):
    """The data source that only the driver of `venus sync --engine spark` registers."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the schema of this data source: the offsets at which a micro-batch starts and ends."""
        return "start bigint, end bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader, with the options in a plain dict, because Spark's own map of options cannot be copied."""
        return RangesReader({key.lower(): value for key, value in self.options.items()})


logger = logging.getLogger(__name__)

STOP_S = 0.2


class RangeApply(Protocol):
    """The functions of a target that the stream calls."""

    def start(self) -> tuple[int, int]:
        """Prepare the apply; return the target's applied offset and its epoch."""
        ...

    def apply_up_to(self, end: int) -> None:
        """Apply every change below an offset exactly once, however often this is called."""
        ...

    def report_switch(self) -> None:
        """Report to the broker that a switch of the application is unfinished or has ended, while no changes arrive."""
        ...


def run_stream(spark: SparkSession, settings: Settings, applies: RangeApply, stop: threading.Event) -> None:
    """Apply changes to a target by Spark's micro-batches until `stop`. Raises SparkFailed, or errors of `applies`."""
    offset, epoch = applies.start()
    failures: list[VenusError] = []

    def apply_micro_batch(frame: DataFrame, _: int) -> None:
        try:
            for row in frame.collect():
                applies.apply_up_to(row["end"])
        except VenusError as error:
            failures.append(error)
            raise

    spark.dataSource.register(RangesSource)
    with tempfile.TemporaryDirectory(prefix="venus-checkpoint-", ignore_cleanup_errors=True) as checkpoint:
        query = (
            spark.readStream.format(NAME)
            .options(**to_options(broker_address(settings)), business=settings.business.name)
            .options(offset=offset, epoch=epoch, rows_max=settings.spark.batch_rows_max)
            .load()
            .writeStream.foreachBatch(apply_micro_batch)
            .option("checkpointLocation", f"file://{checkpoint}")
            .start()
        )
        try:
            while query.isActive and not stop.wait(STOP_S):
                applies.report_switch()
            error = query.exception() if not query.isActive else None
        finally:
            query.stop()
    if failures:
        raise failures[0]
    if error is not None and not stop.is_set():
        raise SparkFailed(f"the stream has ended: {last_cause(error)}")
