"""A checkpoint that has gone ends the call that still wants it, and no more: the store is as whole as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.broker.snapshot.checkpoints import Checkpoints
from venus.broker.store.rocks import Store
from venus.errors import SnapshotExpired


def test_a_checkpoint_that_was_dropped_is_no_failure_of_the_store(tmp_path: Path) -> None:
    """A load that is given up closes its snapshot while the broker still sums it up: that ended the broker."""
    store, checkpoints = Store(tmp_path / "db"), Checkpoints(tmp_path / "snapshots")
    store.checkpoint(checkpoints.path("one"))
    with checkpoints.reading("one") as reader:
        checkpoints.drop("one")
        assert reader.sequence == store.sequence
        with pytest.raises(SnapshotExpired), checkpoints.reading("one"):
            pass
    assert not checkpoints.path("one").exists()
    with pytest.raises(SnapshotExpired), checkpoints.reading("one"):
        pass
    store.close()
