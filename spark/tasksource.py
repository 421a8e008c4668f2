"""Tasks as a data source: one partition a task, one row a result. The only way to executors through Spark Connect.

Each run has a class of its own, which PySpark pickles with the tasks. As options they would be shown in plans and event
logs, and the target's password with them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from venus.spark.tasks import run_call


class WorkPartition(InputPartition):
    """One packed call."""

    def __init__(self, work: bytes) -> None:
        super().__init__(work)


class WorkReader(DataSourceReader):
    """Runs calls where Spark wants them run."""

    def __init__(self, work: list[bytes]) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        """Hand the calls over, one to a partition; the reader goes to every executor, and without them."""
        work, self._work = self._work, []
        return [WorkPartition(each) for each in work]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        """Run one call."""
        yield (run_call(partition.value),)


def task_source(work: list[bytes]) -> type[DataSource]:
    """Return a data source for one run of packed calls."""
    short_name = f"venus_tasks_{uuid.uuid4().hex}"

    class Tasks(DataSource):
        """The tasks of one run."""

        @classmethod
        def name(cls) -> str:
            return short_name

        def schema(self) -> str:
            return "result binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return WorkReader(work)

    return Tasks
