"""`venus sync --engine spark`: puts the stream and the target together; neither knows of the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from venus.adapters.targets.contract import Target
    from venus.config import Settings


def run_spark(settings: Settings, target: Target, stop: threading.Event, report: Callable[[Any], None]) -> None:
    """Apply to one target until `stop`, in a session of Spark."""
    from venus.spark.runner import SparkRunner
    from venus.spark.session import open_session
    from venus.spark.streaming_apply import run_stream

    with (
        open_session(settings, app=f"venus sync {settings.business.name}/{target.name}") as spark,
        target.scaled(SparkRunner(spark.sparkContext), stop, report) as applies,
    ):
        run_stream(spark, settings, applies, stop)
