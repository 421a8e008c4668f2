"""Runners of independent tasks: the interface between work and its scheduler.

A full load is a list of key ranges, a comparison is a list of slices. A load and a comparison each consist of a
function and its tasks; a runner calls the function for each task. `LocalRunner` is a pool of processes;
`venus.spark.runner.SparkRunner` has the same interface and uses Spark's executors. Runners do not depend on the work,
nor the work on runners.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from venus.errors import WorkerLost
from venus.process.system import delay_collection, freeze_objects, keep_freed_memory

__all__ = ["POOLS_MAX", "POOL_ROWS_MIN", "LocalRunner", "Runner"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Below this many rows, starting processes costs more than it saves.
POOL_ROWS_MIN = 50_000
#: How often a pool may lose its workers before the work fails.
POOLS_MAX = 4


class Runner(Protocol):
    """Calls a function for every task, several concurrently, possibly on other machines."""

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield the results as they arrive, in any order: each result identifies its task.

        A task may run again after its worker was lost, even twice at once, so the function must be idempotent.
        Function, tasks and results must be picklable, the function by its name. After a failed task, the runner raises
        its VenusError and starts no further tasks. Raises WorkerLost if workers keep dying.
        """
        ...


class LocalRunner:
    """Pool of processes on this machine; with one worker or one task it runs in this process."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers

    @classmethod
    def for_rows(cls, workers: int, rows: int) -> LocalRunner:
        """Return a runner for work on about `rows` rows: little work needs no pool."""
        return cls(workers if rows >= POOL_ROWS_MIN else 1)

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield the results as they arrive (see Runner)."""
        workers = min(self._workers, len(tasks))
        if workers <= 1:
            return map(function, tasks)
        return self._run_in_pool(function, tasks, workers)

    @staticmethod
    def _run_in_pool(function: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
        """Run the tasks in spawned processes: neither a database driver nor gRPC survives a fork."""
        context = multiprocessing.get_context("spawn")
        left = dict(enumerate(tasks))
        for _ in range(POOLS_MAX):
            try:
                with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
                    running = {pool.submit(_call, function, task): number for number, task in left.items()}
                    yield from _collect_ended(pool, running, left)
            except BrokenProcessPool:
                logger.warning("a worker process died; its unfinished tasks run again")
            else:
                return
        raise WorkerLost(hint="look for the system's out-of-memory killer; apply.load_workers = 1 needs least memory")


def _start_worker() -> None:
    """Prepare a worker process before its imports, and start the thread that ends it with its parent."""
    keep_freed_memory()
    delay_collection()
    threading.Thread(target=_end_with_parent, name="venus-parent", daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent process, then end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[[T], R], task: T) -> R:
    """Call a function in a worker; before that, exclude all imported objects from garbage collection."""
    freeze_objects()
    return function(task)


def _collect_ended(pool: ProcessPoolExecutor, running: dict[Future[R], int], left: dict[int, T]) -> Iterator[R]:
    """Yield results and remove their tasks from `left`; once a task fails or the caller stops, start no more tasks."""
    pending = set(running)
    try:
        while pending:
            ended, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in ended:
                result = future.result()
                del left[running[future]]
                yield result
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
