"""The examples of docs/how-to/spark-jobs.md, run unchanged against a working pipeline (marker: spark).

Spark finds the data source by itself: the folder in PYTHONPATH has only `pyspark_venus.py`, as site-packages has it
from a wheel. tests/unit/spark/test_examples.py checks the examples without running them.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.pipelines.pipeline import Pipeline
from venus.spark.java import find_java, wrap_java

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Run capture and a lake: the examples need no database server."""
    made = Pipeline(
        folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={"lake": f"parquet://{tmp_path}/lake"}
    )
    made.configure()
    try:
        write(made, "CREATE TABLE orders (id INTEGER PRIMARY KEY, article TEXT, amount INTEGER)")
        write(made, "INSERT INTO orders VALUES (1, 'apple', 3), (2, 'pear', 5), (3, 'apple', 4)")
        made.venus("install-triggers")
        made.start_broker()
        made.venus("migrate", "--target", "lake")
        made.start("sync", "sync", "--json")
        yield made
    finally:
        made.close()


def write(pipeline: Pipeline, statement: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=30, isolation_level=None)) as connection:
        connection.execute(statement)


def examples() -> list[str]:
    """Return the Python examples of the document."""
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/how-to/spark-jobs.md").read_text(), re.MULTILINE | re.DOTALL
    )


def test_the_examples_of_the_document_run_unchanged(pipeline: Pipeline) -> None:
    found = pipeline.folder / "site"
    found.mkdir()
    (found / "pyspark_venus.py").symlink_to(ROOT / "pyspark_venus.py")
    (pipeline.folder / "prices.csv").write_text("article,price\napple,2\npear,10\n")
    code = "\n".join(examples()).replace("127.0.0.1:7400", pipeline.broker)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VENUS_")}
    environ |= {"PYTHONPATH": str(found), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environ |= {"JAVA_HOME": str(wrap_java(find_java()))}

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=pipeline.folder, env=environ, capture_output=True, text=True, timeout=400
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert len(examples()) == 2
    assert re.search(r"turnover\|\n\+-+\+\n\|\s+64\|", done.stdout), done.stdout
    for row in ("|   1|   apple|     3|", "|   2|    pear|     5|", "|   3|   apple|     4|"):
        assert row.replace(" ", "") in done.stdout.replace(" ", ""), done.stdout
