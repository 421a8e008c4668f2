"""Compares by Spark in a separate process on any master, because the test's process may have another session.

python -m tests.support.spark.spark_verify MASTER BROKER SOURCE TARGET FOLDER SLICE_ROWS LEG ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark import SparkContext

from tests.support.pipelines.end_to_end import difference_keys
from tests.support.spark.sparks import note_application
from venus.adapters.verify.run import VerifyOptions, run_verify
from venus.config import Settings
from venus.spark.runner import open_runner


def main() -> None:
    """Compare each pair of sides and print the result."""
    master, broker, source, target, folder, slice_rows, *legs = sys.argv[1:]
    conf = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    settings = Settings.model_validate(
        {
            "source": {"url": source},
            "targets": {"main": {"url": target}},
            "broker": {"address": broker},
            "spark": {"master": master, "conf": conf},
        }
    )
    said = {}
    with open_runner(settings) as runner:
        if (context := SparkContext._active_spark_context) is not None:
            note_application(context.applicationId, Path(folder))
        for leg in legs:
            options = VerifyOptions(target="main", leg=leg, slice_rows=int(slice_rows))
            result = run_verify(settings, options, runner_for=lambda _: runner)
            said[leg] = {
                "found": sorted(difference_keys(result)),
                "rows": result.rows,
                "undecided": len(result.undecided_rows),
            }
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
