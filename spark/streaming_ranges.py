"""The stream that drives `venus sync --engine spark`: one row a micro-batch, the offsets between which it lies.

No row of a table enters the JVM. What is between the offsets is read by the tasks that lay it down at the target.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from venus.errors import VenusError
from venus.rpc.address import from_options
from venus.spark.streaming_plan import Limit, Planner

logger = logging.getLogger(__name__)

NAME = "venus_ranges"
#: A micro-batch ends behind so many bytes of changes, rows may be large: its tasks have it in memory.
BATCH_BYTES_MAX = 256 << 20


@dataclass
class RangePartition(InputPartition):
    """One micro-batch."""

    start: int
    end: int


class RangesReader(DataSourceStreamReader):
    """Finds the ends of whole cuts, within a limit of rows."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind: this goes to executors."""
        return {"_options": self._options, "_planner": None}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the target's applied offset."""
        return {"offset": int(self._options["offset"]), "epoch": int(self._options["epoch"])}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next micro-batch; a broker that is away has nothing new."""
        options = self._options
        if self._planner is None:
            self._planner = Planner(from_options(options), options["business"], "", lambda _: True)
        try:
            self._planner.begin(start["offset"], start["epoch"])
            most = Limit(rows=int(options["rows_max"]), nbytes=BATCH_BYTES_MAX)
            mark = self._planner.end_within(most, whole_cuts=True)
        except VenusError as error:
            self._planner.close()
            if not error.retryable:
                raise
            logger.warning("%s; waiting for it", error)
            return start
        return start if mark is None else {"offset": mark.end, "epoch": mark.epoch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Make one row of the micro-batch."""
        return [RangePartition(start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        """Yield it."""
        assert isinstance(partition, RangePartition)
        yield partition.start, partition.end

    def stop(self) -> None:
        """Leave the broker."""
        if self._planner is not None:
            self._planner.close()


class RangesSource(DataSource):
    """Registered by the driver of `venus sync --engine spark` alone."""

    @classmethod
    def name(cls) -> str:
        """Return what `format` is given."""
        return NAME

    def schema(self) -> str:
        """Return the two offsets."""
        return "start bigint, end bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader; plain keys, because Spark's own map of options does not survive a copy."""
        return RangesReader({key.lower(): value for key, value in self.options.items()})
