"""Half messages whose producer does not return: they stay and are shown until an operator decides (scenario 31)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines.batches import half
from tests.support.pipelines.pipeline import Pipeline
from venus.rpc.producer import Producer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Start a broker with three half messages of a producer that is gone."""
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={})
    made.configure()
    made.start_broker()
    producer = Producer(made.broker, "main", "gone forever", window_bytes_max=1 << 20)
    producer.connect(0, 0)
    for number in (1, 2, 3):
        producer.send_half(half(number, rows=10))
    producer.wait_until_persisted(3, 60)
    producer.close()
    yield made
    made.close()


def test_an_operator_commits_and_rolls_back_in_place_of_the_producer(pipeline: Pipeline) -> None:
    found = pipeline.ask("half", "list", code=(0, 1))["halves"]
    assert [h["batch_no"] for h in found] == [1, 2, 3]
    assert all(h["rows"] == 10 and h["bytes"] > 0 and h["age_s"] >= 0 for h in found)
    assert "batch" in pipeline.venus("half", "list", code=(0, 1)).out

    refused = pipeline.venus("half", "commit", "1", code=3)
    assert "cannot be undone" in refused.err
    assert "--yes" in refused.err
    assert "Undecided: 1, 2, 3." in pipeline.venus("half", "commit", "9", "--yes", code=2).err

    assert pipeline.ask("half", "commit", "1", "--yes")["next_offset"] == 10
    assert [h["batch_no"] for h in pipeline.ask("half", "list", code=(0, 1))["halves"]] == [2, 3]
    assert pipeline.ask("half", "rollback", "2", "--yes")["verdict"] == "ROLLBACK"
    assert pipeline.ask("half", "list")["halves"] == []
    assert pipeline.venus("half", "list").out == "no undecided half message\n"


def test_half_messages_survive_a_restart_of_the_broker(pipeline: Pipeline) -> None:
    pipeline.kill("broker")
    assert "is `venus run` or `venus broker` running?" in pipeline.venus("half", "list", code=75).err

    pipeline.start_broker()

    assert [h["batch_no"] for h in pipeline.ask("half", "list", code=(0, 1))["halves"]] == [1, 2, 3]
