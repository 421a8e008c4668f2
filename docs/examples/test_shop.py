"""pytest: the pipeline runs while a test changes the source."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from venus.pipeline import Pipeline


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with Pipeline.from_toml("venus.toml") as pipeline:  # the broker runs until the end of the block
        pipeline.install()
        pipeline.migrate()
        with pipeline.running():
            yield pipeline


def test_an_order_arrives(pipeline: Pipeline) -> None:
    with closing(sqlite3.connect("shop.db")) as source, source:
        source.execute("INSERT INTO orders VALUES (2, 20)")
    result = pipeline.verify()  # waits for changes that are under way
    assert result.verdict.name == "SAME", result.differences
