"""Loads a target by Spark in a separate process, which can be killed; its splits have faults.

python -m tests.support.spark.spark_load MASTER BROKER URL FOLDER [FAULT ...]
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tests.support.brokers.feed import settings_for
from tests.support.faults.load_faults import FaultyRunner
from tests.support.spark.sparks import note_application
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import SparkSettings
from venus.spark.runner import open_runner

#: Number of reported splits after which the driver kills itself.
DRIVER = "driver killed"


class KilledDriver(FaultyRunner):
    """Kills the driver at the second result; tasks on the executors may or may not complete."""

    def run(self, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        for number, result in enumerate(super().run(function, tasks)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield result


def main() -> None:
    """Load, and print the result."""
    master, broker, url, folder, *faults = sys.argv[1:]
    memory = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    spark = SparkSettings(remote=master) if master.startswith("sc://") else SparkSettings(master=master, conf=memory)
    settings = settings_for(broker, {"a": url}).model_copy(update={"spark": spark})
    kind = KilledDriver if DRIVER in faults else FaultyRunner
    with open_runner(settings) as runner:
        if (context := SparkContext._active_spark_context) is not None:
            note_application(context.applicationId, Path(folder))
        faulty = kind(runner, [f for f in faults if f != DRIVER], Path(folder))
        report = full_sync(settings, "a", runner=faulty)
    already = sum(r.already for r in faulty.results)
    sys.stdout.write(json.dumps({"rows": report.rows, "resumed": report.resumed_splits, "already": already}))


if __name__ == "__main__":
    main()
