"""Description of a Spark worker, for `venus spark check`."""

from __future__ import annotations

import importlib
import os
import platform
import socket
import sys
import time
from dataclasses import dataclass

import venus

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
