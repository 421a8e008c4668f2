"""The runners of `--engine spark`: the same tasks as the pool of processes, on Spark's executors.

They implement `venus.process.runners.Runner` and know nothing about the tasks that they run. Spark repeats a failed or
lost task (spark.task.maxFailures), so the functions are idempotent.

Through Spark Connect, tasks are a data source: each task is a partition, each result a row. Each run has its own class,
which PySpark pickles with the tasks. As options, the tasks would appear in plans and event logs, including the target's
password.
"""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import AccumulatorParam
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from venus.config import Settings
from venus.errors import WorkerLost
from venus.spark.session import open_context, open_session
from venus.spark.tasks import carried_error, pack_call, run_call

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

#: Interval of checking for results.
LOOK_S = 0.05
_LOST = re.compile(
    r"Python worker (exited|crashed)|ExecutorLostFailure|worker lost|SparkOutOfMemoryError", re.IGNORECASE
)


@contextmanager
def open_runner(settings: Settings) -> Iterator[SparkRunner | ConnectRunner]:
    """Start Spark according to [spark] and yield a runner of tasks."""
    if settings.spark.remote:
        with open_session(settings) as session:
            yield ConnectRunner(session)
    else:
        with open_context(settings) as context:
            yield SparkRunner(context)


class SparkRunner:
    """Runner of tasks as one job with a partition for each; results arrive as tasks end."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Run `function` for every task on the executors, and yield results as they arrive.

        Raises the VenusError of a task that failed every time, WorkerLost if its workers died every time.
        """
        if not tasks:
            return
        arrived = self._context.accumulator([], _Arrivals())
        group = f"venus-{uuid.uuid4().hex}"
        taken: set[int] = set()
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(self._job, group, [pack_call(function, task) for task in tasks], arrived)
            try:
                while True:
                    over = bool(wait([job], LOOK_S).done)
                    for number, result in list(arrived.value):
                        if number not in taken:
                            taken.add(number)
                            yield pickle.loads(result)
                    if over:
                        break
            finally:
                if not job.done():  # the caller stopped early, or was interrupted
                    self._context.cancelJobGroup(group)
        _result_of(job)
        assert len(taken) == len(tasks), "Spark ended a job without all of its results"

    def _job(self, group: str, work: list[bytes], arrived: Accumulator[list[tuple[int, bytes]]]) -> None:
        """Run packed calls as one Spark job with a partition for each; results go to the accumulator."""
        self._context.setJobGroup(group, f"VENUS: {len(work)} tasks", interruptOnCancel=True)

        def run_one(numbered: tuple[int, bytes]) -> None:
            arrived.add([(numbered[0], run_call(numbered[1]))])

        self._context.parallelize(list(enumerate(work)), len(work)).foreach(run_one)


class _Arrivals(AccumulatorParam[list[tuple[int, bytes]]]):
    """Accumulator of results at the driver: Spark adds the results of a task once, when the task has succeeded."""

    def zero(self, value: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        return []

    def addInPlace(  # noqa: N802
        self, value1: list[tuple[int, bytes]], value2: list[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        return value1 + value2


class ConnectRunner:
    """Runner of tasks through Spark Connect, which has no contexts: tasks are the partitions of a data source."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield every task's result, once Spark has run the last task. Raises the same errors as SparkRunner."""
        from venus.spark.runner import task_source

        if not tasks:
            return
        source = task_source([pack_call(function, task) for task in tasks])
        job: Future[list[bytes]] = Future()
        try:
            self._session.dataSource.register(source)
            rows = self._session.read.format(source.name()).load().collect()
            job.set_result([row[0] for row in rows])
        except Exception as error:
            job.set_exception(error)
        results = _result_of(job)
        yield from map(pickle.loads, results)


def _result_of(job: Future[R]) -> R:
    """Return the result of a job, or raise the error of its task."""
    try:
        return job.result()
    except Exception as error:
        text = str(error)
        if (carried := carried_error(text)) is not None:
            raise carried from error
        if _LOST.search(text):
            raise WorkerLost(
                "workers of Spark keep dying", hint="look for the system's out-of-memory killer"
            ) from error
        raise


class WorkPartition(InputPartition):
    """Partition of a data source that stands for one task: its packed call."""

    def __init__(self, work: bytes) -> None:
        super().__init__(work)


class WorkReader(DataSourceReader):
    """Reader of a data source that runs one task for each partition."""

    def __init__(self, work: list[bytes]) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each call. The reader goes to every executor, so it keeps no calls."""
        work, self._work = self._work, []
        return [WorkPartition(each) for each in work]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        """Run the call of a partition, and yield its packed result."""
        yield (run_call(partition.value),)


def task_source(work: list[bytes]) -> type[DataSource]:
    """Return a Spark data source whose partitions run the pickled calls of one job."""
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
