"""A session of Spark for the tests: one for a whole worker of the test run, because its start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from venus.config import Settings
from venus.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_session() -> Iterator[SparkSession]:
    """Run Spark on two workers of this machine, made as the product makes it."""
    with open_session(Settings.model_validate({"spark": {"conf": {"spark.driver.memory": "512m"}}})) as session:
        yield session
