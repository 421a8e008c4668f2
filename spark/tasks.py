"""Execution of one task in a Spark executor, the transport of its result or error, and the description of a worker.

Spark schedules, repeats and spreads the tasks. The rows that a task moves do not enter the JVM. Only the task's result
enters it, as a pickle: this was 2 to 3 times as fast as any path through a DataFrame.
"""

from __future__ import annotations

import base64
import gc
import importlib
import os
import pickle
import platform
import re
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import venus
from venus.errors import VenusError

_CARRIED = re.compile(r"venus-error:([A-Za-z0-9+/=]+):")


class TaskFailed(Exception):
    """Carrier of a VenusError through Spark, which transports exceptions as text only."""

    def __init__(self, error: VenusError) -> None:
        kept = base64.b64encode(pickle.dumps(error)).decode()
        super().__init__(f"{type(error).__name__}: {error} venus-error:{kept}:")


def pack_call(function: Callable[[Any], Any], task: Any) -> bytes:
    """Pickle a call for Spark, with the name of the function."""
    return pickle.dumps((function, task))


def run_call(work: bytes) -> bytes:
    """Run one packed call and return its pickled result; only VenusErrors keep their class."""
    function, task = pickle.loads(work)
    # Spark's worker collects garbage after every task. Without this call, the collector would scan every imported
    # module, which takes a quarter of the worker's time in a load of narrow rows.
    gc.freeze()
    try:
        return pickle.dumps(function(task))
    except VenusError as error:
        raise TaskFailed(error) from error


def carried_error(text: str) -> VenusError | None:
    """Return the VenusError that a task raised, if the text of Spark's exception contains it; else None."""
    found = _CARRIED.findall(text)
    if not found:
        return None
    error = pickle.loads(base64.b64decode(found[-1]))
    return error if isinstance(error, VenusError) else None


#: Modules that the tasks of a load need on a worker.
NEEDED = ("grpc", "google.protobuf", "psycopg2", "pyarrow", "numpy", "sqlalchemy", "pydantic_settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Worker process that ran a task."""

    host: str
    pid: int
    python: str
    executable: str
    venus: str
    missing: tuple[str, ...]


def describe_worker(pause_s: float) -> Worker:
    """Return a description of this worker; the pause lets other workers take the other tasks."""
    time.sleep(pause_s)
    return Worker(
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        executable=sys.executable,
        venus=venus.__version__,
        missing=tuple(name for name in NEEDED if not _is_importable(name)),
    )


def _is_importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
