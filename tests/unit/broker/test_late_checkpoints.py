"""A checkpoint that is completed too late is removed, because each one keeps files from deletion."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from venus.broker.machine.business import Business
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.snapshot import snapshots
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.broker.store.files import FreeSpace
from venus.errors import Unavailable
from venus.wire import broker_pb2


def test_a_checkpoint_that_comes_too_late_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late: Future[None] = Future()
    asked: list[Path] = []

    def checkpoint(_: Business, path: Path) -> Future[None]:
        asked.append(path)
        return late

    def record(*_: Any) -> Future[None]:
        raise AssertionError("it has no lease")

    monkeypatch.setattr(snapshots, "_CHECKPOINT_WAIT_S", 0.01)
    found = SnapshotManager(
        tmp_path,
        FreeSpace(tmp_path, 0),
        default_lease_s=60.0,
        checkpoints_max=4,
        leases_max=4,
        clock_us=lambda: 0,
        checkpoint=checkpoint,
        record=record,
    )
    with pytest.raises(Unavailable, match="too far behind"):
        found.open(Business(1, "main", ReviewSchedule(first_s=1.0)), broker_pb2.OpenSnapshotRequest(business="main"))
    [path] = asked
    path.mkdir()
    (path / "CURRENT").touch()
    late.set_result(None)
    assert not path.exists()
