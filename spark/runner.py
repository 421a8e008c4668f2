"""The runner of `--engine spark`: the same tasks as the pool of processes, on Spark's executors.

It has the shape of `venus.adapters.running.Runner` and knows nothing of what it runs. A failed or lost task is
repeated by Spark (spark.task.maxFailures), so the functions are idempotent.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from venus.errors import WorkerLost
from venus.spark.tasks import carried_error, task_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_LOST = re.compile(r"Python worker (exited|crashed)|ExecutorLostFailure|worker lost|SparkOutOfMemoryError", re.I)


class SparkRunner:
    """Runs tasks in one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield every task's result, when Spark has run the last one.

        Raises the VenusError of a task that failed every time, WorkerLost if its workers died every time.
        """
        if not tasks:
            return
        source = task_source(function, tasks)
        self._spark.dataSource.register(source)
        try:
            rows = self._spark.read.format(source.name()).load().collect()
        except Exception as error:
            text = str(error)
            if (carried := carried_error(text)) is not None:
                raise carried from error
            if _LOST.search(text):
                raise WorkerLost(
                    "workers of Spark die again and again", hint="look for the system's out-of-memory killer"
                ) from error
            raise
        for row in rows:
            yield pickle.loads(row[0])
